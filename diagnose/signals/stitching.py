"""H1 and H2: one effective series a metric, from all attempts and sources; the smallest difference that the log can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose import metrics
from diagnose.model import Floats, Signal, Steps
from diagnose.table import Run, Series, frozen


def stitch(steps: Steps, attempts: NDArray[np.int16]) -> NDArray[np.int64]:
    """Indices of the effective points, steps strictly rising: the last writer of a step wins, and an attempt that goes back
    to step s supersedes everything at or after s written before it (the rule of TensorBoard's data server).

    `steps` and `attempts` are sorted by (attempt, step). One low point among points that simply go on is a stray (a tag logged
    without a step among tags with steps), not a restart.
    """
    keep = np.ones(len(steps), bool)
    starts = np.flatnonzero(np.diff(attempts, prepend=attempts[:1] - 1)) if len(steps) else np.empty(0, np.int64)
    ends = np.append(starts[1:], len(steps))
    for a, b in zip(starts[1:], ends[1:], strict=True):
        if not _stray(steps, a, b):
            keep[:a] &= steps[:a] < steps[a]
    index = np.flatnonzero(keep)
    order = index[np.argsort(steps[index], kind="stable")]
    if not len(order):
        return order
    last = np.append(steps[order][1:] != steps[order][:-1], True)
    return np.asarray(order[last], np.int64)


def _stray(steps: Steps, a: int, b: int) -> bool:
    """Whether the attempt's first point is followed by points that go on where the earlier attempts ended."""
    top = int(steps[:a].max())
    if b - a < 2 or a < 3 or int(steps[a + 1]) <= top:
        return False
    usual = max(1.0, float(np.median(np.diff(steps[max(0, a - 64) : a]))))
    return int(steps[a + 1]) - int(steps[a]) > 2.5 * usual and int(steps[a + 1]) - top <= 2.5 * usual


def stitched(run: Run, facts: dict[str, Any]) -> dict[str, Signal]:
    """The effective series of every metric by canonical name; where several sources log one metric, the best of them."""
    groups: dict[str, dict[tuple[str, int | None, str], list[Series]]] = {}
    readers = [s.reader for s in run.sources]
    for series in run.series:
        reader = readers[series.source] if series.source < len(readers) else ""
        groups.setdefault(series.metric, {}).setdefault((series.logged_as, series.rank, reader), []).append(series)
    named = {}
    attempts: dict[str, int] = {}
    for name, candidates in groups.items():
        best = max(candidates.values(), key=_worth)
        steps = np.concatenate([s.steps for s in best])
        values = np.concatenate([s.values for s in best])
        tries = np.concatenate([s.attempts for s in best])
        times = np.concatenate([s.times if s.times is not None else np.full(len(s), np.nan) for s in best])
        index = stitch(steps, tries)
        attempts[name] = int(tries.max()) + 1 if len(tries) else 0
        if name in ("loss/train", "lr", "grad_norm"):
            facts.setdefault("resumes", _resumes(steps, tries, values) if attempts[name] > 1 else ())
        entry = metrics.metric(name)
        unit = entry.unit
        named[name] = Signal(
            name, best[0].logged_as, unit, steps=frozen(steps[index]), values=frozen(values[index]),
            times=frozen(times[index]) if np.isfinite(times[index]).any() else None, rank=best[0].rank, good=entry.good,
            multiplicative=entry.multiplicative, resolution=resolution(values[index]),
        )  # fmt: skip
    main = next((n for n in ("loss/train", "grad_norm", "lr") if n in attempts), None)
    facts["attempts"] = attempts.get(main, 1) if main else max(attempts.values(), default=1)
    return named


def _worth(series: Sequence[Series]) -> tuple[float, ...]:
    """More points first, then the less rounded source, then the lower rank and the shorter tag."""
    values = np.concatenate([s.values for s in series])
    rank = series[0].rank or 0
    return (len(values), -resolution(values), -rank, -len(series[0].logged_as))


def _resumes(steps: Steps, attempts: NDArray[np.int16], values: Floats) -> tuple[tuple[int, int], ...]:
    """(last step before, first step after) of every restart, in order."""
    cuts = np.flatnonzero(np.diff(attempts)) + 1
    return tuple((int(steps[c - 1]), int(steps[c])) for c in cuts[:64])


def resolution(values: Floats) -> float:
    """The smallest difference that the log can show: 10^-k when all values are multiples of it (k <= 5), else 0 (gate H2)."""
    good = values[np.isfinite(values)]
    if len(good) < 3:
        return 0.0
    sample = good if len(good) <= 4096 else good[:: len(good) // 4096]
    for k in range(6):
        if np.all(np.abs(sample - np.round(sample, k)) <= 1e-9 * np.maximum(1.0, np.abs(sample))):
            return float(10.0**-k)
    return 0.0


def common(a: Signal, b: Signal) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices into a and b of the steps that both have."""
    _, i, j = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    return i, j
