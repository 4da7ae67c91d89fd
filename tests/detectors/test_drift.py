from __future__ import annotations

import pytest

from diagnose import synth
from diagnose.detectors.drift import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("total", [1.5, -1.0])
def test_a_slow_trend_is_measured_over_the_whole_run(seed: int, total: float) -> None:
    (found,) = DETECTOR.detect(of(synth.with_drift(synth.noise_scale(1000, seed=seed, width=0.1), total=total), good="none"))
    assert found.direction == ("up" if total > 0 else "down")
    assert found.numbers["total"] == pytest.approx(total * 15 / 16, abs=0.15)  # from the first block's middle to the last one's
    assert found.numbers["p"] < 0.01


def test_a_trend_in_the_good_direction_is_progress() -> None:
    assert not DETECTOR.detect(of(synth.loss(1000)))
    assert not DETECTOR.detect(of(synth.with_drift(synth.step_time(1000), total=-0.5)))
    assert DETECTOR.detect(of(synth.with_drift(synth.step_time(1000), total=0.5)))


def test_a_single_step_is_left_to_level_shift() -> None:
    assert not DETECTOR.detect(of(synth.with_level_shift(synth.step_time(1000), at=500, ratio=2.0)))


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_correlated_noise_has_no_trend(phi: float) -> None:
    alarms = sum(bool(DETECTOR.detect(of(synth.noise_scale(600, phi=phi, seed=seed), good="none"))) for seed in range(80))
    assert alarms <= (1 if phi < 0.9 else 4)
