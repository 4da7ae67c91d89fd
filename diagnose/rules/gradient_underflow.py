"""Most gradients round to zero in fp16.

## What it looks for
A share of exact zeros among the gradients above one half, or a small static loss scale in a run that learns nothing.

## Why it matters
Values below 6e-8 do not exist in fp16: without a scale, small gradients vanish and with them what they would have taught.

## How it decides
The share of zeros is the direct measure. Without it a loss scale that stands at 8 or less all along counts only in a run known
to be fp16 (or with a scaler that skips) whose loss stands still near where it began.

## When it is wrong
ReLU networks and embeddings have many zeros by nature; bf16 and fp32 runs may log a loss scale of 1.

## What to do
Use dynamic loss scaling, or bf16, which has the range of fp32.

## References
Micikevicius et al. (1710.03740); OPT-175B logbook.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Evidence, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, percent, some, sure, when

ZEROS, SCALE, LOSS = "grad/zeros", "loss_scale", "loss/train"
MANY = 0.5  # share of zeros (knowledge P3)
SMALL = 8.0  # a scale that lifts nothing: healthy fp16 scales are at 2^10 and above, fixed ones at 128 and above
LEARNED = 0.1  # share of the first loss that a run which learns has lost by its end


def judge(case: Case) -> Iterator[Diagnosis]:
    """One diagnosis for the whole run."""
    precision = case.setting("precision")
    half = precision == "fp16" or (precision is None and case.has("steps/skipped"))
    scale, zeros = case.highest(SCALE), case.level(ZEROS, Span(case.last_step - case.length // 2, case.last_step))
    static = scale is not None and scale <= SMALL and case.lowest(SCALE) == scale
    dynamic = scale is not None and not static
    many = zeros is not None and MANY < zeros <= 1.0 and not dynamic
    stuck = static and half and _stuck(case)
    if precision in ("fp32", "bf16") or not (half or static) or not (many or stuck):
        return
    fixed = f"The loss scale stands at {num(scale)} all along." if static else ""
    lost = f"{percent(zeros)} of the gradients are exactly zero in the second half." if many and zeros is not None else ""
    yield Diagnosis(
        "gradient-underflow",
        "Gradients underflow in fp16: "
        + (f"{percent(zeros)} of them are zero." if many and zeros is not None else f"the loss scale is only {num(scale)}."),
        Severity.MAJOR,
        confidence=sure(case, LOSS, plain=many),
        onset=None,
        evidence=some(
            Evidence(lost or fixed, span=case.whole, role="primary", about=ZEROS if lost else SCALE),
            Evidence(fixed, about=SCALE) if lost and fixed else None,
            Evidence("The loss stands near where it began.", about=LOSS) if stuck else None,
        ),
        causes=ranked(
            (
                cause(
                    "fp16-underflow", "Gradients are too small for fp16 without a scale", 1.0, when(static, 1, fixed), when(many, 1, lost)
                ),
                cause("lr-too-low", "The learning rate is too low", 0.3, when(many, -2, "The gradients themselves are zero.")),
            )
        ),
        fixes=(fix("dynamic-loss-scale"), fix("bf16")),
        rivals=("non-finite-loss", "loss-scale-collapse"),
    )


def _stuck(case: Case) -> bool:
    first, late = case.value_at(LOSS, case.first_step), case.level(LOSS, Span(case.last_step - case.length // 10, case.last_step))
    return first is not None and late is not None and first > 0 and abs(first - late) < LEARNED * first


RULE = Rule(
    id="gradient-underflow",
    title="Gradients underflow in fp16",
    family="precision",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(f"{ZEROS}|{SCALE}",),
    wants=(ZEROS, SCALE, LOSS),
    uses=(),
    judge=judge,
    examples=(
        fires(
            "a static loss scale of one, and a loss that stands still",
            lambda: {SCALE: synth.constant(1.0), LOSS: synth.with_plateau(synth.loss(), at=0)},
            settings={"precision": "fp16"},
        ),
        quiet("a dynamic loss scale", lambda: {SCALE: synth.loss_scale(), LOSS: synth.loss()}, settings={"precision": "fp16"}),
        quiet("bf16 logs a loss scale of one", lambda: {SCALE: synth.constant(1.0), LOSS: synth.loss()}, settings={"precision": "bf16"}),
    ),
)
