"""fp16 skips more steps than the loss scaler's own probing explains.

## What it looks for
The share of skipped steps in windows after the start, against the share that a healthy dynamic scaler skips because it
doubles the scale every `loss_scale_window` steps and finds the edge: about hysteresis / window.

## Why it matters
Skipped steps are lost, and a rising share announces a collapse of the scale.

## How it decides
Alarm when the share is above five times the expected one *and* above 1 %, in the median of the windows after calibration, or
when five and more steps in a row are skipped after the first hundred. Real healthy runs skip 0.9 to 1.9 % with a window of 100.
Overflows of the first steps alone are *info*: the scaler is looking for its level. A collapse belongs to `loss-scale-collapse`.

## When it is wrong
When neither the configuration nor the doublings of the logged scale tell the window, 1000 and a hysteresis of 2 are assumed; a
window of 100 then looks five times too high.

## What to do
Train in bf16; else lengthen the scale window, keep softmax and logits in fp32, and look for the layer that overflows.

## References
DeepSpeed-Chat logs; torch.amp.GradScaler; DeepSpeed fp16 configuration.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Evidence, Finding, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import calmer_lr, cause, grouped, neutral_settings, percent, primary, since, some, sure, when

RATE = "overflow_rate"
TIMES, LEAST = 5.0, 0.01  # five times the expected share and 1 % (knowledge P1)
SEARCH = 100  # steps in which the scaler looks for its level (knowledge P1)


def judge(case: Case) -> Iterator[Diagnosis]:
    """Too many skipped steps after calibration, or a note on the calibration itself."""
    if case.found("scale-floor", "loss_scale") or any(
        not f.numbers.get("calibration", 0.0) for f in case.found("scale-collapse", "loss_scale")
    ):
        return  # loss-scale-collapse owns it
    settled = Span(case.first_step + max(SEARCH, case.near()), case.last_step)
    usual = _expected(case)
    rate = _rate(case, settled)
    if rate is not None and rate > max(LEAST, TIMES * usual) and case.last_step > settled.first_step:
        yield _alarm(case, rate, usual, settled)
    elif calibration := _early(case, settled):
        yield _note(case, calibration)


def _expected(case: Case) -> float:
    window = case.number("loss_scale.window") or case.facts.get("scale_window_seen") or 1000.0
    return (case.number("loss_scale.hysteresis") or 2.0) / max(float(window), 1.0)


def _rate(case: Case, settled: Span) -> float | None:
    """The median share over the windows after the search; from messages when no counter is logged."""
    if case.has(RATE):
        return case.level(RATE, settled)
    said = [e for e in case.said("overflow") if e.step is not None and e.step > settled.first_step]
    return len(said) / max(settled.last_step - settled.first_step, 1) if len(said) >= 5 else None


def _alarm(case: Case, rate: float, usual: float, settled: Span) -> Diagnosis:
    said = [e for e in case.said("overflow") if e.step is not None and e.step > settled.first_step]
    start = case.first_step_where(RATE, max(LEAST, TIMES * usual), 1.0, settled) or (said[0].step if said else None) or settled.first_step
    onset = Span(start, start)
    says = f"fp16 skips {percent(rate)} of the steps after the first {grouped(SEARCH)}; a healthy scaler here skips about {percent(usual)}."
    grow = case.found("growth", "grad_norm")
    return Diagnosis(
        "overflow-rate-high",
        f"fp16 overflow skips {percent(rate)} of the steps from {since(start)} on,"
        f" {rate / usual:.0f} times what the scaler's probing explains.",
        Severity.MAJOR if rate >= 0.2 else Severity.MINOR,
        confidence=sure(case, RATE if case.has(RATE) else "loss/train", plain=case.number("loss_scale.window") is not None),
        onset=onset,
        evidence=some(Evidence(says, span=settled, role="primary", about=RATE), neutral_settings(case)),
        causes=ranked(
            (
                cause(
                    "fp16-overflow",
                    "Attention logits or activations leave the range of fp16",
                    1.0,
                    would_decide="the largest activation per layer",
                ),
                cause("lr-too-high", "The gradients grow", 0.7, when(grow, 2, "The gradient norm grows.")),
                cause(
                    "scale-window-too-short",
                    "The scale is raised too often",
                    0.5,
                    when((case.number("loss_scale.window") or 1000) < 200, 2, "The loss-scale window is below 200 steps."),
                ),
            )
        ),
        fixes=(fix("bf16"), fix("dynamic-loss-scale"), fix("lower-lr", values={"lr": calmer_lr(case, onset)})),
        rivals=("loss-scale-collapse",),
    )


def _early(case: Case, settled: Span) -> Finding | None:
    return next(
        (f for f in case.found("scale-collapse", "loss_scale") if f.numbers.get("calibration") and f.onset.first_step < settled.first_step),
        None,
    )


def _note(case: Case, calibration: Finding) -> Diagnosis:
    return Diagnosis(
        "overflow-rate-high",
        f"The loss scaler found its level at the start, until {since(calibration.span.last_step)}; this is normal.",
        Severity.INFO,
        confidence=sure(case, "loss_scale"),
        onset=calibration.onset,
        end_step=calibration.span.last_step,
        evidence=(primary(calibration, "The loss scale falls in the first steps only, and few steps are skipped later."),),
        causes=ranked((cause("scale-search", "The dynamic scaler starts high and looks for its level", 1.0),)),
        fixes=(fix("do-nothing"),),
    )


RULE = Rule(
    id="overflow-rate-high",
    title="Too many steps are skipped for fp16 overflow",
    family="precision",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(f"{RATE}|steps/skipped|loss_scale",),
    wants=("loss_scale", "grad_norm"),
    uses=("scale-collapse", "scale-floor", "growth"),
    judge=judge,
    examples=(
        fires(
            "one step in ten is skipped to the end",
            lambda: {"steps/skipped": synth.skips(2000, every=10), "loss/train": synth.loss()},
            settings={"loss_scale.window": 1000, "precision": "fp16"},
        ),
        quiet(
            "one skipped step in two windows",
            lambda: {"steps/skipped": synth.skips(2000, every=500), "loss/train": synth.loss()},
            settings={"loss_scale.window": 1000, "precision": "fp16"},
        ),
    ),
)
