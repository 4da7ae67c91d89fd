"""The run was resumed with its step counter set back.

## What it looks for
Attempts of one run whose steps begin again at the first step.

## Why it matters
The log overwrites itself, and with the counter the schedule usually starts again: a second warm-up, a second decay.

## How it decides
A later attempt begins at the very first step of an earlier one that had gone on well beyond it. A return to a checkpoint goes
back less far and is no reset.

## When it is wrong
A new run, or the fine-tuning of a finished model, logged into the same folder looks the same.

## What to do
Restore the step counter (and the schedule) from the checkpoint, or write to a new folder.

## References
TensorBoard `purge_step`; Lightning `global_step`; DeepSpeed `load_checkpoint` options.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Evidence, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, since, sure

LOSS = "loss/train"


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first resume whose steps begin again at the start."""
    back = next(((before, after) for before, after in case.facts.get("resumes", ()) if _is_reset(case, before, after)), None)
    if back is None:
        return
    before, step = back
    onset = Span(before, before)
    yield Diagnosis(
        "step-reset",
        f"The step counter was set back at a resume: after {since(before)} the log begins again at {since(step)}.",
        Severity.MINOR,
        confidence=sure(case, LOSS),
        onset=onset,
        evidence=(
            Evidence(
                f"After {since(before)} the log begins again at {since(step)}, its first one.", span=onset, role="primary", about=LOSS
            ),
        ),
        causes=ranked((cause("step-counter-reset", "The checkpoint's step was not restored", 1.0),)),
        fixes=(fix("fix-step-offset", values={"step": before}), fix("restore-full-state")),
    )


def _is_reset(case: Case, before: int, after: int) -> bool:
    """Back to the first step from well beyond it: a rollback to a checkpoint goes back less."""
    point = float(case.facts.get("steps_per_point", 1.0))
    return after <= case.first_step + 2 * point and before - after > 10 * point


RULE = Rule(
    id="step-reset",
    title="The step counter was set back",
    family="logging",
    severity=Severity.MINOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    uses=(),
    judge=judge,
    examples=(
        fires(
            "after step 1 199 the log begins again at 0",
            lambda: {LOSS: synth.joined(synth.loss(1200), synth.loss(800, first=3.26, last=3.2))},
        ),
        quiet(
            "a return to the checkpoint of step 1 100",
            lambda: {LOSS: synth.joined(synth.loss(1200), synth.loss(800, first=3.26, last=3.2, start=1100))},
        ),
    ),
)
