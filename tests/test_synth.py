from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import scipy.stats

from diagnose import synth

HEALTHY = ("loss", "norm", "step_time", "rate", "loss_scale", "noise_scale", "evals", "skips")
FAULTS = {name: f for name, f in vars(synth).items() if name.startswith("with_")}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("n", [1, 2, 3, 50, 1000])
def test_healthy_curves_are_whole_seeded_and_as_long_as_asked(name: str, n: int) -> None:
    steps, values = getattr(synth, name)(n)
    again = getattr(synth, name)(n)
    assert len(steps) == len(values) == n
    assert steps.dtype == np.int64 and values.dtype == np.float64
    assert np.isfinite(values).all() and (np.diff(steps) > 0).all()
    assert np.array_equal(steps, again[0]) and np.array_equal(values, again[1])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_leaves_its_curve_alone_and_what_lies_before_it(name: str) -> None:
    curve = synth.loss_scale(400) if name == "with_collapse" else synth.loss(400)
    kept = curve[1].copy()
    takes = inspect.signature(FAULTS[name]).parameters
    steps, values = FAULTS[name](curve, **({"at": 200} if "at" in takes else {}))
    assert np.array_equal(curve[1], kept)
    assert np.array_equal(steps, curve[0])
    assert np.array_equal(values[:200], kept[:200])
    assert not np.array_equal(values[200:], kept[200:])


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_the_first_or_after_the_last_step_raises_nothing(name: str) -> None:
    if "at" not in inspect.signature(FAULTS[name]).parameters:
        pytest.skip("acts on the whole curve")
    for at in (0, 9, 10, 1000):
        _, values = FAULTS[name](synth.loss(10), at=at)
        assert len(values) == 10


def test_noise_has_the_tails_and_the_correlation_that_it_states() -> None:
    raw = np.concatenate([synth.noise(5000, seed=s) for s in range(20)])
    assert np.std(raw) == pytest.approx(1.0, abs=0.03)
    assert scipy.stats.skew(raw) == pytest.approx(0.8, abs=0.25)
    assert scipy.stats.kurtosis(raw) == pytest.approx(3.0, abs=1.2)
    y = synth.noise(20_000, phi=0.6)
    assert np.corrcoef(y[1:], y[:-1])[0, 1] == pytest.approx(0.6, abs=0.03)
    assert np.std(y) == pytest.approx(1.0, abs=0.05)


def test_layers_lose_what_they_are_told_on_the_way_to_the_input() -> None:
    made = synth.layers(count=6, n=2000, per_layer=0.5)
    levels = [math.log(float(np.median(made[f"grad_norm/layer/{k}"][1]))) for k in range(6)]
    assert np.diff(levels) == pytest.approx([0.5] * 5, abs=0.02)


def test_joined_curves_may_go_back() -> None:
    steps, values = synth.joined(synth.loss(10), synth.loss(10, start=5))
    assert list(steps[9:12]) == [9, 5, 6]
    assert len(values) == 20


def test_a_loss_falls_from_first_to_last() -> None:
    _, values = synth.loss(4000, first=9.0, last=2.0, width=0.0)
    assert values[0] == pytest.approx(9.0)
    assert values[-1] == pytest.approx(2.0)
    assert (np.diff(values) < 0).all()
