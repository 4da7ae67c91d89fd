from __future__ import annotations

import numpy as np
import pytest

from diagnose import synth
from diagnose.detectors.spike import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("every", [1, 10])
def test_a_spike_is_found_at_its_step_and_its_size_and_return_are_measured(seed: int, every: int) -> None:
    curve = synth.with_spike(synth.loss(1000, seed=seed, every=every), at=600 * every, ratio=2.0, width=20)
    (found,) = [f for f in DETECTOR.detect(of(curve)) if f.kind == "spike"]
    assert abs(found.onset.last_step - 600 * every) <= every
    truth = float(np.max(curve[1][598:620]) / np.median(curve[1][400:600]))
    assert found.numbers["ratio"] == pytest.approx(truth, rel=0.02)
    assert found.numbers["base"] == pytest.approx(float(np.median(curve[1][400:600])), rel=0.02)
    assert 3 * every <= found.numbers["recovered_after"] <= 40 * every


@pytest.mark.parametrize("seed", range(8))
def test_one_point_far_out_is_a_jump_and_no_spike(seed: int) -> None:
    found = DETECTOR.detect(of(synth.with_jump(synth.norm(1000, seed=seed), at=600, ratio=5.0), good="none"))
    assert max(found, key=lambda f: f.strength).kind == "jump"
    assert max(found, key=lambda f: f.strength).span.first_step == 600


def test_a_level_that_never_comes_back_has_not_recovered() -> None:
    (found,) = [f for f in DETECTOR.detect(of(synth.with_level_shift(synth.loss(1000), at=900, ratio=2.0))) if f.kind == "spike"]
    assert found.numbers["recovered_after"] == np.inf
    assert found.span.last_step == 999


def test_two_spikes_far_apart_are_two() -> None:
    curve = synth.with_spike(synth.with_spike(synth.loss(2000), at=800), at=1500)
    assert sorted(f.onset.last_step for f in DETECTOR.detect(of(curve)) if f.kind == "spike") == pytest.approx([800, 1500], abs=1)
