from __future__ import annotations

import pytest

from diagnose import synth
from diagnose.detectors.period import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("period", [4, 7, 33, 50, 180])
@pytest.mark.parametrize("every", [1, 10])
def test_the_period_is_measured_in_steps(period: int, every: int) -> None:
    for seed in range(3):
        curve = synth.with_period(synth.loss(2000, seed=seed, every=every), period=period * every, amplitude=0.05)
        (found,) = DETECTOR.detect(of(curve))
        assert found.kind == "period"
        assert found.numbers["period_steps"] == pytest.approx(period * every, rel=0.03)
        assert found.size == pytest.approx(0.05, rel=0.4)


@pytest.mark.parametrize("seed", range(5))
def test_values_by_turns_are_an_alternation(seed: int) -> None:
    (found,) = DETECTOR.detect(of(synth.with_alternation(synth.loss(1000, seed=seed), amplitude=0.05)))
    assert found.kind == "alternation"
    assert found.numbers["period_steps"] == 2.0
    assert found.size == pytest.approx(0.05, rel=0.4)


def test_an_oscillation_far_inside_the_noise_is_none() -> None:
    assert not DETECTOR.detect(of(synth.with_period(synth.loss(2000, width=0.1), period=50, amplitude=0.004)))


def test_fewer_than_five_periods_are_a_wave_and_no_oscillation() -> None:
    assert not DETECTOR.detect(of(synth.with_period(synth.loss(1000), period=400, amplitude=0.1)))


@pytest.mark.parametrize("phi", [0.3, 0.6, 0.9])
def test_correlated_noise_has_no_period(phi: float) -> None:
    """The null hypothesis itself: AR(1) noise, 60 runs a φ, at most one alarm; two where φ is near the bound of its estimate."""
    alarms = sum(bool(DETECTOR.detect(of(synth.norm(1000, phi=phi, seed=seed), good="none"))) for seed in range(60))
    assert alarms <= (1 if phi < 0.9 else 2)
