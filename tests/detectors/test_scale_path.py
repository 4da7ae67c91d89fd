from __future__ import annotations

import time

import numpy as np
import pytest

from diagnose import synth
from diagnose.detectors.scale_path import DETECTOR
from diagnose.model import Finding, Signal
from diagnose.testing import of


def falls(signal: Signal, *, calibration: bool = False) -> list[Finding]:
    return [f for f in DETECTOR.detect(signal) if f.kind == "scale-collapse" and f.numbers["calibration"] == calibration]


@pytest.mark.parametrize("settled", [2.0**k for k in range(9, 15)])
@pytest.mark.parametrize("halvings", [5, 8])
def test_a_collapse_is_found_at_its_step_with_its_halvings(settled: float, halvings: int) -> None:
    (found,) = falls(of(synth.with_collapse(synth.loss_scale(1000, settled=settled), at=600, halvings=halvings)))
    assert abs(found.onset.last_step - 600) <= 1
    assert found.numbers["halvings"] == pytest.approx(halvings, abs=1)
    assert found.numbers["to_end"] == 1.0


@pytest.mark.parametrize("settled", [2.0**k for k in range(6, 16)])
@pytest.mark.parametrize("window", [50, 200, 1000])
def test_a_healthy_scale_only_calibrates(settled: float, window: int) -> None:
    assert not falls(of(synth.loss_scale(3000, settled=settled, window=window)))


def test_the_first_search_is_called_a_calibration() -> None:
    (found,) = falls(of(synth.loss_scale(1000, first=2.0**32, settled=2.0**12)), calibration=True)
    assert found.onset.first_step == 0
    assert found.numbers["halvings"] >= 18


def test_a_slow_fall_begins_where_it_left_its_level_and_is_told_once() -> None:
    values = np.full(2000, 2.0**16)
    for k in range(1, 9):  # a halving each 60 steps: never four within fifty
        values[900 + 60 * k :] /= 2
    (found,) = falls(of((np.arange(2000), values)))
    assert 955 <= found.onset.first_step <= 960
    assert found.numbers["halvings"] == 8.0


def test_a_scale_pinned_to_one_is_at_its_floor() -> None:
    found = DETECTOR.detect(of(synth.with_collapse(synth.loss_scale(1000), at=600, halvings=30)))
    (floor,) = [f for f in found if f.kind == "scale-floor"]
    assert 600 < floor.span.first_step <= 630
    assert floor.numbers["floor"] == 1.0


@pytest.mark.parametrize("make", [lambda n: np.tile([1024.0, 2048.0], n // 2), lambda n: np.linspace(1e9, 1.0, n)])
def test_a_million_points_take_seconds(make) -> None:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    DETECTOR.detect(of((np.arange(1_000_000), make(1_000_000))))
    assert time.perf_counter() - start < 5  # half a second; a quadratic search takes hours
