"""The only home of arithmetic on curves: noise widths, robust baselines, onsets, segmentation, spectra, trends, thinning.

All functions take plain float64 arrays and return plain numbers or arrays; inputs are never changed. Unless said otherwise an
array must be finite: detectors remove NaN and infinities first (`view`, `kept`). ruptures is imported where it is used: it costs a
second of start-up.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from diagnose.model import Signal, Span

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Flags = NDArray[np.bool_]
F = TypeVar("F", bound=Callable[..., Any])

MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
MOST_WINDOWS = 100_000  # exact rolling windows computed; longer series are evaluated on a stride and held in between
HUGE = 1e150  # plain values beyond are drawn in to it, so that they can be squared


def quietly(function: F) -> F:
    """The function with numpy's floating-point warnings off: overflow and NaN are results here, not accidents."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


# -- the axis on which a signal's noise is even


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The finite points of a signal on the axis on which its noise is even: ln x when it is multiplicative, else x.

    `floor` is the smallest noise width to believe, from the log's resolution.
    """

    steps: Index
    y: Array
    log: bool
    floor: float

    def __len__(self) -> int:
        return len(self.y)

    def value(self, y: float) -> float:
        """A number on this axis in the signal's own unit."""
        return _exp(y) if self.log else float(y)

    def ratio(self, above: float, below: float) -> float:
        """How many times `below` is `above` (both on this axis); NaN where a ratio has no meaning."""
        if self.log:
            return _exp(above - below)
        return float(above / below) if below else math.nan

    def span(self, first: int, last: int) -> Span:
        """The steps of two points, as indices into this view."""
        return Span(int(self.steps[first]), int(self.steps[last]))


def _exp(y: float) -> float:
    return math.exp(y) if y < 709.0 else math.inf


@quietly
def view(signal: Signal, *, settled: bool = False) -> View:
    """The signal's `View`; with `settled`, only from `settled_from` on.

    A multiplicative signal with more than 1 % of values at or below zero is looked at on a plain axis: it is no ratio scale.
    The floor is resolution·2/√12 (the standard deviation of rounding, twice; gate H2).
    """
    x = signal.values
    good = np.isfinite(x)
    if settled and signal.settled_from is not None:
        good &= signal.steps >= signal.settled_from
    positive = good & (x > 0)
    log = signal.multiplicative and bool(positive.any()) and int(positive.sum()) >= 0.99 * int(good.sum())
    keep = positive if log else good
    kept = x[keep]
    rounding = 2.0 / math.sqrt(12.0) * max(0.0, signal.resolution)
    if log:
        return View(signal.steps[keep], np.log(kept), True, rounding / float(np.median(kept)) if rounding else 0.0)
    return View(signal.steps[keep], np.clip(kept, -HUGE, HUGE), False, rounding)


def in_logs(values: Array) -> Array:
    """ln of the values; what is not positive becomes the smallest positive value of the curve (noise that scales with level)."""
    positive = values[values > 0]
    floor = float(positive.min()) if len(positive) else 1.0
    return np.log(np.maximum(values, floor))


def spread(values: Array) -> float:
    """Robust standard deviation, 1.4826·MAD; 0.0 for fewer than two values."""
    return float(MAD * np.median(np.abs(values - np.median(values)))) if len(values) > 1 else 0.0


def noise(values: Array) -> float:
    """Robust noise width that trends and shifts do not widen: 1.4826·MAD of first differences over √2."""
    return float(spread(np.diff(values)) / math.sqrt(2.0)) if len(values) > 2 else 0.0


def autocorrelation(values: Array, lag: int = 1) -> float:
    """Autocorrelation at a lag, clipped to [0, .95] (unclipped estimates pass 1 and break what divides by 1 - φ)."""
    if len(values) < lag + 3:
        return 0.0
    centred = values - values.mean()
    power = float(np.dot(centred, centred))
    return float(np.clip(np.dot(centred[lag:], centred[:-lag]) / power, 0.0, 0.95)) if power > 0 else 0.0


def _middle(rows: Array) -> Array:
    """The median of each row, by a partial sort in place."""
    low, high = (rows.shape[1] - 1) // 2, rows.shape[1] // 2
    rows.partition((low, high), axis=1)
    return np.asarray((rows[:, low] + rows[:, high]) / 2.0, np.float64)


def medians_before(values: Array, window: int) -> tuple[Array, Array]:
    """Median and 1.4826·MAD of the `window` values before each point (fewer at the start; the first point looks at itself).

    Exact for up to 100,000 windows; beyond that evaluated on a stride and held, which moves a baseline by at most stride/window.
    """
    n = len(values)
    centre, width = np.empty(n), np.empty(n)
    for i in range(min(n, window)):
        part = values[: max(i, 1)]
        centre[i] = np.median(part)
        width[i] = MAD * np.median(np.abs(part - centre[i]))
    if n > window:
        stride = max(1, math.ceil((n - window) / MOST_WINDOWS))
        views = np.lib.stride_tricks.sliding_window_view(values, window)[: n - window : stride]
        mid, mad = np.empty(len(views)), np.empty(len(views))
        for a in range(0, len(views), 4096):  # chunks bound the memory of the copies
            rows = views[a : a + 4096].copy()
            mid[a : a + 4096] = _middle(rows)
            rows -= mid[a : a + 4096, None]
            mad[a : a + 4096] = MAD * _middle(np.abs(rows, out=rows))
        centre[window:] = np.repeat(mid, stride)[: n - window]
        width[window:] = np.repeat(mad, stride)[: n - window]
    return centre, width


def running_median(values: Array, window: int) -> Array:
    """Median of each point and the `window` - 1 points before it (fewer at the start)."""
    before, _ = medians_before(np.append(values, values[-1:]), window)
    return before[1:] if len(values) else values


def winsorised(values: Array, widths: float = 4.0) -> Array:
    """Values clipped to `widths` robust standard deviations around the median: heavy tails would waste changepoints."""
    centre, width = float(np.median(values)), spread(values)
    return np.clip(values, centre - widths * width, centre + widths * width) if width > 0 else values.copy()


def detrended(values: Array, degree: int = 5) -> Array:
    """Residuals of a polynomial in ln(t), fitted twice (the second time without points beyond 4 widths)."""
    n = len(values)
    if n < degree + 3:
        return values - np.median(values)
    t = np.log(np.arange(1, n + 1))
    basis = np.vander(t / t[-1], degree + 1)
    keep = np.ones(n, bool)
    residual = values
    for _ in range(2):
        weights, *_ = np.linalg.lstsq(basis[keep], values[keep], rcond=None)
        residual = values - basis @ weights
        width = spread(residual)
        keep = np.abs(residual) <= 4 * width if width > 0 else keep
        if keep.sum() < degree + 3:
            break
    return residual


def blocks(values: Array, most: int, least: int = 1) -> tuple[Array, int]:
    """Medians of equal blocks, at most `most` of them, each of at least `least` points; and the block's length."""
    size = max(least, -(-len(values) // most), 1)
    count = len(values) // size
    return np.median(values[: count * size].reshape(count, size), axis=1) if count else np.empty(0), size


def parts(values: Array, count: int) -> Array:
    """The medians of `count` equally long parts (fewer when there are fewer points)."""
    count = max(1, min(count, len(values)))
    edges = np.linspace(0, len(values), count + 1).astype(int)
    return np.array([np.median(values[a:b]) for a, b in itertools.pairwise(edges) if b > a])


def slope_of(x: Array, y: Array) -> float:
    """Theil-Sen slope: the median of all pairs' slopes, on at most 200 points."""
    if len(x) > 200:
        keep = np.linspace(0, len(x) - 1, 200).astype(int)
        x, y = x[keep], y[keep]
    i, j = np.triu_indices(len(x), 1)
    run = x[j] - x[i]
    good = run != 0
    return float(np.median((y[j] - y[i])[good] / run[good])) if good.any() else 0.0


def mann_kendall(values: Array) -> float:
    """Two-sided p of no monotone trend (normal approximation, ties corrected); use on block medians only, never on smoothed points."""
    n = len(values)
    if n < 4:
        return 1.0
    i, j = np.triu_indices(n, 1)
    s = float(np.sign(values[j] - values[i]).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18.0
    if variance <= 0 or s == 0:
        return 1.0
    z = (abs(s) - 1) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2.0))


def bic(rss: float, n: int, parameters: int) -> float:
    """Schwarz's criterion n·ln(RSS/n) + parameters·ln n; smaller is better."""
    return n * math.log(max(rss, 1e-300) / max(n, 1)) + parameters * math.log(max(n, 2))


def step_or_ramp(values: Array) -> float:
    """BIC of the best two constants less BIC of a line: positive when a ramp describes the values better than a step."""
    n = len(values)
    if n < 6:
        return 0.0
    x = np.arange(n) - (n - 1) / 2.0
    centred = values - values.mean()
    slope = float(np.dot(x, centred)) / float(np.dot(x, x))
    line = float(np.sum((centred - slope * x) ** 2))
    k = np.arange(1, n)
    left = np.cumsum(centred)[:-1]
    step = float(np.dot(centred, centred)) - float(np.max(left**2 / k + left**2 / (n - k)))  # the centred values sum to 0
    return bic(step, n, 3) - bic(line, n, 2)


def broken_stick(values: Array) -> tuple[int, float]:
    """Onset and rate of y = a + b·(t - c)₊ with b > 0, fitted by least absolute deviations on a grid over c.

    For each c, a is the median up to c and b the median of (y - a)/(t - c) weighted by t - c, which is the exact LAD slope through
    the corner. Returns (index of c, b per point); (len - 1, 0.0) when nothing rises. O(n² log n).
    """
    n = len(values)
    best = (math.inf, n - 1, 0.0)
    for c in range(1, n - 1):
        a = float(np.median(values[: c + 1]))
        t = np.arange(1, n - c, dtype=float)
        slopes = (values[c + 1 :] - a) / t
        order = np.argsort(slopes, kind="stable")
        weight = np.cumsum(t[order])
        b = float(slopes[order][int(np.searchsorted(weight, weight[-1] / 2.0))])
        if b <= 0:
            continue
        cost = float(np.abs(values[: c + 1] - a).sum() + np.abs(values[c + 1 :] - a - b * t).sum())
        if cost < best[0]:
            best = (cost, c, b)
    return best[1], best[2]


def segments(values: Array, *, penalty: float) -> list[int]:
    """Changepoints of the mean (ruptures KernelCPD, linear kernel = l2, at least 3 points a segment), as indices; penalty in σ²."""
    if len(values) < 8 or not np.ptp(values) > 0:
        return []
    import ruptures

    engine = ruptures.KernelCPD(kernel="linear", min_size=3).fit(values.reshape(-1, 1))
    return [int(c) for c in engine.predict(pen=penalty)[:-1]]


def refined(values: Array, at: int, reach: int) -> int:
    """The split within `reach` of `at` that separates two means best (least squares on winsorised raw points)."""
    a, b = max(0, at - reach), min(len(values), at + reach)
    part = winsorised(values[a:b])
    n = len(part)
    if n < 4:
        return at
    total = np.cumsum(part)
    k = np.arange(1, n)
    left, right = total[:-1] / k, (total[-1] - total[:-1]) / (n - k)
    gain = k * (n - k) / n * (left - right) ** 2
    return a + 1 + int(np.argmax(gain))


def spectrum(values: Array) -> tuple[Array, Array]:
    """Periodogram (frequencies in cycles a point, powers) of the values less their mean, without frequency 0."""
    n = len(values)
    power = np.abs(np.fft.rfft(values - values.mean()))[1:] ** 2 / n
    return np.asarray(np.fft.rfftfreq(n)[1:], np.float64), power


def folded(values: Array, period: float) -> Array:
    """The mean of the values at each phase of the period, at every point."""
    bins = max(2, round(period))
    phase = (np.arange(len(values)) / period % 1.0 * bins).astype(int) % bins
    counts = np.bincount(phase, minlength=bins)
    means = np.bincount(phase, weights=values, minlength=bins) / np.maximum(counts, 1)
    return np.asarray(means[phase], np.float64)


def peak_over_ar1(values: Array, *, periods: int = 5) -> tuple[float, float, float]:
    """The strongest line over an AR(1) null: (period in points, p, amplitude); lines of fewer than `periods` periods don't count.

    R = P/P₀·ln2/median, p = 1 - (1 - e^-R)^K with P₀(f) = σ²/(1 - 2φ cos 2πf + φ²) (knowledge B.5). A strong slow line makes the
    series look like AR(1) noise of a large φ and would hide itself: φ is also taken from what remains when the strongest line's
    fold is removed, and the smaller p counts.
    """
    n = len(values)
    if n < 16 or not np.ptp(values) > 0:
        return 0.0, 1.0, 0.0
    f, power = spectrum(values)
    usable = f >= periods / n
    if not usable.any():
        return 0.0, 1.0, 0.0
    strongest = 1.0 / float(f[usable][np.argmax(power[usable])])
    best = (0.0, 1.0, 0.0)
    for rest in (values, values - folded(values, strongest)):
        phi = autocorrelation(rest)
        ratio = power * (1.0 - 2.0 * phi * np.cos(2 * np.pi * f) + phi * phi)
        centre = float(np.median(ratio))
        if centre <= 0:
            continue
        ratio = np.where(usable, ratio * math.log(2.0) / centre, 0.0)
        top = int(np.argmax(ratio))
        r = min(float(ratio[top]), 700.0)
        p = -math.expm1(len(f) * math.log1p(-math.exp(-r))) if r > 1e-9 else 1.0
        p = min(1.0, max(p, 0.0)) if p > 0 else math.exp(-r) * len(f)
        if best[0] == 0.0 or p < best[1]:
            best = (1.0 / float(f[top]), p, 2.0 * math.sqrt(float(power[top]) / n))
    return best


def autocorrelations(values: Array, count: int) -> Array:
    """Autocorrelations at lags 0 to `count` - 1 (biased estimate, by FFT); zeros after lag 0 for a constant."""
    n = len(values)
    count = min(count, n)
    spectrum_ = np.fft.rfft(values - values.mean(), 2 * n)
    sums = np.fft.irfft(spectrum_ * np.conj(spectrum_))[:count]
    return np.asarray(sums / sums[0], np.float64) if n and sums[0] > 0 else np.r_[1.0, np.zeros(max(count - 1, 0))]


def alternation(values: Array) -> float:
    """Period-2 statistic A = Σ(-1)^t r_t / √Σ r_t² (healthy range of 74 runs: -1.4 to 0.7)."""
    total = float(np.dot(values, values))
    return float(abs(values[::2].sum() - values[1::2].sum()) / math.sqrt(total)) if total > 0 else 0.0


def highest(values: Array, starts: Index, ends: Index) -> Array:
    """The maximum of values[a:b] for each pair of `starts` and `ends` (none empty); O(n log longest), by windows of powers of two."""
    level = np.log2(np.maximum(ends - starts, 1)).astype(np.int64)
    out, table = np.empty(len(starts)), values.copy()
    for k in range(int(level.max(initial=-1)) + 1):
        at = np.flatnonzero(level == k)
        out[at] = np.maximum(table[starts[at]], table[ends[at] - (1 << k)])
        table = np.maximum(table[: -(1 << k)], table[1 << k :])  # of twice as many values
    return out


def thin(values: Array, most: int) -> Index:
    """Indices of at most about `most` points: first, last, each bucket's lowest and highest, and all non-finite ends of runs."""
    n = len(values)
    if n <= most:
        return np.arange(n)
    edges = np.linspace(0, n, max(2, most // 2) + 1).astype(np.int64)
    finite = np.isfinite(values)
    keep = {0, n - 1}
    bad = ~finite
    turns = np.flatnonzero(np.diff(bad.astype(np.int8), prepend=0, append=0))
    keep.update(int(t) for t in turns[:most] if t < n)
    keep.update(int(t) - 1 for t in turns[:most] if t > 0)
    for a, b in itertools.pairwise(edges):
        good = np.flatnonzero(finite[a:b])
        if len(good):
            part = values[a:b][good]
            keep.add(int(a + good[np.argmin(part)]))
            keep.add(int(a + good[np.argmax(part)]))
    return np.array(sorted(keep), np.int64)


def runs_of(flags: Flags, gap: int = 0) -> list[tuple[int, int]]:
    """(first, last) of each run of True; runs at most `gap` apart are one."""
    hits = np.flatnonzero(flags)
    if not len(hits):
        return []
    cuts = np.flatnonzero(np.diff(hits) > gap + 1)
    starts, ends = np.r_[hits[0], hits[cuts + 1]], np.r_[hits[cuts], hits[-1]]
    return [(int(a), int(b)) for a, b in zip(starts, ends, strict=True)]


def in_log(signal: Signal) -> bool:
    """Whether `kept` gives logs: the signal is multiplicative and more than 98 % of its finite values are positive."""
    good = signal.values[np.isfinite(signal.values)]
    return bool(signal.multiplicative and len(good) and (good > 0).mean() > 0.98)


def kept(signal: Signal) -> tuple[Index, Array]:
    """Steps and values of a signal's finite points, values in logs when its noise scales with its level and all are positive."""
    good = np.isfinite(signal.values)
    steps, values = signal.steps[good], signal.values[good].astype(np.float64)
    if in_log(signal):
        return steps, in_logs(values)
    return steps, np.clip(values, -HUGE, HUGE)
