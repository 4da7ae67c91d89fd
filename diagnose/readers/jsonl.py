"""JSON lines: one object a row, with a step key among its numbers.

Strict about what it claims: the first rows must be objects that share a step key and a number. Nested objects are flattened
with dots. Numbers may be bare NaN/Infinity or quoted; `null` in a numeric column is read as NaN ("maybe NaN") and counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diagnose import texts
from diagnose.model import Event, Frozen, Problem, Source
from diagnose.parts import RawRun, RawSeries, Reader

STEP_KEYS = (
    ("step", "step"), ("global_step", "step"), ("current_steps", "step"), ("_step", "step"), ("iteration", "step"), ("iter", "step"),
    ("steps", "step"), ("num_updates", "step"), ("update", "step"), ("train/global_step", "step"), ("trainer/global_step", "step"),
    ("it", "step"), ("batch", "step"), ("samples", "samples"), ("tokens", "tokens"), ("epoch", "epoch"),
)  # fmt: skip
TIME_KEYS = ("timestamp", "_timestamp", "time_stamp", "ts", "wall_time", "created_at")
_WORDS = {"nan": float("nan"), "inf": float("inf"), "infinity": float("inf"), "-inf": float("-inf"), "-infinity": float("-inf")}
_MOST_COLUMNS = 20_000  # of one file; a row of hostile keys must not fill memory
_DEEPEST = 200  # brackets; deeper rows are hostile (formats: JSON depth)


def flat(row: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Leaves of nested objects as dotted names, at most 6 deep."""
    for key, value in row.items():
        if isinstance(value, dict) and depth < 6:
            yield from flat(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value


def value_of(value: Any) -> float | None:
    """A number, a quoted number or a word for a non-finite one; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, str):
        low = value.strip().lower()
        return _WORDS[low] if low in _WORDS else texts.number(value) if re.match(r"[-+.\d]", low) else None
    return None


def _row(line: str) -> dict[str, Any] | None:
    if not line.startswith("{") or line[:4096].count("{") + line[:4096].count("[") > _DEEPEST:
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def step_key(names: Sequence[str]) -> tuple[str, str] | None:
    """The column that counts steps, and what it counts."""
    low = {n.lower(): n for n in reversed(names)}
    return next(((low[k], axis) for k, axis in STEP_KEYS if k in low), None)


def claims(path: Path) -> bool:
    """The first rows are JSON objects with a step key and a number beside it."""
    try:
        head = texts.head(path)
        if not head.lstrip().startswith("{"):
            return False
        lines = [s for s in head.splitlines() if s.strip()]
        rows = [_row(s.strip()) for s in lines[:20]]
        good = [dict(flat(r)) for r in rows if r is not None]
        whole = len(good) >= 0.8 * max(1, len(rows) - (len(lines) < 21))
        return bool(good) and whole and any(step_key(tuple(r)) and sum(value_of(v) is not None for v in r.values()) >= 2 for r in good)
    except Exception:
        return False


class _Columns:
    """Points by name, in the order of the rows."""

    def __init__(self) -> None:
        self.steps: dict[str, list[int]] = {}
        self.values: dict[str, list[float]] = {}
        self.times: dict[str, list[float]] = {}
        self.nulls: dict[str, list[int]] = {}

    def add(self, name: str, step: int, value: float, time: float) -> None:
        if name not in self.steps and len(self.steps) >= _MOST_COLUMNS:
            return
        self.steps.setdefault(name, []).append(step)
        self.values.setdefault(name, []).append(value)
        self.times.setdefault(name, []).append(time)


def _series(columns: _Columns, axis: str, source: int) -> list[RawSeries]:
    out = []
    for name, steps in columns.steps.items():
        times = np.array(columns.times[name])
        out.append(RawSeries(name, np.array(steps, np.int64), np.array(columns.values[name]), axis=axis, source=source,
                             times=times if np.isfinite(times).any() else None))  # fmt: skip
    return out


def _read_one(path: Path, source: int, problems: list[Problem], events: list[Event]) -> list[RawSeries]:
    columns, axis, bad, nulls, count = _Columns(), "row", 0, 0, 0
    key: tuple[str, str] | None = None
    for line in texts.lines(path, problems):
        text = line.text.strip()
        if not text:
            continue
        row = _row(text)
        if row is None:
            bad += 1
            if bad <= 5:
                problems.append(Problem(f"{path}:{line.number}", f"not a JSON object; this row is left out: {text[:60]!r}"))
            continue
        count += 1
        cells = dict(flat(row))
        key = key or step_key(tuple(cells))
        step = value_of(cells.get(key[0])) if key else count - 1.0
        if step is None or not abs(step) < 2**62:
            continue
        axis = key[1] if key else "row"
        time = next((t for k in TIME_KEYS if (t := value_of(cells.get(k))) is not None), float("nan"))
        for name, cell in cells.items():
            if key and name == key[0]:
                continue
            value = value_of(cell)
            if value is None and cell is None and name in columns.steps:
                value, nulls = float("nan"), nulls + 1
            if value is not None:
                columns.add(name, int(step), value, time)
    if bad > 5:
        problems.append(Problem(str(path), f"{bad} rows are not JSON objects and are left out"))
    if nulls:
        problems.append(Problem(str(path), f"{nulls} nulls in numeric columns are read as NaN"))
    return _series(columns, axis, source)


def read(paths: Sequence[Path]) -> RawRun:
    """All rows of the files, in order."""
    problems: list[Problem] = []
    events: list[Event] = []
    series: list[RawSeries] = []
    for source, path in enumerate(paths):
        series += _read_one(path, source, problems, events)
    return RawRun(tuple(series), events=tuple(events), problems=tuple(problems), facts=Frozen(),
                  sources=tuple(Source(str(p), "jsonl") for p in paths))  # fmt: skip


READER = Reader("jsonl", "JSON lines", claims, read, priority=40, key=lambda path: path.name)
