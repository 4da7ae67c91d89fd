from __future__ import annotations

import math

import numpy as np
import pytest

from diagnose import synth
from diagnose.detectors.depth_profile import DETECTOR
from diagnose.model import Signal
from diagnose.testing import of


def layers(**more: float) -> list[Signal]:
    return [of(curve, name=name) for name, curve in synth.layers(**more).items()]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("per_layer", [1.0, 2.0, -1.0])
def test_the_slope_from_output_to_input(seed: int, per_layer: float) -> None:
    (found,) = DETECTOR.detect_group(layers(per_layer=per_layer, seed=seed))
    assert found.numbers["lambda_total"] == pytest.approx(-11 * per_layer, rel=0.05)
    assert found.direction == ("down" if per_layer > 0 else "up")
    assert found.size == pytest.approx(math.exp(11 * per_layer), rel=0.8)


def test_even_norms_and_moderate_slopes_are_healthy() -> None:
    for seed in range(30):
        assert not DETECTOR.detect_group(layers(seed=seed))
        assert not DETECTOR.detect_group(layers(seed=seed, per_layer=0.4))  # e^4.4 = 81 from end to end


def test_a_layer_of_zeros_is_dead_and_the_others_are_not() -> None:
    made = synth.layers()
    steps, values = made["grad_norm/layer/4"]
    made["grad_norm/layer/4"] = (steps, np.where(steps >= 120, 0.0, values))
    (found,) = DETECTOR.detect_group([of(c, name=n) for n, c in made.items()])
    assert (found.kind, found.signal) == ("dead-layer", "grad_norm/layer/4")
    assert abs(found.span.first_step - 120) <= 1
    assert found.numbers["zero"] == 1.0
    assert found.numbers["alive_below"] == 4.0


def test_norms_below_single_precision_are_counted_from_the_output() -> None:
    (found,) = DETECTOR.detect_group(layers(count=12, per_layer=1.5))
    small = [12 - k for k in range(12) if 0.1 * math.exp(-1.5 * (11 - k)) < 1e-7]
    assert found.numbers["below_1e7"] == len(small)
    assert found.numbers["below_1e7_from"] == min(small)
