from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose import synth
from diagnose.detectors.nonfinite import DETECTOR
from diagnose.testing import of, signal


@pytest.mark.parametrize(("value", "name"), [(math.nan, "nan"), (math.inf, "posinf"), (-math.inf, "neginf")])
def test_what_and_how_many_and_since_when(value: float, name: str) -> None:
    (found,) = DETECTOR.detect(of(synth.with_nonfinite(synth.loss(1000, every=10), at=6000, points=5, value=value)))
    assert (found.span.first_step, found.span.last_step) == (6000, 6040)
    assert (found.onset.first_step, found.onset.last_step) == (5991, 6000)  # it happened after the last good point
    assert found.numbers[name] == found.numbers["longest"] == found.size == 5.0
    assert found.numbers["to_end"] == found.numbers["first"] == 0.0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([1.0, 2.0, math.nan, math.inf, -math.inf]), min_size=1, max_size=60))
def test_every_odd_point_lies_in_exactly_one_stretch(values: list[float]) -> None:
    found = DETECTOR.detect(signal(values))
    bad = ~np.isfinite(values)
    covered = np.zeros(len(values), int)
    for f in found:
        covered[f.span.first_step : f.span.last_step + 1] += 1
    assert (covered[bad] == 1).all() and covered.max(initial=0) <= 1
    assert sum(f.size for f in found) == bad.sum()
    for f in found:  # good points inside come at most two in a row
        inside = bad[f.span.first_step : f.span.last_step + 1]
        assert inside[0] and inside[-1]
        assert "000" not in "".join("1" if b else "0" for b in inside)
