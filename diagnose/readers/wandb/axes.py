"""What the step of each series is: an axis that the run logged, or W&B's own row counter.

`_step` counts log calls, so evaluation takes steps of its own. A logged axis is better: the `step_metric` of a
`define_metric`, else a well-known counter of optimizer steps. Where an axis stands in most rows, the others carry its last
value, as the SDK's `step_sync` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from diagnose.model import Floats, Steps
from diagnose.parts import RawSeries
from diagnose.readers.wandb.rows import RESERVED, Rows

# HF · Lightning · TensorBoard sync, OpenRLHF · nanoGPT · users; in this order where a row has several
PREFERRED = ("train/global_step", "trainer/global_step", "global_step", "iter", "iteration", "Step", "step", "train/step", "train/iter")
_WORDS = (("epoch", "epoch"), ("token", "tokens"), ("sample", "samples"), ("example", "samples"), ("seen", "samples"))
_MAX_GLOB = 200  # characters
_MAX_AXES = 64  # dense copies of axis columns: bounds memory when every metric names its own axis
_MOST = 0.5  # an axis in fewer rows than this is no axis for the others: carrying it would put many points on one step
_EXACT = 2.0**53  # integers above are not exact in a double
_RESET = 0.1  # a counter that falls below this share of its maximum counts within something (an epoch), not the run

_T = TypeVar("_T", bound=np.generic)


def kind(name: str) -> str:
    """What a step axis counts, by its name: epoch, tokens, samples or step."""
    low = name.lower()
    return next((axis for word, axis in _WORDS if word in low), "step")


@dataclass(slots=True)
class Defined:
    """The `define_metric` calls: exact names and globs, which end in `*`; an exact name wins, then the longest glob."""

    exact: dict[str, str] = field(default_factory=dict)
    globs: dict[str, str] = field(default_factory=dict)  # prefix -> step metric
    sizes: set[int] = field(default_factory=set)  # lengths of the prefixes: few, so that many globs stay cheap

    def add(self, name: str, glob: str, step_metric: str) -> None:
        """One metric record; dots of a literal name come escaped."""
        if not step_metric:
            return
        step_metric = step_metric.replace("\\.", ".")
        if name:
            self.exact[name.replace("\\.", ".")] = step_metric
        elif glob.endswith("*") and len(glob) <= _MAX_GLOB:
            prefix = glob[:-1].replace("\\.", ".")
            self.globs[prefix] = step_metric
            self.sizes.add(len(prefix))

    def axis(self, name: str) -> str:
        """The step metric of a series, or nothing."""
        if name in self.exact:
            return self.exact[name]
        for size in sorted(self.sizes, reverse=True):
            found = self.globs.get(name[:size])
            if found is not None:
                return found
        return ""


class Axes:
    """The axes of one file's rows."""

    def __init__(self, rows: int, own: Floats, columns: dict[str, tuple[Steps, Floats]], defined: Defined) -> None:
        self._rows, self._columns, self._defined = rows, columns, defined
        self._dense: dict[str, Floats | None] = {}
        self._filled: dict[str, Steps] = {}
        self.carried: dict[str, list[int]] = {}  # axis -> [points, series] that carry its last value
        self.notes: list[str] = []
        self.own, self.numbered = _own_steps(own)
        self._preferred = [name for name in PREFERRED if name in columns and self.dense(name) is not None]
        most = [name for name in self._preferred if self._share(name) >= _MOST]
        self.main = most[0] if most else ""

    def dense(self, name: str) -> Floats | None:
        """An axis column over all rows, NaN where not logged; None when it can't be one."""
        if name not in self._dense:
            column = self._columns.get(name)
            full = sum(d is not None for d in self._dense.values()) >= _MAX_AXES
            self._dense[name] = None if column is None or full else self._checked(name, *column)
        return self._dense[name]

    def _checked(self, name: str, rows: Steps, values: Floats) -> Floats | None:
        good = np.isfinite(values)
        v = values[good]
        if not len(v) or np.any(v != np.floor(v)) or np.any(v < 0) or np.any(v >= _EXACT):
            return None
        top = np.maximum.accumulate(v)
        back = np.flatnonzero((v < _RESET * top) & (top >= 10))
        if len(back):
            at = back[0]
            self.notes.append(f"{name} falls from {top[at]:.0f} to {v[at]:.0f} within the file, so it is not used as the step")
            return None
        dense = np.full(self._rows, np.nan)
        dense[rows[good]] = v
        return dense

    def _share(self, name: str) -> float:
        dense = self.dense(name)
        return float(np.mean(np.isfinite(dense))) if dense is not None and len(dense) else 0.0

    def filled(self, name: str) -> Steps:
        """An axis over all rows, where absent its last value; before its first one `_step`, but not more than that."""
        if name not in self._filled:
            dense = self.dense(name)
            assert dense is not None
            have = np.flatnonzero(np.isfinite(dense))
            last = np.searchsorted(have, np.arange(self._rows), side="right") - 1
            out = np.where(last >= 0, dense[have[np.maximum(last, 0)]], np.minimum(self.own, dense[have[0]]))
            self._filled[name] = out.astype(np.int64)
        return self._filled[name]

    def steps(self, name: str, rows: Steps) -> tuple[Steps, str]:
        """The steps of a series that stands in these rows, and what they count."""
        wished = self._defined.axis(name)
        for axis in dict.fromkeys((*([wished] if wished else ()), *self._preferred)):
            if axis == "_step" and axis == wished:
                break
            dense = self.dense(axis)
            if dense is None:
                continue
            missing = int(np.count_nonzero(~np.isfinite(dense[rows])))
            if not missing:
                return dense[rows].astype(np.int64), kind(axis)
            if missing <= _MOST * len(rows) or axis == self.main:
                tally = self.carried.setdefault(axis, [0, 0])
                tally[0] += missing
                tally[1] += 1
                return self.filled(axis)[rows], kind(axis)
        return self.own[rows], "step" if self.numbered else "row"

    def at(self, row: int) -> int | None:
        """The step that the run had reached after so many rows."""
        if not 0 < row <= self._rows:
            return None
        return int((self.filled(self.main) if self.main else self.own)[row - 1])

    def said(self) -> Iterator[str]:
        """What the reader of the steps should know."""
        yield from self.notes
        for axis, (points, series) in self.carried.items():
            yield f"{points} points of {series} series stand in rows without {axis}; they carry its last value"


def _own_steps(own: Floats) -> tuple[Steps, bool]:
    """`_step` of every row, and whether the file has it at all; a row without one carries the last."""
    good = np.isfinite(own) & (np.abs(np.where(np.isfinite(own), own, 0)) < _EXACT)
    if not np.any(good):
        return np.arange(len(own), dtype=np.int64), False
    have = np.flatnonzero(good)
    last = np.searchsorted(have, np.arange(len(own)), side="right") - 1
    return np.where(last >= 0, own[have[np.maximum(last, 0)]], 0.0).astype(np.int64), True


def _spread(rows: int, column: tuple[Steps, Floats] | None) -> Floats:
    out = np.full(rows, np.nan)
    if column is not None:
        out[column[0]] = column[1]
    return out


def frozen(array: NDArray[_T]) -> NDArray[_T]:
    """The same array, read-only."""
    array.setflags(write=False)
    return array


def series_of(rows: Rows, defined: Defined, source: int, *, nulls: bool = True) -> tuple[list[RawSeries], Axes, Floats]:
    """All series of one file, its axes, and the time of every row (NaN where unknown)."""
    columns = {name: (where, values) for name, where, values in rows.columns(nulls=nulls)}
    n = len(rows)
    own = _spread(n, columns.get("_step"))
    recorded = np.array(rows.record_steps, np.float64)
    own = np.where(np.isfinite(own), own, recorded)
    clock = _spread(n, columns.get("_timestamp"))
    clock[~np.isfinite(clock)] = np.nan
    axes = Axes(n, own, columns, defined)
    rank = None if axes.numbered else np.argsort(np.argsort(np.where(np.isfinite(clock), clock, np.inf), kind="stable"), kind="stable")
    timed = bool(np.any(np.isfinite(clock)))
    out = []
    for name, (stands, logged) in columns.items():
        where, values = stands, logged
        if name in RESERVED or name.startswith("_wandb."):
            continue
        steps, axis = axes.steps(name, where)
        if axis == "row" and rank is not None:  # shared mode writes no _step at all: the clock orders the rows
            places = np.argsort(rank[where], kind="stable")
            where, values, steps = where[places], values[places], rank[where[places]]
        times = clock[where] if timed else None
        frozen_times = None if times is None else frozen(times)
        out.append(RawSeries(name, frozen(steps), frozen(values), times=frozen_times, axis=axis, source=source))
    return out, axes, clock


def system_of(rows: Rows, times: Iterable[float], source: int) -> list[RawSeries]:
    """The machine's own series, by row, with times."""
    clock = np.array(list(times), np.float64)
    out = []
    for name, where, values in rows.columns():
        steps = where.astype(np.int64)
        times = frozen(clock[where])
        out.append(RawSeries(f"system/{name}", frozen(steps), frozen(values), times=times, axis="row", group="system", source=source))
    return out
