from __future__ import annotations

import pytest

from diagnose import synth
from diagnose.detectors.eval_minimum import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("rise", [0.05, 0.3])
def test_the_minimum_and_the_rise_since(seed: int, rise: float) -> None:
    (found,) = DETECTOR.detect(of(synth.with_rise_after_minimum(synth.evals(seed=seed), at=1500, rise=rise)))
    assert abs(found.span.first_step - 1500) <= 200
    assert found.numbers["rise"] == pytest.approx(rise, abs=0.2 * rise + 0.01)
    assert found.numbers["minimum"] <= found.numbers["last"]


def test_one_lucky_point_is_no_minimum() -> None:
    steps, values = synth.evals()
    values = values.copy()
    values[10] *= 0.5
    assert not DETECTOR.detect(of((steps, values)))


def test_nothing_is_said_of_what_should_rise() -> None:
    assert not DETECTOR.detect(of(synth.with_rise_after_minimum(synth.evals(), at=1500), good="up"))
