from __future__ import annotations

import pytest

from diagnose import synth
from diagnose.detectors.plateau import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_that_stops_falling_is_flat_since_then(seed: int) -> None:
    curve = synth.with_plateau(synth.loss(1000, seed=seed), at=200)
    (found,) = DETECTOR.detect(of(curve))
    assert abs(found.numbers["since"] - 200) <= 42  # a block of a twenty-fourth of the run
    assert found.span.last_step == 999
    assert found.numbers["never_moved"] == 0.0


def test_flat_from_the_start_never_moved() -> None:
    (found,) = DETECTOR.detect(of(synth.with_plateau(synth.loss(1000), at=0)))
    assert found.numbers["never_moved"] == 1.0
    assert found.numbers["share"] == 1.0


def test_an_accuracy_is_flat_when_it_stops_rising() -> None:
    steps, values = synth.with_plateau(synth.loss(1000), at=300)
    (found,) = DETECTOR.detect(of((steps, -values), multiplicative=False, good="up"))
    assert found.numbers["level"] < 0
    assert not DETECTOR.detect(of((steps, steps / 1000.0), multiplicative=False, good="up"))
