"""The evaluation loss turns up while the training loss falls.

## What it looks for
A minimum of the evaluation loss that lies well before the end, and at least three later evaluations clearly above it, while the
training loss goes on falling.

## Why it matters
Every step after the minimum makes the model worse on what it has not seen.

## How it decides
Above means more than 2 % and more than three noise widths of the evaluation loss, for the last three evaluations at least.
The onset is the minimum, known to one evaluation.

## When it is wrong
Accuracy can still rise while the loss does, since the model grows overconfident; look at the metric that counts. An evaluation
set from another source drifts away without any memorising.

## What to do
Stop at the minimum, or regularise, or use more data or a smaller model.

## References
Prechelt, Early stopping - but when? (1998); Muennighoff et al. (2305.16264).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Evidence, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, number, percent, primary, since, sure, when

EVAL, LOSS = "loss/eval", "loss/train"
LEAST, LARGE = 0.02, 0.25  # above the minimum: reported, and more than minor (knowledge E1)


def judge(case: Case) -> Iterator[Diagnosis]:
    """The minimum of the evaluation loss, when it lies clearly behind."""
    turn = next(iter(case.found("eval-minimum", EVAL)), None)
    if turn is None:
        return
    lowest, last = number(turn, "minimum", "min", "lowest"), number(turn, "last", "end", "after")
    rise = number(turn, "rise", default=turn.size)
    step = turn.onset.first_step
    train_then, train_now = case.level(LOSS, _around(case, step)), case.level(LOSS, _around(case, case.last_step))
    if rise < LEAST or train_then is None or train_now is None or train_now >= train_then:
        return
    if case.found("divergence", LOSS) or case.found("level-shift", LOSS, direction="up", within=Span(step, case.last_step)):
        return
    yield Diagnosis(
        "overfitting",
        f"The model overfits from {since(step)} on: the evaluation loss rises {percent(rise)} above its minimum"
        " while the training loss falls.",
        Severity.MAJOR if rise >= LARGE else Severity.MINOR,
        confidence=sure(case, LOSS, plain=rise >= 2 * LEAST),
        onset=turn.onset,
        evidence=(
            primary(turn, f"The evaluation loss has its minimum of {num(lowest)} at {since(step)} and ends at {num(last)}."),
            Evidence(f"The training loss goes from {num(train_then)} to {num(train_now)} meanwhile.", about=LOSS),
        ),
        causes=ranked(
            (
                cause(
                    "overfitting",
                    "The model memorises the training data",
                    1.0,
                    when(train_now < 0.5 * train_then, 1, "The training loss has more than halved since."),
                ),
                cause(
                    "eval-shift",
                    "The evaluation data differ from the training data",
                    0.3,
                    would_decide="the evaluation loss on held-out training data",
                ),
            )
        ),
        fixes=(fix("early-stop", values={"step": step}), fix("regularize")),
        rivals=("loss-level-shift", "loss-divergence"),
    )


def _around(case: Case, step: int) -> Span:
    return Span(step - case.near(), step + case.near())


RULE = Rule(
    id="overfitting",
    title="The model overfits",
    family="generalisation",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(EVAL, LOSS),
    wants=("accuracy/eval",),
    uses=("eval-minimum", "divergence", "level-shift"),
    judge=judge,
    examples=(
        fires(
            "the evaluation loss climbs for half of the run",
            lambda: {EVAL: synth.with_rise_after_minimum(synth.evals(), at=1500, rise=0.2), LOSS: synth.loss(3000, last=1.5)},
        ),
        quiet("both losses fall", lambda: {EVAL: synth.evals(), LOSS: synth.loss(3000)}),
    ),
)
