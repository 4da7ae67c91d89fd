"""The gradient norm grows without bound.

## What it looks for
A lasting growth of the unscaled gradient norm to at least ten times its base, or to three times when the loss breaks with it.

## Why it matters
It usually leads the loss by one to a few steps, and NaN follows.

## How it decides
Growth on a log axis with its onset by a broken-stick fit, corroborated by a rise of the loss, a non-finite value or an
overflow within 20 steps. A norm that only follows the loss scale was divided by it first. Growth inside a batch-size change,
a resume or the warm-up of a healthy run is left out, and so is a single high norm.

## When it is wrong
A norm logged after clipping cannot show it. The absence of growth does not prove the absence of a bad batch.

## What to do
Clip at the norms before the onset, lengthen the warm-up, lower the learning rate; then look at initialisation and the
placement of normalisation. In fp16 let the loss scale be dynamic. The ZeRO stage and contiguous_gradients change nothing here.

## References
Pascanu et al. (1211.5063); BLOOM-176B chronicles (iterations 31214 to 31250); OPT-175B logbook; GLM-130B log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from diagnose import synth
from diagnose.breaks import look, spike_not_recovered
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Evidence, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import (
    calmer_lr,
    cause,
    clip_threshold,
    healthy_clip,
    longer_warmup,
    neutral_settings,
    num,
    number,
    primary,
    recovers,
    related,
    since,
    some,
    strongest,
    sure,
    warmup_floor,
    when,
)

NORM, LOSS = "grad_norm", "loss/train"
ALONE = 10.0  # times the base: enough without the loss (knowledge G1)
TOGETHER = 3.0  # times the base when the loss breaks with it (knowledge G1)


def judge(case: Case) -> Iterator[Diagnosis]:
    """The strongest growth of the gradient norm that the loss confirms or that is large by itself."""
    grown = [f for f in case.found("growth", NORM, masked=False) if _counts(case, f)]
    bursts = [
        f
        for f in case.found("spike", NORM, masked=False)
        if number(f, "ratio") >= ALONE and _breaks(case, f) and not _as_at_the_start(case, f)
    ]
    growth = grown[0] if grown else strongest(bursts)
    if growth is None:
        return
    loss = _breaks(case, growth)
    times = number(growth, "peak_ratio", "ratio", default=growth.size)
    severity = Severity.MAJOR if loss is not None or number(growth, "to_end") > 0 else Severity.MINOR  # a burst that did no harm
    severity = Severity.CRITICAL if loss is not None and loss.kind == "nonfinite" else severity
    speed = number(growth, "doubling_steps")
    yield Diagnosis(
        "gradient-explosion",
        f"The gradient norm explodes from {since(growth.onset.first_step)} on, to {num(times)} times its usual size.",
        severity,
        confidence=sure(case, NORM, plain=loss is not None or times >= 10 * ALONE),
        onset=growth.onset,
        end_step=growth.span.last_step,
        evidence=some(
            primary(
                growth, f"The gradient norm grows {num(times)} times" + (f", doubling every {num(speed)} steps." if speed > 0 else ".")
            ),
            related(loss, f"The loss breaks with it at {since(loss.onset.first_step)} ({loss.kind}).") if loss else None,
            _unscaled(case),
            neutral_settings(case),
        ),
        causes=_causes(case, growth),
        fixes=_fixes(case, growth),
        rivals=("warmup-too-short", "learning-rate-jump", "resume-bump"),
    )


def _counts(case: Case, growth: Finding) -> bool:
    times = number(growth, "peak_ratio", default=growth.size)
    if growth.direction == "down" or _as_at_the_start(case, growth):
        return False
    return (times >= TOGETHER and _breaks(case, growth) is not None) or (times >= ALONE and not _settles(case, growth))


def _as_at_the_start(case: Case, growth: Finding) -> bool:
    """Whether the norm only returns to what it was when the run began, because the loss does: harder data, no explosion."""
    seen = look(case, growth)
    return seen.exploded is False and not seen.burst


def _breaks(case: Case, growth: Finding) -> Finding | None:
    span = Span(growth.onset.first_step - case.near(1, 0.0), growth.span.last_step + max(20, case.near()))
    hits = [
        f
        for kind in ("nonfinite", "divergence", "spike")
        for f in case.found(kind, LOSS, within=span)
        if kind != "spike" or not recovers(f)
    ]
    return hits[0] if hits else None


def _settles(case: Case, growth: Finding) -> bool:
    """Whether the loss at the end is no higher than at the onset: then the growth did no harm."""
    start, end = case.value_at(LOSS, growth.onset.first_step), case.value_at(LOSS, case.last_step)
    return start is not None and end is not None and end <= start


def _unscaled(case: Case) -> Evidence | None:
    return (
        Evidence("The logged norm followed the loss scale and was divided by it first.", about=NORM)
        if case.facts.get("grad_norm_was_scaled")
        else None
    )


def _causes(case: Case, growth: Finding) -> tuple[Cause, ...]:
    clip, precision = clip_threshold(case), case.setting("precision")
    start = growth.onset.first_step
    before = Span(start - 2 * case.near(), start + case.near())
    rate, peak = case.value_at("lr", start), case.highest("lr")
    early = start - case.first_step <= 3 * max(case.warmup_end or 0, warmup_floor(case))
    kind = str(case.setting("model.kind", "") or "").lower()
    seen, loss = look(case, growth), _breaks(case, growth)
    back = loss is None or (loss.kind == "spike" and recovers(loss))
    earlier = [f for k in ("jump", "spike") for f in case.found(k, NORM) if f.onset.last_step < start - case.near()]
    return ranked(
        (
            cause(
                "lr-too-high",
                "The learning rate is higher than this model bears",
                1.0,
                when(rate and peak and rate >= 0.8 * peak and not seen.constant, 1, "The learning rate is near its peak."),
                when(seen.constant, -1, "The run had borne this learning rate for a fifth of its length."),
                when(rate and peak and rate < 0.3 * peak, -1, "The learning rate had fallen below a third of its peak."),
            ),
            cause(
                "no-clipping",
                "Nothing limits the gradient",
                0.9,
                when(clip == 0, 2, "Clipping is off."),
                when(clip, -2, f"Clipping is on, at {num(clip)}."),
                when(len(earlier) > 1, 1, f"The norm had jumped {len(earlier)} times before."),
                when(any(k in kind for k in ("rnn", "lstm", "gru")), 1, f"The model is recurrent ({kind})."),
                would_decide="" if clip is not None else "the clipping threshold",
            ),
            cause(
                "warmup-missing",
                "The warm-up is missing or too short",
                0.5,
                when(case.number("schedule.warmup_steps") == 0, 2, "The configuration sets no warm-up."),
                when(early, 1, "It begins in the first steps."),
                when(not early, -2, "The run had long left its first steps."),
            ),
            cause(
                "post-norm",
                "Post-norm blocks amplify gradients by depth",
                0.3,
                when(case.setting("model.norm_position") == "post", 2, "The model normalises after the residual sum."),
                when(case.setting("model.norm_position") == "pre", -3, "The model normalises before each block."),
            ),
            cause(
                "fp16-overflow",
                "fp16 runs out of range",
                0.3,
                when(case.found("scale-collapse", "loss_scale", within=before), 2, "The loss scale collapses about there."),
                when(precision == "fp16", 1, "The precision is fp16."),
                when(precision in ("fp32", "bf16"), -2, f"The precision is {precision}."),
            ),
            cause(
                "bad-batch",
                "An unusual batch started it",
                0.4,
                when(case.together(growth.onset, "jump", LOSS, slack=case.near(2, 0.0)), 1, "The loss jumps at the same step."),
                would_decide="the data position: a replay from a checkpoint breaks at the same batch",
            ),
            spike_not_recovered(
                replace(seen, abrupt=seen.burst),
                0.3,
                when(back, -2, "The loss comes back."),
                when(number(growth, "rate") > 0 and not seen.burst, -1, "The norm grows over several steps."),
            ),
            cause(
                "init-scale",
                "The initial weights are too large",
                0.2,
                when(early, 1, "It begins in the first steps."),
                when(not early, -2, "It begins late."),
            ),
        )
    )


def _fixes(case: Case, growth: Finding) -> tuple[Fix, ...]:
    clip = fix("clip-gradients", values={"clip": healthy_clip(case, growth.onset) if case.setting("precision") != "fp16" else 1.0})
    steps = longer_warmup(case)
    warm = (fix("add-warmup", values={"steps": steps}),) if steps else ()
    slower = fix("lower-lr", values={"lr": calmer_lr(case, growth.onset)})
    half = (fix("dynamic-loss-scale"), fix("bf16")) if case.setting("precision") == "fp16" else ()
    return (slower, *warm, clip, *half) if half else (clip, slower, *warm)


RULE = Rule(
    id="gradient-explosion",
    title="The gradient norm explodes",
    family="gradients",
    severity=Severity.CRITICAL,
    status="preview",
    since="0.1",
    needs=(NORM,),
    wants=(LOSS, "lr", "loss_scale"),
    uses=("growth", "spike", "jump", "nonfinite", "divergence", "scale-collapse"),
    judge=judge,
    examples=(
        fires(
            "tenfold every twenty-three steps, and the loss goes with it",
            lambda: {
                NORM: synth.with_explosion(synth.norm(), at=1200, rate=0.1, most=200.0),
                LOSS: synth.with_divergence(synth.loss(), at=1210, rise=1.0, over=100),
            },
        ),
        quiet("a norm that drifts up by a half", lambda: {NORM: synth.with_drift(synth.norm(), total=0.4), LOSS: synth.loss()}),
        quiet("one high norm", lambda: {NORM: synth.with_jump(synth.norm(), at=1200, ratio=20.0), LOSS: synth.loss()}),
    ),
)
