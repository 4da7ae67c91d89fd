"""The loss steps up to a new level and stays there.

## What it looks for
A rise of the training loss within a few steps, at a constant learning rate, after which it goes on from the new level as
before: flat, or falling at its usual slope.

## Why it matters
The data changed under the run: another source, shuffled or wrong labels, a broken shard. The run learns something else from
there on.

## How it decides
The step must be larger than 2 % and than the noise of the block medians on both sides. Changes of learning rate, batch,
sequence length and resumes are left out. A rise that goes on belongs to `loss-divergence`, one that comes back to `loss-spike`.
A loss that comes back down from the new level speaks for a new source, one that stays for wrong labels.

## When it is wrong
A planned change of the data mixture looks the same and is no fault.

## What to do
Look at the batches before and after that step: source, order, labels. Ramp a planned change over some thousand steps, with a
short warm-up of the learning rate.

## References
GLM-130B log (step 22 800); BigScience chronicles; Zhang et al., label noise (1611.03530).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diagnose import synth
from diagnose.breaks import data_shift, label_noise, look, noise_growing, spike_not_recovered
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Finding, Severity
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, number, percent, primary, recovers, related, since, some, sure, when

LOSS, NORM = "loss/train", "grad_norm"
LEAST, LARGE = 0.02, 0.10  # of the loss: reported, and more than minor (knowledge D3)


def judge(case: Case) -> Iterator[Diagnosis]:
    """One diagnosis for each unexplained step up of the loss, three at most."""
    steps = [f for f in case.found("level-shift", LOSS, direction="up", masked=False) if _counts(case, f)]
    for step in steps[:3]:
        before, after = number(step, "before"), number(step, "after")
        share = _share(step)
        beside = case.together(step.onset, "level-shift", NORM, slack=2 * case.near())
        scored = case.together(step.onset, "level-shift", "accuracy", slack=2 * case.near())
        yield Diagnosis(
            "loss-level-shift",
            f"The training loss steps up at {since(step.onset.first_step)}, from {num(before)} to {num(after)}, and stays there.",
            Severity.MAJOR if share >= LARGE and step.strength >= 6 else Severity.MINOR,
            confidence=sure(case, LOSS, plain=share >= 2 * LEAST),
            onset=step.onset,
            evidence=some(
                primary(step, f"The median loss goes from {num(before)} to {num(after)} ({percent(share)}) and does not come back."),
                related(beside, f"The gradient norm changes level too ({beside.direction}).") if beside else None,
                related(scored, "The accuracy changes level with it.") if scored else None,
            ),
            causes=_causes(case, step, beside),
            fixes=(fix("check-data", values={"step": step.onset.first_step}), fix("mix-data"), fix("shuffle-data")),
            rivals=("loss-divergence", "learning-rate-jump", "resume-bump", "gradient-explosion", "zero-loss"),
        )


def _share(step: Finding) -> float:
    before, after = number(step, "before"), number(step, "after")
    return after / before - 1 if before > 0 else step.size


def _counts(case: Case, step: Finding) -> bool:
    if _share(step) < LEAST or case.value_at(LOSS, step.onset.first_step - 1) == 0:
        return False  # a loss of exactly 0 is no level: zero-loss owns it
    broken = any(number(f, "to_end") > 0 and f.onset.first_step <= step.span.last_step for f in case.found("nonfinite", LOSS))
    if any(f.onset.first_step < step.onset.first_step - 2 * case.near() for f in case.found("divergence", LOSS)):
        return False  # a step of a rise that began before
    back = case.together(step.onset, "spike", LOSS, slack=2 * case.near())
    if back is not None and recovers(back):
        return False  # it comes back: loss-spike owns it
    grows = case.together(step.onset, "growth", NORM, slack=2 * case.near()) is not None
    raised = bool(case.found("jump-in-schedule", "lr", direction="up", within=step.onset))
    return not (broken or grows or raised)


def _causes(case: Case, step: Finding, beside: Finding | None) -> tuple[Cause, ...]:
    seen = look(case, step)
    up = beside is not None and beside.direction == "up"
    parted = case.has("accuracy") or case.has("accuracy/eval")
    again = [f for f in case.found("level-shift", LOSS, direction="up") if f.onset.first_step > step.onset.last_step]
    return ranked(
        (
            data_shift(seen, 1.0),
            label_noise(seen, 0.8, when(up and not parted, 1, "The gradient norm stays higher.")),
            noise_growing(
                replace(seen, abrupt=not seen.noisier and not again),
                0.3,
                when(again, 1, "It is one of several steps up."),
            ),
            spike_not_recovered(
                seen,
                0.3,
                when(case.together(step.onset, "jump", NORM, slack=case.near(2, 0.0)), 2, "The gradient norm jumps at that very step."),
            ),
            cause("loss-definition", "The loss itself was changed (weights, reduction)", 0.2),
        )
    )


RULE = Rule(
    id="loss-level-shift",
    title="The loss steps up to a new level",
    family="dynamics",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=(NORM, "lr", "accuracy"),
    uses=("level-shift", "spike", "divergence", "growth", "nonfinite", "jump", "jump-in-schedule"),
    judge=judge,
    examples=(
        fires("a quarter more loss from step 1 200 on", lambda: {LOSS: synth.with_level_shift(synth.loss(), at=1200, ratio=1.25)}),
        quiet("a loss that only falls", lambda: {LOSS: synth.loss()}),
        quiet("a spike that comes back", lambda: {LOSS: synth.with_spike(synth.loss(), at=1200, ratio=1.8, width=60)}),
    ),
)
