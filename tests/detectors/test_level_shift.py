from __future__ import annotations

import numpy as np
import pytest
import ruptures

from diagnose import synth
from diagnose.detectors.level_shift import DETECTOR
from diagnose.testing import of


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ratio", [1.1, 1.5, 0.8])
def test_a_step_of_the_step_time_is_found_to_the_point(seed: int, ratio: float) -> None:
    found = DETECTOR.detect(of(synth.with_level_shift(synth.step_time(1000, seed=seed), at=500, ratio=ratio)))
    best = max(found, key=lambda f: f.strength)
    assert abs(best.span.first_step - 500) <= 1
    assert best.onset.first_step <= 500 <= best.onset.last_step + 1
    assert best.size == pytest.approx(ratio, rel=0.02)
    assert best.direction == ("up" if ratio > 1 else "down")


@pytest.mark.parametrize("seed", range(6))
def test_agrees_with_an_exact_search_by_dynamic_programming(seed: int) -> None:
    """ruptures' Dynp minimises the squared error over all sets of two changepoints; it is told how many there are."""
    dice = np.random.default_rng(seed)
    first, second = int(dice.integers(80, 160)), int(dice.integers(240, 320))
    values = 5.0 + 0.2 * synth.noise(400, seed=seed)
    values[first:second] += 1.0
    values[second:] += 2.5
    exact = ruptures.Dynp(model="l2", min_size=3, jump=1).fit(values).predict(n_bkps=2)[:-1]
    found = sorted(f.span.first_step for f in DETECTOR.detect(of((np.arange(400), values), multiplicative=False, good="none")))
    assert found == pytest.approx(exact, abs=2)
    assert found == pytest.approx([first, second], abs=2)


def test_a_level_that_comes_back_returns() -> None:
    found = DETECTOR.detect(of(synth.with_level_shift(synth.step_time(1000), at=400, ratio=1.4, until=600)))
    first = min(found, key=lambda f: f.span.first_step)
    assert (first.span.first_step, first.numbers["returns"]) == (400, 1.0)


def test_a_shift_smaller_than_three_percent_is_not_worth_a_word() -> None:
    assert not DETECTOR.detect(of(synth.with_level_shift(synth.step_time(2000), at=1000, ratio=1.02)))


def test_progress_is_no_shift() -> None:
    steps = np.arange(1000)
    assert not DETECTOR.detect(of((steps, np.exp(-steps / 400.0 + 0.02 * synth.noise(1000)))))
