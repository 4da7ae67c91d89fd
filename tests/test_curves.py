"""The arithmetic against slow, obvious versions of the same."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.signal
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diagnose import curves, synth
from diagnose.testing import nasty_signals, signal

searched = settings(max_examples=100, deadline=None, derandomize=True)
plain = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))
values = arrays(np.float64, st.integers(1, 80), elements=plain)


@searched
@given(values)
def test_spread_and_noise_are_medians_of_distances(y: np.ndarray) -> None:
    middle = float(np.median(y))
    slow = 1.4826 * float(np.median([abs(v - middle) for v in y])) if len(y) > 1 else 0.0
    assert curves.spread(y) == pytest.approx(slow)
    if len(y) > 2:
        assert curves.noise(y) == pytest.approx(curves.spread(np.array([b - a for a, b in itertools.pairwise(y)])) / math.sqrt(2))


@searched
@given(values, st.integers(1, 30))
def test_medians_before_look_at_the_window_before_each_point(y: np.ndarray, window: int) -> None:
    centre, width = curves.medians_before(y, window)
    for i in range(len(y)):
        part = y[max(0, i - window) : i] if i else y[:1]
        assert centre[i] == pytest.approx(np.median(part))
        assert width[i] == pytest.approx(1.4826 * np.median(np.abs(part - np.median(part))))
    running = curves.running_median(y, window)
    assert running == pytest.approx([np.median(y[max(0, i - window + 1) : i + 1]) for i in range(len(y))])


def test_a_long_curve_is_evaluated_on_a_stride_that_moves_a_median_little(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.cumsum(synth.noise(3000)) / 50
    exact, _ = curves.medians_before(y, 100)
    monkeypatch.setattr(curves, "MOST_WINDOWS", 500)
    held, _ = curves.medians_before(y, 100)
    assert held[:100] == pytest.approx(exact[:100])
    for i in range(100, 3000):
        assert held[i] in exact[max(0, i - 6) : i + 1]  # ceil(2900 / 500) = 6 points at most


@searched
@given(values, st.data())
def test_highest_is_the_maximum_of_each_window(y: np.ndarray, data: st.DataObject) -> None:
    starts = np.array(data.draw(st.lists(st.integers(0, len(y) - 1), max_size=20)), np.int64)
    ends = np.array([data.draw(st.integers(a + 1, len(y))) for a in starts], np.int64)
    assert list(curves.highest(y, starts, ends)) == [max(y[a:b]) for a, b in zip(starts, ends, strict=True)]


@searched
@given(arrays(np.float64, st.integers(2, 60), elements=plain))
def test_the_slope_is_scipys_theil_sen(y: np.ndarray) -> None:
    x = np.arange(len(y), dtype=float)
    pairs = [(y[j] - y[i]) / (x[j] - x[i]) for i in range(len(y)) for j in range(i + 1, len(y))]
    assert curves.slope_of(x, y) == pytest.approx(float(np.median(pairs)), abs=1e-9)
    assert curves.slope_of(x, y) == pytest.approx(scipy.stats.theilslopes(y, x).slope, abs=1e-9)


@searched
@given(arrays(np.float64, st.integers(4, 40), elements=st.integers(-5, 5).map(float)))
def test_mann_kendall_counts_pairs_and_corrects_for_ties(y: np.ndarray) -> None:
    n = len(y)
    s = sum(int(y[j] > y[i]) - int(y[j] < y[i]) for i in range(n) for j in range(i + 1, n))
    groups = [list(y).count(v) for v in set(y)]
    variance = (n * (n - 1) * (2 * n + 5) - sum(t * (t - 1) * (2 * t + 5) for t in groups)) / 18
    slow = 1.0 if s == 0 or variance == 0 else 2 * scipy.stats.norm.sf((abs(s) - 1) / math.sqrt(variance))
    assert curves.mann_kendall(y) == pytest.approx(slow, abs=1e-12)


def test_mann_kendall_is_close_to_kendalls_exact_p() -> None:
    for seed in range(20):
        y = np.random.default_rng(seed).standard_normal(20) + 0.1 * seed * np.arange(20) / 20
        exact = scipy.stats.kendalltau(np.arange(20), y, method="exact").pvalue
        assert curves.mann_kendall(y) == pytest.approx(exact, rel=0.25, abs=0.01)


@searched
@given(arrays(np.float64, st.integers(6, 40), elements=plain))
def test_step_or_ramp_tries_every_step(y: np.ndarray) -> None:
    n = len(y)
    fit = np.polyval(np.polyfit(np.arange(n), y, 1), np.arange(n))
    line = float(np.sum((y - fit) ** 2))
    step = min(float(np.var(y[:k]) * k + np.var(y[k:]) * (n - k)) for k in range(1, n))
    scale = float(np.var(y)) * n
    if min(line, step) > 1e-9 * scale > 0:
        slow = n * math.log(step / n) + 3 * math.log(n) - n * math.log(line / n) - 2 * math.log(n)
        assert curves.step_or_ramp(y) == pytest.approx(slow, abs=1e-3 * n)


def test_the_broken_stick_costs_no_more_than_a_search_over_all_corners_and_slopes() -> None:
    for seed in range(15):
        dice = np.random.default_rng(seed)
        n, corner = 40, int(dice.integers(5, 33))
        y = np.maximum(0.0, 0.2 * (np.arange(n) - corner)) + 0.1 * synth.noise(n, seed=seed)
        c, b = curves.broken_stick(y)
        cost = stick_cost(y, c, b)
        slow = min(
            stick_cost(y, k, (y[j] - float(np.median(y[: k + 1]))) / (j - k))
            for k in range(1, n - 1)
            for j in range(k + 1, n)
            if y[j] > y[k]
        )
        assert cost <= slow + 1e-9
        assert abs(c - corner) <= 3


def stick_cost(y: np.ndarray, c: int, b: float) -> float:
    a = float(np.median(y[: c + 1]))
    return sum(abs(y[t] - a - (b * (t - c) if t > c else 0.0)) for t in range(len(y))) if b > 0 else math.inf


@searched
@given(arrays(np.float64, st.integers(4, 60), elements=plain))
def test_refined_finds_the_split_of_least_squares(y: np.ndarray) -> None:
    z = curves.winsorised(y)
    cost = [float(np.var(z[:k]) * k + np.var(z[k:]) * (len(z) - k)) for k in range(1, len(z))]
    at = curves.refined(y, len(y) // 2, len(y))
    assert cost[at - 1] <= min(cost) + 1e-6 * (1 + abs(min(cost)))


@searched
@given(arrays(np.float64, st.integers(8, 100), elements=plain))
def test_the_spectrum_is_scipys_periodogram(y: np.ndarray) -> None:
    f, power = curves.spectrum(y)
    f2, density = scipy.signal.periodogram(y, detrend="constant", scaling="density")
    assert f == pytest.approx(f2[1:])
    doubled = np.full(len(f), 2.0)  # one-sided densities count each line twice, but for the one at 1/2
    if len(y) % 2 == 0:
        doubled[-1] = 1.0
    assert power * doubled == pytest.approx(density[1:], abs=1e-6 * (1 + density.max()))


def test_autocorrelations_are_sums_of_products() -> None:
    y = synth.noise(300, phi=0.6)
    centred = y - y.mean()
    slow = [float(sum(centred[: 300 - k] * centred[k:])) / float(sum(centred**2)) for k in range(20)]
    assert curves.autocorrelations(y, 20) == pytest.approx(slow)
    assert curves.autocorrelation(y) == pytest.approx(slow[1])
    assert curves.autocorrelation(np.array([1.0, -1.0] * 50)) == 0.0
    assert curves.autocorrelation(np.arange(1000.0)) == 0.95


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.8])
def test_p_over_ar1_is_a_p_value(phi: float) -> None:
    """Under the null, p < q in no more than about q of the runs: at 5 % of 300 runs, at most 9 %."""
    ps = [curves.peak_over_ar1(synth.noise(300, phi=phi, seed=seed))[1] for seed in range(300)]
    assert np.mean(np.array(ps) < 0.05) <= 0.09
    assert all(0.0 <= p <= 1.0 for p in ps)


def test_a_line_is_found_with_its_period_and_amplitude() -> None:
    for period in (8, 20, 50):
        y = synth.noise(1000, phi=0.5) + 1.5 * np.sin(2 * np.pi * np.arange(1000) / period)
        found, p, amplitude = curves.peak_over_ar1(y)
        assert found == pytest.approx(period, rel=0.02)
        assert p < 1e-6
        assert amplitude == pytest.approx(1.5, rel=0.2)


@searched
@given(arrays(np.float64, st.integers(1, 200), elements=st.floats(width=64)), st.integers(2, 50))
def test_thinning_keeps_ends_extremes_and_what_is_not_finite(y: np.ndarray, most: int) -> None:
    index = curves.thin(y, most)
    assert (np.diff(index) > 0).all()
    assert {0, len(y) - 1} <= set(index.tolist())
    finite = y[np.isfinite(y)]
    kept = y[index]
    if len(finite):
        assert {finite.min(), finite.max()} <= set(kept[np.isfinite(kept)].tolist())
    assert np.isfinite(y).all() == np.isfinite(kept).all()


@searched
@given(st.lists(st.booleans(), max_size=60), st.integers(0, 4))
def test_runs_are_joined_over_gaps(flags: list[bool], gap: int) -> None:
    slow: list[tuple[int, int]] = []
    for i, flag in enumerate(flags):
        if flag and slow and i - slow[-1][1] <= gap + 1:
            slow[-1] = (slow[-1][0], i)
        elif flag:
            slow.append((i, i))
    assert curves.runs_of(np.array(flags, bool), gap) == slow


def test_blocks_and_parts_are_medians_of_consecutive_points() -> None:
    y = synth.noise(103)
    mids, size = curves.blocks(y, 20, 3)
    assert size == 6
    assert list(mids) == [float(np.median(y[k * 6 : k * 6 + 6])) for k in range(17)]
    assert len(curves.parts(y, 10)) == 10
    assert list(curves.parts(y[:3], 10)) == list(y[:3])


def test_segments_are_the_changes_of_the_mean() -> None:
    y = np.r_[np.zeros(60), np.full(50, 4.0), np.full(70, 1.0)] + 0.3 * synth.noise(180)
    assert curves.segments(y, penalty=3.0) == pytest.approx([60, 110], abs=1)
    assert curves.segments(np.ones(50), penalty=3.0) == []
    assert curves.segments(y[:7], penalty=3.0) == []


def test_views_and_logs_of_nasty_signals_are_finite_and_leave_the_signal_alone() -> None:
    for title, one in nasty_signals():
        before = one.values.copy()
        v = curves.view(one, settled=True)
        steps, y = curves.kept(one)
        assert np.isfinite(v.y).all() and np.isfinite(y).all(), title
        assert len(steps) == len(y) and len(v.steps) == len(v)
        assert np.array_equal(one.values, before, equal_nan=True), title


def test_a_view_speaks_in_the_signals_own_unit() -> None:
    logs = curves.view(signal([1.0, 2.0, 4.0]))
    assert logs.log and logs.value(logs.y[1]) == pytest.approx(2.0)
    assert logs.ratio(logs.y[2], logs.y[0]) == pytest.approx(4.0)
    flat = curves.view(signal([-1.0, 2.0, 4.0]))
    assert not flat.log and flat.value(flat.y[0]) == -1.0
    assert math.isnan(flat.ratio(1.0, 0.0))
    rounded = curves.view(signal([1.0, 2.0, 4.0], resolution=0.1, multiplicative=False))
    assert rounded.floor == pytest.approx(0.2 / math.sqrt(12))
