from __future__ import annotations

import math

import pytest

from diagnose import synth
from diagnose.detectors.growth import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
def test_onset_and_rate_of_an_explosion(seed: int, rate: float) -> None:
    found = DETECTOR.detect(of(synth.with_explosion(synth.norm(1000, seed=seed), at=700, rate=rate), good="none"))
    (growth,) = [f for f in found if f.kind == "growth"]
    assert abs(growth.onset.last_step - 700) <= 1 + 0.5 / rate
    assert growth.numbers["rate"] == pytest.approx(rate, rel=0.25)
    assert growth.numbers["doubling_steps"] == pytest.approx(math.log(2) / growth.numbers["rate"])
    assert growth.numbers["to_end"] == 1.0


def test_the_rate_is_per_step_when_every_tenth_is_logged() -> None:
    found = DETECTOR.detect(of(synth.with_explosion(synth.norm(1000, every=10), at=7000, rate=0.02), good="none"))
    (growth,) = [f for f in found if f.kind == "growth"]
    assert growth.numbers["rate"] == pytest.approx(0.02, rel=0.25)


@pytest.mark.parametrize("seed", range(8))
def test_a_rise_that_stays_is_a_divergence_with_its_size(seed: int) -> None:
    found = DETECTOR.detect(of(synth.with_divergence(synth.loss(1000, seed=seed), at=600, rise=0.5)))
    (rise,) = [f for f in found if f.kind == "divergence"]
    assert 570 <= rise.onset.last_step <= 640
    assert rise.numbers["rise"] == pytest.approx(0.5, abs=0.06)
    assert rise.span.last_step == 999


def test_a_step_has_its_onset_at_the_step() -> None:
    found = DETECTOR.detect(of(synth.with_level_shift(synth.loss(1000), at=800, ratio=1.6)))
    (rise,) = [f for f in found if f.kind == "divergence"]
    assert abs(rise.onset.last_step - 800) <= 1
    assert rise.numbers["abrupt"] > 0.5


def test_a_norm_that_settles_higher_is_no_divergence_and_what_comes_back_is_none() -> None:
    assert not DETECTOR.detect(of(synth.with_drift(synth.norm(1000), total=0.8), good="none"))
    back = synth.with_level_shift(synth.loss(1000), at=500, ratio=1.5, until=700)
    assert not [f for f in DETECTOR.detect(of(back)) if f.kind == "divergence"]
