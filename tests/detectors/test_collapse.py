from __future__ import annotations

import numpy as np
import pytest

from diagnose import synth
from diagnose.detectors.collapse import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("left", [0.0, 1e-4, np.nan])
def test_what_falls_to_nothing_and_stays_there(seed: int, left: float) -> None:
    steps, values = synth.noise_scale(1000, seed=seed)
    values = values.copy()
    values[600:] *= left
    (found,) = DETECTOR.detect(of((steps, values)))
    assert found.onset.last_step == 600
    assert found.numbers["share"] == pytest.approx(0.4)
    assert found.numbers["before"] == pytest.approx(float(np.median(values[:600])))


def test_an_estimate_around_zero_has_collapsed() -> None:
    steps, values = synth.noise_scale(1000)
    (found,) = DETECTOR.detect(of((steps, np.where(steps % 2, values, -values))))
    assert found.onset.first_step == 0


def test_a_dip_that_comes_back_has_not() -> None:
    steps, values = synth.noise_scale(1000)
    values = values.copy()
    values[500:600] = 0.0
    assert not DETECTOR.detect(of((steps, values)))
