from __future__ import annotations

import numpy as np
import pytest

from diagnose import synth
from diagnose.detectors.stalls import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("every", [20, 50, 100])
@pytest.mark.parametrize("ratio", [2.5, 8.0])
def test_slow_steps_at_a_regular_distance(every: int, ratio: float) -> None:
    for seed in range(4):
        (found,) = DETECTOR.detect(of(synth.with_stalls(synth.step_time(1000, seed=seed), every=every, ratio=ratio)))
        assert found.numbers["period_steps"] == every
        assert found.numbers["ratio"] == pytest.approx(ratio, rel=0.1)
        assert found.numbers["share"] == pytest.approx((ratio - 1) / (every + ratio - 1), rel=0.25)


def test_slow_steps_at_random_are_none() -> None:
    for seed in range(20):
        steps, values = synth.step_time(1000, seed=seed)
        slow = np.random.default_rng(seed).random(1000) < 0.02
        assert not DETECTOR.detect(of((steps, np.where(slow, 4 * values, values))))
