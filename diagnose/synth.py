"""Curves with a known fault, for examples, tests and docs: `(steps, values)`, seeded, the same on every machine.

`loss`, `norm`, `step_time`, `rate`, `loss_scale` and `layers` make healthy curves; the `with_...` functions put one fault into a
curve at a step. Noise is skewed and heavy-tailed as real per-step noise is (batch-averaged loss: excess kurtosis 3.3, skew 1.1; gradient
norms: lag-1 autocorrelation .39), because detectors that are quiet on Gaussian noise are not on this.

    curve = synth.with_spike(synth.loss(2000), at=1200, ratio=2.0, width=30)
"""

from __future__ import annotations

import math

import numpy as np

from diagnose.model import Floats, Steps

Curve = tuple[Steps, Floats]


def _steps(n: int, every: int, start: int) -> Steps:
    return start + every * np.arange(n, dtype=np.int64)


def noise(n: int, *, seed: int = 0, phi: float = 0.0, tails: float = 10.0) -> Floats:
    """Noise of width about 1, skewed to the right (0.8) with excess kurtosis 3, and lag-1 autocorrelation `phi`.

    (N + Exp − 1)/√2 times a scale of √(k/χ²ₖ), k = `tails`: smaller k, heavier tails.
    """
    dice = np.random.default_rng([seed, n])
    raw = (dice.standard_normal(n) + dice.exponential(1.0, n) - 1.0) / math.sqrt(2.0)
    raw *= np.sqrt(tails / dice.chisquare(tails, n)) * math.sqrt((tails - 2.0) / tails)
    if phi:
        raw *= math.sqrt(1.0 - phi * phi)
        for t in range(1, n):
            raw[t] += phi * raw[t - 1]
    return raw


# -- healthy


def loss(
    n: int = 2000, *, first: float = 10.8, last: float = 3.2, width: float = 0.02, seed: int = 0, every: int = 1, start: int = 0
) -> Curve:
    """A training loss that falls from `first` to about `last` by a power law; `width` is its noise in nats of ln loss."""
    steps = _steps(n, every, start)
    t = every * np.arange(n, dtype=np.float64)
    fall = (1.0 + t / (0.01 * max(1.0, every * n))) ** -0.5
    floor = (last - first * fall[-1]) / (1.0 - fall[-1]) if n > 1 else 0.0
    level = floor + (first - floor) * fall
    return steps, level * np.exp(width * noise(n, seed=seed))


def norm(
    n: int = 2000, *, level: float = 0.8, width: float = 0.12, phi: float = 0.39, seed: int = 1, every: int = 1, start: int = 0
) -> Curve:
    """A global gradient norm: high at first, then flat around `level`; noise in nats, autocorrelated."""
    t = np.arange(n, dtype=np.float64)
    settle = 1.2 * np.exp(-t / max(1.0, 0.02 * n))
    return _steps(n, every, start), level * np.exp(settle + width * noise(n, seed=seed, phi=phi))


def step_time(n: int = 2000, *, seconds: float = 0.5, width: float = 0.02, seed: int = 2, every: int = 1, start: int = 0) -> Curve:
    """Seconds a step: flat, with rare slow steps (0.3 % of them up to twice as long)."""
    dice = np.random.default_rng([seed, n, 7])
    slow = np.where(dice.random(n) < 0.003, 1.0 + dice.random(n), 1.0)
    return _steps(n, every, start), seconds * slow * np.exp(width * np.abs(noise(n, seed=seed)))


def rate(n: int = 2000, *, peak: float = 3e-4, warmup: int = 100, least: float = 0.1, every: int = 1, start: int = 0) -> Curve:
    """A learning rate: linear warm-up over `warmup` points, then a cosine down to `least` times the peak."""
    t = np.arange(n, dtype=np.float64)
    up = np.minimum(1.0, (t + 1.0) / max(1, warmup))
    down = least + (1.0 - least) * 0.5 * (1.0 + np.cos(np.pi * np.clip((t - warmup) / max(1, n - warmup), 0.0, 1.0)))
    return _steps(n, every, start), peak * np.where(t < warmup, up, down)


def evals(n: int = 30, *, every: int = 100, first: float = 5.0, last: float = 3.0, width: float = 0.002, seed: int = 3) -> Curve:
    """A sparse evaluation loss that falls and flattens."""
    t = np.arange(n, dtype=np.float64)
    return _steps(n, every, every), (last + (first - last) * np.exp(-4.0 * t / max(1, n))) * np.exp(width * noise(n, seed=seed))


def loss_scale(
    n: int = 2000, *, first: float = 2.0**16, settled: float = 2.0**13, window: int = 200, every: int = 1, start: int = 0
) -> Curve:
    """A dynamic fp16 loss scale: a first search down to `settled`, then a doubling after `window` good steps and a halving soon after."""
    value, out, good = first, [], 0
    for _ in range(n):
        out.append(value)
        good += 1
        if value > settled * 2.0 or (value > settled and good >= 3):
            value, good = value / 2.0, 0
        elif value <= settled and good >= window:
            value, good = value * 2.0, 0
    return _steps(n, every, start), np.array(out)


def noise_scale(n: int = 1000, *, level: float = 200.0, width: float = 0.3, phi: float = 0.6, seed: int = 4, every: int = 1) -> Curve:
    """A gradient noise scale in samples: flat, with wide autocorrelated noise."""
    return _steps(n, every, 0), level * np.exp(width * noise(n, seed=seed, phi=phi))


def layers(
    count: int = 12, n: int = 200, *, level: float = 0.1, per_layer: float = 0.0, width: float = 0.1, seed: int = 5, every: int = 1
) -> dict[str, Curve]:
    """Gradient norms of `count` layers, `grad_norm/layer/0` next to the input. `per_layer` nats are lost per layer on the way
    from the output to the input: 0 is healthy, 1.0 vanishes (e-fold a layer), negative explodes."""
    steps = _steps(n, every, 0)
    return {
        f"grad_norm/layer/{k}": (steps, level * np.exp(-per_layer * (count - 1 - k) + width * noise(n, seed=seed + 1000 * k)))
        for k in range(count)
    }


# -- faults


def _from(curve: Curve, at: int) -> tuple[Steps, Floats, int]:
    steps, values = curve
    return steps, np.array(values, np.float64), int(np.searchsorted(steps, at))


def with_spike(curve: Curve, *, at: int, ratio: float = 2.0, width: int = 20) -> Curve:
    """A spike at step `at`: `ratio` times the level within two points, back exponentially after about `width` points."""
    steps, values, i = _from(curve, at)
    t = np.arange(len(values) - i, dtype=np.float64)
    shape = np.minimum(1.0, (t + 1.0) / 2.0) * np.exp(-t / max(1.0, width / 4.0))
    values[i:] *= np.exp(math.log(ratio) * shape)
    return steps, values


def with_jump(curve: Curve, *, at: int, ratio: float = 3.0) -> Curve:
    """One point `ratio` times as high as it would be."""
    steps, values, i = _from(curve, at)
    values[i : i + 1] *= ratio
    return steps, values


def with_explosion(curve: Curve, *, at: int, rate: float = 0.1, most: float = 1e6, to: float | None = None) -> Curve:
    """Exponential growth by `rate` nats a step from step `at` on, up to `most` times; non-finite (`to`) from there on when given."""
    steps, values, i = _from(curve, at)
    grown = np.minimum(rate * (steps[i:] - at).astype(np.float64), math.log(most))
    values[i:] *= np.exp(grown)
    if to is not None:
        values[i:][grown >= math.log(most)] = to
    return steps, values


def with_divergence(curve: Curve, *, at: int, rise: float = 1.0, over: int = 200) -> Curve:
    """A rise by `rise` nats over `over` steps from step `at` on, without a return."""
    steps, values, i = _from(curve, at)
    climb = rise * np.minimum(1.0, (steps[i:] - at + 1) / over)
    values[i:] = _level(values, i) * np.exp(climb) * _residual(values, i)
    return steps, values


def _level(values: Floats, i: int) -> float:
    return float(np.median(values[max(0, i - 50) : max(1, i)]))


def _residual(values: Floats, i: int) -> Floats:
    """The noise of the points from i on, as a factor: each point over the median of the 21 around it."""
    if i >= len(values):
        return np.empty(0)
    padded = np.pad(values[i:], 10, mode="reflect" if len(values) - i > 10 else "edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 21), axis=1)
    return np.asarray(values[i:] / around[: len(values) - i], np.float64)


def with_level_shift(curve: Curve, *, at: int, ratio: float = 1.2, until: int | None = None) -> Curve:
    """All points from step `at` on (before `until`, when given) `ratio` times as high."""
    steps, values, i = _from(curve, at)
    j = len(values) if until is None else int(np.searchsorted(steps, until))
    values[i:j] *= ratio
    return steps, values


def with_period(curve: Curve, *, period: float = 50.0, amplitude: float = 0.05, at: int = 0) -> Curve:
    """A sine of `period` steps and `amplitude` nats from step `at` on."""
    steps, values, i = _from(curve, at)
    values[i:] *= np.exp(amplitude * np.sin(2.0 * np.pi * (steps[i:] - at) / period))
    return steps, values


def with_alternation(curve: Curve, *, amplitude: float = 0.03, at: int = 0) -> Curve:
    """Points that lie by turns `amplitude` nats higher and lower, from step `at` on."""
    steps, values, i = _from(curve, at)
    values[i:] *= np.exp(amplitude * np.where(np.arange(len(values) - i) % 2 == 0, 1.0, -1.0))
    return steps, values


def with_drift(curve: Curve, *, total: float = 1.0, at: int = 0) -> Curve:
    """A straight rise by `total` nats from step `at` to the end (a fall when negative)."""
    steps, values, i = _from(curve, at)
    values[i:] *= np.exp(np.linspace(0.0, total, len(values) - i))
    return steps, values


def with_stalls(curve: Curve, *, every: int = 100, ratio: float = 4.0, at: int = 0) -> Curve:
    """Every `every` steps one point takes `ratio` times as long."""
    steps, values, i = _from(curve, at)
    values[i:] *= np.where((steps[i:] - at) % every == every - 1, ratio, 1.0)
    return steps, values


def with_nonfinite(curve: Curve, *, at: int, points: int | None = None, value: float = math.nan) -> Curve:
    """NaN (or `value`) for `points` points from step `at` on; to the end when not given."""
    steps, values, i = _from(curve, at)
    values[i : len(values) if points is None else i + points] = value
    return steps, values


def with_plateau(curve: Curve, *, at: int, width: float = 0.02, seed: int = 6) -> Curve:
    """The level that the curve has at step `at`, kept to the end (from the start when `at` is the first step)."""
    steps, values, i = _from(curve, at)
    level = _level(values, i) if i else float(values[0])
    values[i:] = level * np.exp(width * noise(len(values) - i, seed=seed))
    return steps, values


def with_collapse(curve: Curve, *, at: int, halvings: int = 8, every: int = 2, floor: float = 1.0) -> Curve:
    """A loss scale that halves every `every` points from step `at` on, `halvings` times, and stays there (never below `floor`)."""
    steps, values, i = _from(curve, at)
    level = values[i - 1] if i else values[0]
    fall = np.minimum(halvings, 1 + np.arange(len(values) - i) // every)
    values[i:] = np.maximum(floor, level * 0.5**fall)
    return steps, values


def with_rise_after_minimum(curve: Curve, *, at: int, rise: float = 0.3) -> Curve:
    """An overfitting evaluation loss: from step `at` on it climbs by `rise` nats until the end."""
    steps, values, i = _from(curve, at)
    level = float(values[max(0, i - 1)])
    values[i:] = level * np.exp(np.linspace(0.0, rise, len(values) - i))
    return steps, values


# -- plain pieces


def constant(value: float, n: int = 2000, *, every: int = 1, start: int = 0) -> Curve:
    """The same value at every point."""
    return _steps(n, every, start), np.full(n, value, np.float64)


def skips(n: int = 2000, *, every: int = 50, start: int = 0) -> Curve:
    """How many steps were skipped in each step: one in `every`, at irregular distances after the same mean."""
    dice = np.random.default_rng([every, n])
    return _steps(n, 1, start), (dice.random(n) < 1.0 / every).astype(np.float64)


def joined(*curves: Curve) -> Curve:
    """Curves written one after the other, as a log holds a run and its resume: steps may go back."""
    return np.concatenate([s for s, _ in curves]), np.concatenate([v for _, v in curves])
