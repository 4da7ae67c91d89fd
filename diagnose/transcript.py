"""Console logs line by line: one pass over a file, each line offered to every dialect that its text speaks.

People's consoles mix programs: an engine, a trainer, a launcher, their own prints. So a console format is a `Dialect`: it is shown
each line and says whether it understood it. `transcribe` decodes once, asks the dialects in their order, then the facts that any
console may tell (`console.Facts`), and keeps which lines nobody understood. What they found is gathered on one `Page` a file, so no
number is counted twice and every dialect knows the last step that any of them named.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from diagnose.console import Facts
from diagnose.model import Event, Floats, Frozen, Problem, Setting, Source, Steps
from diagnose.parts import Dialect, RawRun, RawSeries, Reader
from diagnose.texts import Line, head, lines

_GREATEST_STEP = 2**53  # beyond it a float no longer counts, and no run gets there
_MOST_SETTINGS = 5000  # a DeepSpeed dump has about 300 leaves; a hundred engines would still fit
_MOST_EVENTS = 200_000  # one every step of a long run; a hostile file must not fill the memory
_MOST_COLUMNS = 20_000
_MOST_PROBLEMS = 1000
_MARKED = 1 << 24  # lines of a file whose being understood is kept, one byte each
_NEAR_LINES = 64  # ranks of one node stand close together
_NEAR_S = 1.0  # seconds in which the ranks of a job print the same line (formats: ranks interleave)
_NAN = float("nan")
_FILE_RANK = re.compile(r"(?i)(?:^|[^a-z])rank[_-]?(?P<rank>\d{1,6})(?=\D|$)")
_NOT_CONSOLE = frozenset((".py", ".rst", ".ipynb", ".json", ".csv", ".tsv", ".yaml", ".yml", ".html", ".xml"))  # they quote logs
_BINARY = (b":W&B", b"SQLite", b"PAR1", b"PK\x03\x04", b"\x89HDF", b"\x80\x02", b"\x93NUM")
_Array = TypeVar("_Array", Steps, Floats)


@dataclass(slots=True)
class Column:
    """The points of one name while it grows, in the order in which they were read."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    times: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def repeats(self, step: int, value: float, line: Line) -> bool:
        """Whether this is the point before once more: another rank that has no prefix, another handler of the same logger."""
        if not self.steps or self.steps[-1] != step or not (self.values[-1] == value or (isnan(value) and isnan(self.values[-1]))):
            return False
        last = self.times[-1]
        if line.time is None or isnan(last):
            near = line.number - self.lines[-1] <= _NEAR_LINES
        else:
            near = abs(line.time - last) <= _NEAR_S
        return near and line.number != self.lines[-1]


@dataclass(slots=True)
class Page:
    """What one console file has given so far. `step` is the last step that any line named, for lines that name none."""

    path: Path
    facts: Facts
    step: int | None = None
    hint: int | None = None  # the last step that a bar or an unknown program's line named
    counted: bool = False  # a dialect that counts optimizer steps sets `step`; hints only go on from there
    first_time: float | None = None
    last_time: float | None = None
    count: int = 0  # lines read
    repeated: int = 0  # points that stand twice: another rank, another handler of the same logger
    version: str = ""  # of the program that wrote the file
    clean_end: bool | None = None
    events: list[Event] = field(default_factory=list)
    settings: dict[tuple[str, str], Setting] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    understood: bytearray = field(default_factory=bytearray)  # one byte a line, 1 where somebody knew it
    columns: dict[tuple[str, str, str, int | None], Column] = field(default_factory=dict)  # (name, axis, group, rank)

    def where(self, line: Line) -> str:
        """The place of a line, as problems, events and settings name it."""
        return f"{self.path.name}:{line.number}"

    def knows(self, number: int) -> None:
        """Marks a line as understood."""
        if number <= _MARKED:
            if number > len(self.understood):
                self.understood.extend(bytes(max(number, 2 * len(self.understood)) - len(self.understood)))
            self.understood[number - 1] = 1

    def point(
        self, name: str, step: int, value: float, line: Line, *, axis: str = "step", group: str = "", rank: int | None = None
    ) -> None:
        """One value at a step that the line names; a step that can't be one is left out."""
        if not 0 <= step < _GREATEST_STEP:
            return
        key = (name, axis, group, line.rank if rank is None else rank)
        column = self.columns.get(key)
        if column is None:
            if len(self.columns) >= _MOST_COLUMNS:
                return
            column = self.columns[key] = Column()
        if key[3] is None and axis != "row" and column.repeats(step, value, line):
            self.repeated += 1
            return
        column.steps.append(step)
        column.values.append(value)
        column.times.append(_NAN if line.time is None else line.time)
        column.lines.append(line.number)

    def points(self, step: int, values: Mapping[str, float | None], line: Line, *, axis: str = "step", group: str = "") -> None:
        """One row: all values of a line that names its step; a value that was no number is None and left out."""
        for name, value in values.items():
            if value is not None:
                self.point(name, step, value, line, axis=axis, group=group)
        if axis == "step":
            self.step = step

    def suggest(self, step: int) -> None:
        """A bar's or an unknown line's step: it counts, unless a dialect counts otherwise (hints may count micro-steps, from 0)."""
        self.hint = step
        if not self.counted or (self.step is not None and self.step < step <= self.step + 1):
            self.step = step

    def row(self, name: str, value: float, line: Line, *, group: str = "", rank: int | None = None) -> None:
        """One value of a line that names no step: its step is its place among its kind."""
        column = self.columns.get((name, "row", group, line.rank if rank is None else rank))
        self.point(name, len(column.steps) if column else 0, value, line, axis="row", group=group, rank=rank)

    def event(
        self, kind: str, says: str, line: Line, *, step: int | None = None, rank: int | None = None, numbers: dict[str, float] | None = None
    ) -> int:
        """Notes an event; gives its index, so that later lines can complete it. -1 when there are far too many."""
        if len(self.events) >= _MOST_EVENTS:
            return -1
        rank = line.rank if rank is None else rank
        event = Event(kind, says[:500], where=self.where(line), step=step, time=line.time, rank=rank, numbers=Frozen(numbers or {}))
        self.events.append(event)
        return len(self.events) - 1

    def setting(self, name: str, value: Any, line: Line) -> None:
        """Keeps a setting; the first place where the same value of the same name was read stands (ranks repeat each other)."""
        if isinstance(value, dict):
            value = str(value)
        key = (name, repr(value))
        if key not in self.settings and len(self.settings) < _MOST_SETTINGS:
            self.settings[key] = Setting(name, value, spelled=name, where=self.where(line))

    def problem(self, what: str, line: Line | None = None) -> None:
        """Something odd, with its place."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(Problem(where=self.path.name if line is None else self.where(line), what=what))

    @property
    def names(self) -> set[str]:
        """The names of all series so far."""
        return {key[0] for key in self.columns}

    def values(self, name: str, group: str = "") -> list[float]:
        """All values of a name in a group, over axes and ranks."""
        return [v for (n, _, g, _), column in self.columns.items() if n == name and g == group for v in column.values]

    def series(self, source: int, speakers: Mapping[str, set[int | None]]) -> Iterator[RawSeries]:
        """All columns, in the order of the file; the only rank that ever gives a name speaks for the run."""
        for (name, axis, group, rank), column in self.columns.items():
            order = np.argsort(np.frombuffer(column.lines, dtype=np.int64), kind="stable")  # mined points come late
            times = np.frombuffer(column.times, dtype=np.float64)[order]
            yield RawSeries(
                name,
                _frozen(np.frombuffer(column.steps, dtype=np.int64)[order]),
                _frozen(np.frombuffer(column.values, dtype=np.float64)[order]),
                times=None if np.isnan(times).all() else _frozen(times),
                rank=None if len(speakers[name] - {None}) <= 1 else rank,
                axis=axis,
                group=group,
                source=source,
            )


def _frozen(values: _Array) -> _Array:
    values.flags.writeable = False
    return values


def looks(path: Path, mark: re.Pattern[str] | Callable[[str], bool], *, enough: int = 1) -> bool:
    """The sniffing test of a console format: whether the first 64 KiB are text in which a line of its own shape stands."""
    try:
        if path.suffix.lower() in _NOT_CONSOLE or "tfevents" in path.name or not path.is_file():
            return False
        with path.open("rb") as file:
            if file.read(8).startswith(_BINARY):
                return False
        text = head(path)
        if isinstance(mark, re.Pattern):
            return sum(1 for _, _ in zip(mark.finditer(text), range(enough), strict=False)) >= enough
        return mark(text)
    except Exception:  # a test that is False in doubt
        return False


def console_reader(
    id: str,
    title: str,
    mark: re.Pattern[str] | Callable[[str], bool],
    dialect: Callable[[], Dialect],
    *,
    enough: int = 1,
    priority: int = 60,
    **more: Any,
) -> Reader:
    """The reader of a console format: `mark` recognises a line of its own, `enough` of which must stand in the first 64 KiB."""
    made: list[Reader] = []
    reader = Reader(
        id,
        title,
        lambda path: looks(path, mark, enough=enough),
        lambda paths: transcribe(paths, made),
        priority=priority,
        dialect=dialect,
        key=more.pop("key", stem),
        **more,
    )
    made.append(reader)
    return reader


_PACKED = re.compile(r"(?i)\.(?:gz|bz2|xz|zst)$|\.\d{1,3}$|[-_.]\d{8}$")  # and rotations
_STREAM = re.compile(r"(?i)(?:^|[._-])(?:rank[_-]?\d{1,6}|stdout|stderr|out|err|log|txt)(?=$|[._-])")


def stem(path: Path) -> str:
    """What the file's name says beside rank, stream, rotation and suffix: consoles that agree in it are one run."""
    name = path.name
    while (shorter := _PACKED.sub("", name)) != name:
        name = shorter
    return _STREAM.sub("", name).strip("._-")


def transcribe(paths: Sequence[Path], readers: Sequence[Reader]) -> RawRun:
    """Reads console files of one run in the order given; each line goes to the first dialect that knows it."""
    pages = [_read(Path(path), readers) for path in paths]
    speakers: dict[str, set[int | None]] = {}
    for page in pages:
        for name, _, _, rank in page.columns:
            speakers.setdefault(name, set()).add(rank)
    frameworks = [r.framework for r in readers if r.framework]
    facts: dict[str, Any] = {"framework": frameworks[0]} if frameworks else {}
    times = [t for p in pages for t in (p.first_time, p.last_time) if t is not None]
    if times:
        facts["started"], facts["ended"] = min(times), max(times)
    settings = tuple(s for p in pages for s in p.settings.values())
    sizes = [s.value for s in settings if s.name == "world_size" and isinstance(s.value, int)] + [
        p.facts.world for p in pages if p.facts.world
    ]
    if sizes:
        facts["world_size"] = max(sizes)
    ends = [e for p in pages for e in (p.clean_end, p.facts.clean_end) if e is not None]
    who = "+".join([r.id for r in readers if not r.fallback] or [r.id for r in readers])
    return RawRun(
        tuple(s for i, p in enumerate(pages) for s in p.series(i, speakers)),
        settings=settings,
        events=tuple(e for p in pages for e in _in_order(p)),
        problems=tuple(problem for p in pages for problem in p.problems),
        sources=tuple(Source(str(path), who, p.version) for path, p in zip(paths, pages, strict=True)),
        clean_end=all(ends) if ends else None,
        facts=Frozen(facts),
        understood=Frozen({str(path): bytes(p.understood[: p.count]) for path, p in zip(paths, pages, strict=True)}),
    )


def _in_order(page: Page) -> list[Event]:
    return sorted([*page.events, *page.facts.events], key=lambda e: int(e.where.rpartition(":")[2] or 0))


def _read(path: Path, readers: Sequence[Reader]) -> Page:
    """One file, line by line: the formats' own lines, then what any console says, then what only looks like numbers with names."""
    page = Page(path, Facts(Path(path.name)))
    own = [r.dialect() for r in readers if r.dialect is not None and not r.fallback]
    last = [r.dialect() for r in readers if r.dialect is not None and r.fallback]
    named = _FILE_RANK.search(path.name)
    file_rank = int(named["rank"]) if named else None
    for line in lines(path, page.problems):
        page.count = max(page.count, line.number)
        if line.time is not None:
            page.first_time = line.time if page.first_time is None else page.first_time
            page.last_time = line.time
        if not line.text or line.text.isspace():
            continue
        ranked = line if file_rank is None or line.rank is not None else replace(line, rank=file_rank)
        if _taken(ranked, page, own, last):
            page.knows(line.number)
    for dialect in (*own, *last):
        dialect.close(page)
    page.facts.close()
    return page


def _taken(line: Line, page: Page, own: Sequence[Dialect], last: Sequence[Dialect]) -> bool:
    for dialect in own:
        if dialect.take(line, page):
            return True
    page.facts.step = page.step
    if page.facts.take(line):
        return True
    return any(dialect.take(line, page) for dialect in last)


__all__ = ["Column", "Dialect", "Page", "console_reader", "looks", "stem", "transcribe"]
