"""What holds for every detector: `diagnose.testing.check_detector`, and the same promises on inputs that are searched for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diagnose import metrics, registry, synth
from diagnose.model import Floats, Signal, Steps
from diagnose.testing import SHIFTABLE, UNITLESS, AnyDetector, check_detector, check_on, findings, of, signal

ALL = sorted(registry.detectors(), key=lambda d: d.shape)
SINGLE = [d for d in ALL if hasattr(d, "detect")]
by_shape = pytest.mark.parametrize("detector", ALL, ids=lambda d: d.shape)
searched = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

any_float = st.floats(width=64) | st.sampled_from([0.0, -0.0, 5e-324, -5e-324, 1e-310, 1.0, 1e308, -1e308, np.inf, -np.inf, np.nan])
points = st.lists(any_float, max_size=3)  # a signal of no, one, two or three points
# longer ones are pieces: one value held, a ramp, noise, or two values by turns; between them steps of any height
piece = st.tuples(st.sampled_from(["held", "ramp", "noise", "turns"]), any_float, any_float, st.integers(1, 120))
pieces = st.lists(piece, min_size=1, max_size=5)


def curve_of(parts: list[tuple[str, float, float, int]]) -> Floats:
    made = []
    with np.errstate(all="ignore"):
        for k, (what, a, b, n) in enumerate(parts):
            if what == "held":
                made.append(np.full(n, a))
            elif what == "ramp":
                made.append(a + (b - a) * np.linspace(0, 1, n))
            elif what == "noise":
                made.append(a + b * np.random.default_rng(k).standard_normal(n))
            else:
                made.append(np.where(np.arange(n) % 2, a, b))
    return np.concatenate(made)


@st.composite
def signals(draw: st.DrawFn) -> Signal:
    values = np.array(draw(points), np.float64) if draw(st.integers(0, 4)) == 0 else curve_of(draw(pieces))
    every = draw(st.sampled_from([1, 1, 10, 1000]))
    dice = np.random.default_rng(draw(st.integers(0, 3)))
    gaps = dice.integers(1, 50, len(values)) if draw(st.booleans()) else np.full(len(values), every)
    steps = draw(st.sampled_from([0, 1, -(10**9), 2**53])) + np.cumsum(gaps, dtype=np.int64)
    return signal(
        values,
        steps=steps,
        multiplicative=draw(st.booleans()),
        good=draw(st.sampled_from(["down", "up", "none"])),
        resolution=draw(st.sampled_from([0.0, 1e-4, 1.0])),
        settled_from=draw(st.none() | st.integers(0, 500)),
    )


@by_shape
def test_keeps_the_promises_on_faulty_and_nasty_curves(detector: AnyDetector) -> None:
    check_detector(detector)


@by_shape
@searched
@given(data=st.data())
def test_survives_any_floats_and_keeps_its_input_and_its_contract(detector: AnyDetector, data: st.DataObject) -> None:
    one = data.draw(signals())
    if detector in SINGLE:
        check_on(detector, one)
        return
    others = [data.draw(signals()) for _ in range(data.draw(st.integers(0, 4)))]
    check_on(detector, [replace(s, name=f"grad_norm/layer/{k}") for k, s in enumerate([one, *others])])


FAULTS: dict[str, Any] = {
    "healthy": lambda c: c,
    "spike": lambda c: synth.with_spike(c, at=250),
    "explosion": lambda c: synth.with_explosion(c, at=300, most=1e4),
    "shift": lambda c: synth.with_level_shift(c, at=200, ratio=1.3),
    "period": lambda c: synth.with_period(c, period=20, amplitude=0.08),
    "drift": lambda c: synth.with_drift(c, total=1.2),
    "NaN": lambda c: synth.with_nonfinite(c, at=300, points=9),
}


def spans(found: Any, shift: int = 0) -> list[tuple[Any, ...]]:
    ends = ("span", "onset")
    steps = [[f.kind, *(getattr(getattr(f, e), w) + shift for e in ends for w in ("first_step", "last_step"))] for f in found]
    return sorted(map(tuple, steps))


@pytest.mark.parametrize("detector", SINGLE, ids=lambda d: d.shape)
@settings(searched, max_examples=25)
@given(fault=st.sampled_from(sorted(FAULTS)), seed=st.integers(0, 10**6), unit=st.integers(-30, 30), shift=st.integers(-(10**12), 10**12))
def test_neither_the_unit_nor_the_first_step_matters(detector: Any, fault: str, seed: int, unit: int, shift: int) -> None:
    steps, values = FAULTS[fault](synth.norm(400, seed=seed))
    for multiplicative in (True, False):
        here = of((steps, values), multiplicative=multiplicative)
        base = findings(detector, here)
        assert spans(findings(detector, replace(here, steps=still(steps + shift)))) == spans(base, shift)
        scaled = values * 2.0**unit  # exact in floating point
        if detector.shape in (UNITLESS if multiplicative else ()):
            assert spans(findings(detector, of((steps, scaled), multiplicative=multiplicative))) == spans(base)
        if detector.shape in SHIFTABLE and not multiplicative:
            moved = 2.0 * np.round(values * 2**30) / 2**30 + 8.0  # multiples of 2^-29: adding 8 rounds nothing
            kept = np.round(values * 2**30) / 2**30
            assert spans(findings(detector, of((steps, moved), multiplicative=False))) == spans(
                findings(detector, of((steps, kept), multiplicative=False))
            )


def still(steps: Steps) -> Steps:
    steps.flags.writeable = False
    return steps


HEALTHY: dict[str, Any] = {
    "loss/train": lambda n, s: synth.loss(n, seed=s, width=(0.005, 0.02, 0.05)[s % 3]),
    "grad_norm": lambda n, s: synth.norm(n, seed=s, width=(0.06, 0.12, 0.25)[s % 3]),
    "time/step": lambda n, s: synth.step_time(n, seed=s),
    "noise_scale": lambda n, s: synth.noise_scale(n, seed=s),
    "loss/eval": lambda n, s: synth.evals(max(n // 20, 10), seed=s),
    "lr": lambda n, s: synth.rate(n, warmup=1 + 7 * s % (n // 5)),
    "loss_scale": lambda n, s: synth.loss_scale(n, settled=2.0 ** (8 + s % 8), window=(50, 200, 1000)[s % 3]),
}


def false_alarms(metric: str, n: int, runs: int) -> dict[str, int]:
    """In how many of so many healthy curves each kind is found; what the pipe knows to be no alarm is left out."""
    known = metrics.metric(metric)
    counts: dict[str, int] = {}
    for seed in range(runs):
        one = of(HEALTHY[metric](n, seed), name=metric, multiplicative=known.multiplicative, good=known.good)
        kinds = set()
        for detector in SINGLE:
            for finding in detector.detect(one) if detector.shape in known.shapes else ():
                first_descent = metric == "grad_norm" and finding.onset.first_step < n // 10 and finding.direction == "down"
                if finding.kind != "jump" and not first_descent and not finding.numbers.get("calibration"):
                    kinds.add(finding.kind)
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    return counts


@pytest.mark.parametrize("n", [150, 600, 1500])
@pytest.mark.parametrize("metric", HEALTHY)
def test_healthy_curves_raise_no_more_than_one_alarm_in_fifty_runs(metric: str, n: int) -> None:
    """Of the shapes that the catalogue asks for, in 50 runs each; noise with the tails of real per-step noise.

    Two exceptions are the statistics of short or noisy runs: a plateau is a remark until a rule weighs it, and the norm's heavy
    tails put three of five points above four widths once in some ten thousand points.
    """
    most = {"plateau": 12 if n < 200 else 3, "spike": 3}
    counts = false_alarms(metric, n, 50)
    assert {k: c for k, c in counts.items() if c > most.get(k, 1)} == {}
