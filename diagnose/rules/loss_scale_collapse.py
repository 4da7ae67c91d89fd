"""The fp16 loss scale collapses, or sits on its floor.

## What it looks for
Many halvings of the loss scale within a few steps that no later growth makes up, a scale pinned to its minimum, or fifty and
more skipped steps in a row.

## Why it matters
Every step is skipped: the run burns time without learning. The scale often falls tens of steps before the loss shows it.

## How it decides
The search of the first steps (from 65536 or 2^32 down) is calibration and is left out. A low scale alone is no fault. The
collapse is *critical* when the loss diverges or becomes non-finite with it or the scale stays down to the end, else *major*.

## When it is wrong
A resume that starts the scaler anew looks like a collapse for some steps.

## What to do
Go back to a checkpoint before the scale began to fall, lower the learning rate, clip at 1.0 and keep the scale dynamic; or
train in bf16, which has fp32's range. The ZeRO stage and contiguous_gradients change nothing here.

## References
Micikevicius et al. (1710.03740); OPT-175B logbook; GLM-130B log (scale fell 30 steps before the loss); DeepSpeed loss_scaler.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import (
    calmer_lr,
    cause,
    neutral_settings,
    num,
    number,
    primary,
    related,
    since,
    some,
    strongest,
    sure,
    warmup_floor,
    when,
)

SCALE, LOSS = "loss_scale", "loss/train"
DEEP = 8.0  # halvings that are more than the edge of fp16 moving, even when they are made up again


def judge(case: Case) -> Iterator[Diagnosis]:
    """The collapse after calibration that lasts, else the deepest, or the floor."""
    floor = case.found("scale-floor", SCALE)
    fell = [_from_its_start(case, f) for f in case.found("scale-collapse", SCALE) if not number(f, "calibration") or floor]
    fell = [f for f in fell if not case.masks_at(f.onset, "X5")]
    worst = max(fell, key=lambda f: (number(f, "to_end"), number(f, "halvings")), default=None)
    drop = worst or (floor[0] if floor else None)
    if drop is None:
        return
    said = case.said("scale-floor")
    loss = _broken_loss(case, drop)
    stays = bool(floor) or bool(said) or _stays_down(case, drop)
    before, after = case.value_at(SCALE, drop.onset.first_step - 1), case.lowest(SCALE, Span(drop.onset.first_step, drop.span.last_step))
    yield Diagnosis(
        "loss-scale-collapse",
        f"The loss scale collapses from {since(drop.onset.first_step)} on, from {num(before)} to {num(after)}.",
        _severity(case, drop, stays, loss),
        confidence=sure(case, SCALE),
        onset=drop.onset,
        end_step=None if stays else drop.span.last_step,
        evidence=some(
            primary(drop, f"The loss scale falls from {num(before)} to {num(after)} and {'stays down' if stays else 'returns later'}."),
            related(loss, f"The loss breaks at {since(loss.onset.first_step)} ({loss.kind}).") if loss else None,
            neutral_settings(case),
        ),
        causes=_causes(case, drop, loss),
        fixes=_fixes(case, drop),
    )


def _from_its_start(case: Case, fall: Finding) -> Finding:
    """A search for the first scale that ends at the floor was none: it collapsed where it first fell."""
    if not number(fall, "calibration"):
        return fall
    first = case.first_step_where(SCALE, 0.0, 0.75 * number(fall, "before"), fall.span)
    return fall if first is None else replace(fall, onset=Span(first, first), span=Span(first, fall.span.last_step))


def _severity(case: Case, drop: Finding, stays: bool, loss: Finding | None) -> Severity:
    """A scale that comes back while the loss goes on cost a few steps: shipped runs lived at scales of 8 to 1024 (knowledge P2)."""
    if stays or loss is not None:
        return Severity.CRITICAL
    spiked = case.found("spike", LOSS, within=Span(drop.onset.first_step - case.near(), drop.span.last_step + 2 * case.near()))
    return Severity.MAJOR if spiked or number(drop, "halvings") >= DEEP else Severity.INFO


def _broken_loss(case: Case, drop: Finding) -> Finding | None:
    span = Span(drop.onset.first_step - case.near(), drop.span.last_step + 2 * case.near())
    return strongest(f for kind in ("nonfinite", "divergence") for f in case.found(kind, LOSS, within=span))


def _stays_down(case: Case, drop: Finding) -> bool:
    before, end = case.value_at(SCALE, drop.onset.first_step - 1), case.value_at(SCALE, case.last_step)
    return before is not None and end is not None and end <= before / 16


def _causes(case: Case, drop: Finding, loss: Finding | None) -> tuple[Cause, ...]:
    before = Span(drop.onset.first_step - 2 * case.near(), drop.onset.last_step + case.near())
    grow = case.found("growth", "grad_norm", within=before) or case.found("spike", "grad_norm", within=before)
    rate, peak = case.value_at("lr", drop.onset.first_step), case.highest("lr")
    early = drop.onset.first_step - case.first_step <= 3 * warmup_floor(case)
    return ranked(
        (
            cause(
                "fp16-overflow",
                "Activations or gradients leave the range of fp16",
                1.0,
                when(not loss, 1, "The loss itself is still in order there."),
                when(case.setting("precision") == "fp16", 1, "The precision is fp16."),
                would_decide="the largest activation per layer",
            ),
            cause(
                "lr-too-high",
                "The run diverges, and the scale shows it first",
                0.9,
                when(grow, 2, "The gradient norm grows about there."),
                when(loss, 1, "The loss breaks with it."),
                when(rate and peak and rate >= 0.8 * peak, 1, "The learning rate is near its peak."),
                when(early and case.number("schedule.warmup_steps") == 0, 1, "It begins early, without a warm-up."),
            ),
            cause(
                "bad-batch",
                "Non-finite or extreme values in the data",
                0.4,
                when(not grow and case.has("grad_norm"), 1, "The gradient norm gives no warning."),
            ),
        )
    )


def _fixes(case: Case, drop: Finding) -> tuple[Fix, ...]:
    back = fix("roll-back-and-skip", values={"step": max(case.first_step, drop.onset.first_step - 100), "batches": 200})
    slower = fix("lower-lr", values={"lr": calmer_lr(case, drop.onset)})
    return fix("bf16"), slower, fix("clip-gradients", values={"clip": 1.0}), fix("dynamic-loss-scale"), back


RULE = Rule(
    id="loss-scale-collapse",
    title="The loss scale collapses",
    family="precision",
    severity=Severity.CRITICAL,
    status="preview",
    since="0.1",
    needs=(SCALE,),
    wants=(LOSS, "grad_norm", "steps/skipped"),
    uses=("scale-collapse", "scale-floor", "nonfinite", "divergence", "growth", "spike"),
    judge=judge,
    examples=(
        fires(
            "twelve halvings that nothing makes up",
            lambda: {SCALE: synth.with_collapse(synth.loss_scale(), at=1500, halvings=12), LOSS: synth.loss()},
        ),
        quiet("the search at the start, then one halving now and then", lambda: {SCALE: synth.loss_scale(), LOSS: synth.loss()}),
    ),
)
