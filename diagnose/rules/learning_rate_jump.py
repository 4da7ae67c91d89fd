"""The learning rate jumps up in the middle of the run.

## What it looks for
A step up of the logged learning rate by 1.5 times or more after the warm-up, which is no restart of a periodic schedule.

## Why it matters
It is rarely meant: a schedule that starts again after a resume, two owners of one schedule, a wrong unit of its steps. What
the jump breaks is then blamed on the data.

## How it decides
The rate is known exactly, so that the jump is certain; its harm is not. It is *major* when the loss rises within its reach (*critical*
when it diverges), else *minor*. Cyclic schedules (mask X2), warm-ups and planned restarts are left out.

## When it is wrong
Stage-wise training raises the rate on purpose.

## What to do
Go back before the jump, and give the schedule one owner and the right number of steps.

## References
Loshchilov and Hutter (1608.03983); DeepSpeed and Hugging Face scheduler documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, number, primary, related, since, some, sure, when

RATE, LOSS = "lr", "loss/train"
LEAST = 1.5  # times: what a restart is (knowledge 0.3, X2)
ANEW = 0.05  # of the first rate: the schedule stands where it began


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first jump up after the warm-up."""
    jumps = [f for f in case.found("jump-in-schedule", RATE, direction="up") if _counts(case, f)]
    if not jumps:
        return
    jump = jumps[0]
    before, after = number(jump, "before"), number(jump, "after")
    reach = Span(jump.onset.first_step - case.near(1, 0.0), jump.onset.last_step + max(50, 2 * case.near()))
    harm = next(
        (
            f
            for kind in ("nonfinite", "divergence", "spike", "level-shift")
            for f in case.found(kind, LOSS, within=reach)
            if f.direction != "down"
        ),
        None,
    )
    resumed = bool(case.masks_at(jump.onset, "X5"))
    begin = max(case.value_at(RATE, case.first_step) or 0.0, case.value_at(RATE, case.warmup_end or case.first_step) or 0.0)
    anew = begin > 0 and abs(after / begin - 1) < ANEW
    yield Diagnosis(
        "learning-rate-jump",
        f"The learning rate jumps from {num(before)} to {num(after)} at {since(jump.onset.first_step)}"
        + (", and the loss rises." if harm else "."),
        _severity(harm),
        confidence=sure(case, RATE),
        onset=jump.onset,
        evidence=some(
            primary(
                jump,
                f"The learning rate goes from {num(before)} to {num(after)} in one step,"
                f" {num(number(jump, 'ratio', default=jump.size))} times as much.",
            ),
            related(harm, f"A {harm.kind} of the loss begins at {since(harm.onset.first_step)}.") if harm else None,
        ),
        causes=ranked(
            (
                cause("lr-jump", "Somebody or something raised the learning rate", 1.0, when(harm, 1, "The loss answers at once.")),
                cause(
                    "scheduler-reset",
                    "The schedule began again at a resume",
                    0.5,
                    when(resumed, 3, "The run was resumed there."),
                    when(not resumed, -1, "No resume stands there."),
                ),
                cause(
                    "optimizer-state-lost",
                    "Only the weights were restored: the optimiser and the schedule began anew",
                    0.5,
                    when(resumed, 3, "The run was resumed there."),
                    when(not resumed, -3, "No resume stands there."),
                    when(anew, 1, "The learning rate is back at the value that the schedule begins with."),
                    would_decide="the second moments before and after",
                ),
                cause("schedule-misconfigured", "Two owners of one schedule, or a wrong unit of its steps", 0.4),
            )
        ),
        fixes=_fixes(case, jump, before, resumed),
        rivals=("step-reset",),
    )


def _fixes(case: Case, jump: Finding, before: float, resumed: bool) -> tuple[Fix, ...]:
    back = fix("roll-back-and-skip", values={"step": max(case.first_step, jump.onset.first_step - 1), "batches": 0})
    plan = fix("fix-schedule", values={"total_steps": case.last_step})
    if resumed:
        return fix("restore-full-state"), plan, back
    return plan, fix("lower-lr", values={"lr": before}), back


def _severity(harm: Finding | None) -> Severity:
    if harm is None:
        return Severity.MINOR
    return Severity.CRITICAL if harm.kind in ("nonfinite", "divergence") else Severity.MAJOR


def _counts(case: Case, jump: Finding) -> bool:
    ratio = number(jump, "ratio", default=jump.size)
    warm = case.warmup_end is not None and jump.onset.first_step <= case.warmup_end
    return ratio >= LEAST and number(jump, "before", default=1.0) > 0 and not warm and not case.masks_at(jump.onset, "X2", "X3")


RULE = Rule(
    id="learning-rate-jump",
    title="The learning rate jumps up",
    family="dynamics",
    severity=Severity.CRITICAL,
    status="preview",
    since="0.1",
    needs=(RATE,),
    wants=(LOSS,),
    uses=("jump-in-schedule", "nonfinite", "divergence", "spike", "level-shift"),
    judge=judge,
    examples=(
        fires(
            "five times the rate from step 1 000 on",
            lambda: {RATE: synth.with_level_shift(synth.rate(), at=1000, ratio=5.0), LOSS: synth.loss()},
        ),
        quiet("a warm-up and a cosine", lambda: {RATE: synth.rate(), LOSS: synth.loss()}),
    ),
)
