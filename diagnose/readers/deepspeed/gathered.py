"""What one console file has given so far: points in columns, events, settings, problems, and the last step that was named."""

from __future__ import annotations

import ast
import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from diagnose.model import Event, Floats, Frozen, Problem, Setting, Steps
from diagnose.parts import RawSeries
from diagnose.texts import Line, number

_GREATEST_STEP = 2**53  # beyond it a float no longer counts, and no run gets there
_MOST_SETTINGS = 5000  # the dump of 0.19 has about 300 leaves; a hundred engines would still fit
_MOST_EVENTS = 200_000  # one every step of a long run; a hostile file must not fill the memory
_LONGEST_VALUE = 20_000  # characters; ast is not linear in memory
_DEEPEST = 24  # brackets; ast.literal_eval recurses
_NAN = float("nan")
_Array = TypeVar("_Array", Steps, Floats)


@dataclass(slots=True)
class _Column:
    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))


@dataclass(frozen=True, slots=True)
class Said:
    """A line without its logger header: what was said, by which rank, from which source file ("" for a plain print)."""

    line: Line
    text: str
    rank: int | None
    origin: str
    level: str = ""


@dataclass(slots=True)
class Gathered:
    """The result of one file while it grows. `step` is the last step that any line named, for lines that name none."""

    name: str
    step: int | None = None
    first_time: float | None = None
    last_time: float | None = None
    version: str = ""
    clean_end: bool | None = None
    events: list[Event] = field(default_factory=list)
    settings: dict[tuple[str, str], Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _columns: dict[tuple[str, str, str, int | None], _Column] = field(default_factory=dict)
    _betas: bool = False

    def where(self, line: Line) -> str:
        return f"{self.name}:{line.number}"

    def point(
        self, name: str, step: int, value: float, line: Line, *, axis: str = "step", group: str = "", rank: int | None = None
    ) -> None:
        """One value at a step that the line names; a step that can't be one is left out."""
        if not 0 <= step < _GREATEST_STEP:
            return
        column = self._columns.setdefault((name, axis, group, rank), _Column())
        column.steps.append(step)
        column.values.append(value)
        column.times.append(_NAN if line.time is None else line.time)
        column.lines.append(line.number)

    def row(self, name: str, value: float, line: Line, *, group: str = "", rank: int | None = None) -> None:
        """One value of a line that names no step: its step is its place among its kind."""
        column = self._columns.get((name, "row", group, rank))
        self.point(name, len(column.steps) if column else 0, value, line, axis="row", group=group, rank=rank)

    def event(
        self, kind: str, says: str, line: Line, *, step: int | None = None, rank: int | None = None, numbers: dict[str, float] | None = None
    ) -> int:
        """Notes an event; gives its index, so that later lines can complete it. -1 when there are far too many."""
        if len(self.events) >= _MOST_EVENTS:
            return -1
        rank = line.rank if rank is None else rank
        self.events.append(
            Event(
                kind,
                says[:500],
                where=self.where(line),
                step=step,
                time=line.time,
                rank=rank,
                numbers=Frozen(numbers or {}),
            )
        )
        return len(self.events) - 1

    def setting(self, name: str, value: Any, line: Line) -> None:
        """Keeps a setting; the first place where the same value of the same name was read stands (ranks repeat each other)."""
        if isinstance(value, dict):
            value = str(value)
        key = (name, repr(value))
        if key not in self.settings and len(self.settings) < _MOST_SETTINGS:
            self.settings[key] = Setting(name, value, spelled=name, where=self.where(line))

    def nest(self, name: str, value: Any, line: Line, depth: int = 0) -> None:
        """Keeps a nested value as settings with dotted names."""
        if isinstance(value, dict) and value and depth < 8:
            for key, inner in value.items():
                self.nest(f"{name}.{key}" if name else str(key), inner, line, depth + 1)
        else:
            self.setting(name, plain(value), line)

    def columns_at(self, name: str, axis: str) -> list[tuple[str, int | None]]:
        """The (group, rank) of each series of a name on an axis."""
        return [(g, r) for n, a, g, r in self._columns if n == name and a == axis]

    def relabel(self, name: str, shift: int) -> None:
        """Moves a series from its rows to steps: the n-th row (from 0) is step n + 1 + shift."""
        for key in [k for k in self._columns if k[0] == name and k[1] == "row"]:
            column = self._columns.pop(key)
            column.steps = array("q", (s + 1 + shift for s in column.steps))
            self._columns[(name, "step", key[2], key[3])] = column

    def rename(self, name: str, to: str) -> None:
        """Gives a series the name under which it is handed over."""
        for key in [k for k in self._columns if k[0] == name]:
            self._columns[(to, *key[1:])] = self._columns.pop(key)

    def drop(self, name: str) -> None:
        """Leaves a series out (a column that says nothing that another one does not say)."""
        for key in [k for k in self._columns if k[0] == name]:
            del self._columns[key]

    def repeats(self, name: str, other: str) -> bool:
        """Whether each value of a name stands on a line where the other name has the same value in the same group."""
        known = {(g, line): v for (n, _, g, _), c in self._columns.items() if n == other for line, v in zip(c.lines, c.values, strict=True)}
        own = [(g, line, v) for (n, _, g, _), c in self._columns.items() if n == name for line, v in zip(c.lines, c.values, strict=True)]
        return all(known.get((g, line)) == v for g, line, v in own)

    def betas(self, text: str, line: Line) -> None:
        """The first momentum that a progress line prints, as the setting `mom`; later ones follow the schedule."""
        if not self._betas:
            self._betas = True
            value = parsed(f"[{text}]")
            first = value[0] if isinstance(value, list) and value else text
            self.setting("mom", plain(first), line)

    def values(self, name: str, group: str = "") -> list[float]:
        """All values of a name in a group, over axes and ranks."""
        return [v for (n, _, g, _), column in self._columns.items() if n == name and g == group for v in column.values]

    @property
    def names(self) -> set[str]:
        return {key[0] for key in self._columns}

    def series(self, source: int) -> Iterator[RawSeries]:
        """All columns, in the order of the file."""
        only_rank_0 = {n for n in self.names if {k[3] for k in self._columns if k[0] == n} <= {None, 0}}
        for (name, axis, group, rank), column in self._columns.items():
            order = np.argsort(np.frombuffer(column.lines, dtype=np.int64), kind="stable")  # mined points come late
            times = np.frombuffer(column.times, dtype=np.float64)[order]
            yield RawSeries(
                name,
                _frozen(np.frombuffer(column.steps, dtype=np.int64)[order]),
                _frozen(np.frombuffer(column.values, dtype=np.float64)[order]),
                times=None if np.isnan(times).all() else _frozen(times),
                rank=None if name in only_rank_0 else rank,  # rank 0 alone speaks for the run
                axis=axis,
                group=group,
                source=source,
            )


def _frozen(values: _Array) -> _Array:
    values.flags.writeable = False
    return values


def plain(value: Any) -> Any:
    """A value that a setting may hold: text, number, truth, None, or a list of these."""
    if isinstance(value, list | tuple):
        return [v if isinstance(v, str | int | float | bool) or v is None else str(v) for v in value]
    if isinstance(value, dict):
        return str(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def parsed(text: str) -> Any:
    """The value that a dump prints: Python or JSON literal, pydantic's `a=1 b=True` as a mapping, else the text itself."""
    text = text.strip()
    words = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
    if text in words:
        return words[text]
    if text[:1].isdigit() or text[:1] in "+-.":
        try:
            return int(text)
        except ValueError:
            value = number(text) if text[-1:].isdigit() or text.endswith(".") else None
            return text if value is None else value
    if text[:1] in "[{(" and shallow(text):
        for read in (ast.literal_eval, json.loads):
            try:
                return read(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                continue
    if text[:1] in "'\"" and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    return text


def shallow(text: str) -> bool:
    """Whether a literal is short and flat enough for a parser that recurses."""
    if len(text) > _LONGEST_VALUE:
        return False
    depth = deepest = 0
    for char in text:
        if char in "[{(":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]})":
            depth -= 1
    return deepest <= _DEEPEST
