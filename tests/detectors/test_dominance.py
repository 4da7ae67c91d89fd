from __future__ import annotations

import numpy as np
import pytest

from diagnose import synth
from diagnose.detectors.dominance import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(6))
def test_a_ratio_above_one_in_every_window(seed: int) -> None:
    curve = synth.norm(2000, level=3.0, seed=seed)
    (found,) = DETECTOR.detect(of(curve))
    assert found.numbers["share"] == float(np.mean(curve[1] > 1))
    assert found.size == float(np.median(curve[1]))


def test_one_quiet_window_is_enough_to_be_no_fault() -> None:
    steps, values = synth.norm(2000, level=3.0)
    values = values.copy()
    values[500:1000] = 0.5
    assert not DETECTOR.detect(of((steps, values)))
    assert not DETECTOR.detect(of(synth.norm(2000, level=0.8)))
