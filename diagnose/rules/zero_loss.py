"""The loss is exactly zero.

## What it looks for
Training losses that are exactly 0, in single steps or from some step on, with a gradient norm of zero.

## Why it matters
Nothing is learned there: no label counts. Averages over such steps look better than they are.

## How it decides
An exact zero is not a small loss. At least three such points, after a loss above 0.01. A zero written in place of a NaN belongs
to `non-finite-loss`; a loss that falls smoothly to zero is a perfect fit.

## When it is wrong
A log with few decimals rounds a very small loss to zero.

## What to do
Assert that every batch has labels that count; look at truncation, the chat template and the padding mask.

## References
transformers `ignore_index` -100; LLaMA-Factory 5660; ms-swift 2436.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Evidence, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, percent, since, some, sure, when

LOSS, NORM = "loss/train", "grad_norm"
POINTS = 3  # a skipped row may hold a zero


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first exact zero, when there are enough of them and no filter wrote them."""
    start = case.first_step_where(LOSS, 0.0, 0.0)
    if start is None or case.facts.get("loss_hidden_nonfinite") is not None:
        return
    rest = Span(start, case.last_step)
    share = case.share_of(LOSS, 0.0, 0.0, rest)
    count = round(case.share_of(LOSS, 0.0, 0.0) * case.points(LOSS))
    near_zero = Span(start - case.near(), start - 1)
    before = case.level(LOSS, near_zero)
    if count < POINTS or (before is not None and before < 0.01):
        return
    onset = Span(start, start)
    still = case.has(NORM) and case.value_at(NORM, start) == 0
    yield Diagnosis(
        "zero-loss",
        f"The training loss is exactly 0 from {since(start)} on, in {percent(share)} of the points.",
        Severity.MAJOR if share > 0.5 or start == case.first_step else Severity.MINOR,
        confidence=sure(case, LOSS),
        onset=onset,
        evidence=some(
            Evidence(f"{count} points are exactly 0; before, the loss is {num(before)}.", span=rest, role="primary", about=LOSS),
            Evidence("The gradient norm is exactly 0 there too.", about=NORM) if still else None,
        ),
        causes=ranked(
            (
                cause(
                    "masked-labels",
                    "Every label is masked, so that nothing counts",
                    1.0,
                    when(still, 2, "There is no gradient either."),
                    would_decide="" if still else "the number of labels that count, per batch",
                ),
                cause("loss-not-logged", "The program writes 0 where it has no loss", 0.3, when(still, -2, "There is no gradient either.")),
            )
        ),
        fixes=(fix("guard-empty-labels"), fix("check-data", values={"step": start})),
        rivals=("non-finite-loss",),
    )


RULE = Rule(
    id="zero-loss",
    title="The training loss is exactly zero",
    family="dynamics",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=(NORM,),
    uses=(),
    judge=judge,
    examples=(
        fires(
            "exactly zero from step 700 on",
            lambda: {
                LOSS: synth.with_nonfinite(synth.loss(), at=700, value=0.0),
                NORM: synth.with_nonfinite(synth.norm(), at=700, value=0.0),
            },
        ),
        quiet("a loss that becomes small", lambda: {LOSS: synth.loss(last=0.02), NORM: synth.norm()}),
    ),
)
