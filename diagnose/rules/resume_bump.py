"""The loss or the gradient norm jumps where the run was resumed.

## What it looks for
A spike or a level shift within the first steps after a resume that the log shows.

## Why it matters
A bump means that something of the state was not restored: the optimiser's moments, the schedule, the scaler or the position in
the data.

## How it decides
Any persistent rise of the loss, or a rise of the gradient norm of three times, that begins within fifty steps (or the usual
tolerance) of the resume. A loss that is lower than before points to data that were seen already.

## When it is wrong
A resume on a changed data mixture or batch moves the loss by itself.

## What to do
Save and restore optimiser, scheduler, scaler, random numbers and loader; else warm the learning rate up again for 5/(1-β2) steps.

## References
BigScience chronicles (`--no-load-optim`); ml-engineering, training loss patterns; Lightning 18780.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Finding, Mask, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, number, primary, since, sure, warmup_floor, when

LOSS, NORM = "loss/train", "grad_norm"
REACH = 50  # steps after a resume (knowledge O14)


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first resume that left a bump."""
    for resume in (m for m in case.masks if m.kind == "X5"):
        bump = _bump(case, resume)
        if bump is None:
            continue
        lost = bool(case.found("jump-in-schedule", "lr", within=resume.span))
        yield Diagnosis(
            "resume-bump",
            f"The {'loss' if bump.signal == LOSS else 'gradient norm'} jumps at {since(bump.onset.first_step)}, where the run was resumed.",
            Severity.MAJOR if bump.kind == "divergence" else Severity.MINOR,
            confidence=sure(case, bump.signal),
            onset=bump.onset,
            end_step=bump.span.last_step,
            evidence=(primary(bump, f"{resume.says}; a {bump.kind} of {num(number(bump, 'ratio', default=bump.size))} begins there."),),
            causes=ranked(
                (
                    cause(
                        "optimizer-state-lost",
                        "The optimiser's moments were not restored",
                        1.0,
                        would_decide="the second moments before and after",
                    ),
                    cause(
                        "scheduler-reset",
                        "The schedule began again",
                        0.4,
                        when(lost, 3, "The learning rate jumps there."),
                        when(case.has("lr") and not lost, -2, "The learning rate goes on as before."),
                    ),
                    cause("data-order", "The loader began again, or elsewhere", 0.4, would_decide="the position in the data"),
                )
            ),
            fixes=(fix("restore-full-state"), fix("rewarm-lr", values={"steps": warmup_floor(case)})),
        )
        return


def _bump(case: Case, resume: Mask) -> Finding | None:
    reach = Span(resume.span.first_step, max(resume.span.last_step, resume.span.first_step + max(REACH, case.near())))
    hits: list[Finding] = [
        f for kind in ("spike", "level-shift", "divergence") for f in case.found(kind, LOSS, within=reach) if f.direction != "down"
    ]
    hits += [f for f in case.found("spike", NORM, within=reach) if number(f, "ratio") >= 3]
    jumps = [f for f in case.found("jump", LOSS, within=reach) if case.together(f.onset, "jump", NORM, slack=case.near(2, 0.0))]
    return next(iter(hits + jumps), None)


RULE = Rule(
    id="resume-bump",
    title="The run jumps where it was resumed",
    family="logging",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=(NORM, "lr"),
    uses=("spike", "level-shift", "divergence", "jump", "jump-in-schedule"),
    judge=judge,
    examples=(
        fires(
            "a spike at the first steps after a resume",
            lambda: {
                LOSS: synth.joined(
                    synth.loss(1200), synth.with_spike(synth.loss(800, first=3.26, last=3.2, start=1100), at=1101, ratio=1.8, width=60)
                )
            },
        ),
        quiet(
            "a resume that goes on as before",
            lambda: {LOSS: synth.joined(synth.loss(1200), synth.loss(800, first=3.26, last=3.2, start=1100))},
        ),
    ),
)
