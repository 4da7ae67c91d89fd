from __future__ import annotations

import pytest

from diagnose import synth
from diagnose.detectors.exact_change import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("ratio", [0.5, 0.1, 2.0, 10.0])
def test_a_jump_in_the_schedule_has_its_step_and_ratio(ratio: float) -> None:
    (found,) = [f for f in DETECTOR.detect(of(synth.with_level_shift(synth.rate(1000), at=600, ratio=ratio))) if "jump" in f.kind]
    assert found.onset.last_step == 600
    assert found.size == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize("n", [60, 120, 400, 1000])
@pytest.mark.parametrize("warmup", [0, 1, 2, 3, 4, 5, 8, 20, 50])
def test_a_warm_up_and_a_cosine_have_no_jump(n: int, warmup: int) -> None:
    warmup = min(warmup, n // 2)
    assert not [f for f in DETECTOR.detect(of(synth.rate(n, warmup=warmup))) if f.kind == "jump-in-schedule"]


def test_a_warm_up_that_ends_in_a_jump_has_one() -> None:
    steps, values = synth.rate(1000, warmup=50)
    values = values.copy()
    values[:50] *= 0.2
    (found,) = [f for f in DETECTOR.detect(of((steps, values))) if f.kind == "jump-in-schedule"]
    assert found.onset.last_step == 50
    assert found.size == pytest.approx(5.0, rel=0.01)


def test_a_rate_at_its_least_long_before_the_end() -> None:
    steps, values = synth.rate(1000)
    values = values.copy()
    values[400:] = values[-1]
    (found,) = [f for f in DETECTOR.detect(of((steps, values))) if f.kind == "early-minimum"]
    assert found.span.first_step == 400
    assert found.numbers["share"] == pytest.approx(0.6)


def test_a_constant_rate_says_nothing() -> None:
    assert not DETECTOR.detect(of(synth.constant(3e-4)))
