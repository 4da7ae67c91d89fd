"""The kinds of part, and what a reader hands over.

This module, `model`, `case` and `errors` are the plug-in API: one new format, shape, diagnosis or output is one new file
that ends in one constant, `READER`, `DETECTOR`, `RULE` or `RENDERER`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from diagnose.model import (
    Diagnosis,
    Event,
    Finding,
    Floats,
    Frozen,
    Problem,
    Report,
    Setting,
    Severity,
    Signal,
    Source,
    Steps,
)

if TYPE_CHECKING:
    from diagnose.case import Case
    from diagnose.texts import Line
    from diagnose.transcript import Page


@dataclass(frozen=True, slots=True, eq=False)
class RawSeries:
    """The points of one name as logged, in the order of the file: nothing sorted, dropped, renamed or smoothed.

    steps: int64[n] · values: float64[n] with NaN and infinities · times: float64[n] seconds UTC, or None.
    `axis` says what the step counts: step, samples, tokens, epoch, iteration (micro-batches) or row (no step was logged).
    `group` is the sub-run or file stream the name stands in ("" for the main one): `validation`, `rank_3`, a hash.
    """

    name: str
    steps: Steps
    values: Floats
    times: Floats | None = field(default=None, kw_only=True)
    rank: int | None = field(default=None, kw_only=True)
    axis: str = field(default="step", kw_only=True)
    group: str = field(default="", kw_only=True)
    source: int = field(default=0, kw_only=True)  # index into RawRun.sources


@dataclass(frozen=True, slots=True, eq=False)
class RawRun:
    """All that one reader found: columns as logged, settings as spelled, events, problems, and where it came from.

    `key` joins what belongs to one run (a W&B run id, "" where the format has none). `clean_end` is None when the format
    can't tell whether the program ended by itself.
    """

    series: tuple[RawSeries, ...] = ()
    settings: tuple[Setting, ...] = field(default=(), kw_only=True)
    events: tuple[Event, ...] = field(default=(), kw_only=True)
    problems: tuple[Problem, ...] = field(default=(), kw_only=True)
    sources: tuple[Source, ...] = field(default=(), kw_only=True)
    key: str = field(default="", kw_only=True)
    clean_end: bool | None = field(default=None, kw_only=True)
    facts: Mapping[str, Any] = field(default_factory=Frozen, kw_only=True)  # framework, world_size, started, ...
    understood: Mapping[str, bytes] = field(default_factory=Frozen, kw_only=True)  # path -> a byte a line, 1 where it was understood


class Dialect(Protocol):
    """The lines of one console format. `take` looks at a line, puts what it says on the page and tells whether it understood it;
    `close` settles what only the whole file tells. One object reads one file.
    """

    def take(self, line: Line, page: Page) -> bool: ...

    def close(self, page: Page) -> None: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """A format.

    `claims(path)` looks at a file's name and first bytes only (at most 64 KiB), is False in doubt and never raises.
    `read(paths)` reads files of *one* run, in the order given, and stops nowhere for a bad record.
    `home(path)` tells the directory that a claimed file's run lives in (the parent of `wandb/` for W&B, ...).
    `priority`: readers are asked from high to low; content tests stand above name tests.
    """

    id: str
    title: str
    claims: Callable[[Path], bool]
    read: Callable[[Sequence[Path]], RawRun]
    home: Callable[[Path], Path] = field(default=lambda path: path.parent, kw_only=True)
    priority: int = field(default=50, kw_only=True)
    key: Callable[[Path], str] = field(default=lambda path: "", kw_only=True)  # files of one home with other keys are other runs
    exclusive: bool = field(default=False, kw_only=True)  # everything in a claimed file's folder belongs to it, whoever else claims it
    companion: bool = field(default=False, kw_only=True)  # settings only (ds_config.json): never a run by itself
    dialect: Callable[[], Dialect] | None = field(default=None, kw_only=True)  # of a console format: several can share a file
    partial: bool = field(default=False, kw_only=True)  # a dialect whose program leaves the loss to the user's own lines
    fallback: bool = field(default=False, kw_only=True)  # claims what no other reader claims
    framework: str = field(default="", kw_only=True)  # the fact that this format is evidence of


@runtime_checkable
class Detector(Protocol):
    """A shape: a frozen value with its thresholds as fields and one pure function.

    `kinds` are the kinds of finding it can give; `shape` is the name under which the catalogue of metrics asks for it.
    """

    @property
    def shape(self) -> str: ...

    @property
    def kinds(self) -> tuple[str, ...]: ...

    def detect(self, signal: Signal) -> tuple[Finding, ...]: ...


@runtime_checkable
class GroupDetector(Protocol):
    """A shape across several signals of one family, such as the norms of all layers, in depth order."""

    @property
    def shape(self) -> str: ...

    @property
    def kinds(self) -> tuple[str, ...]: ...

    def detect_group(self, signals: Sequence[Signal]) -> tuple[Finding, ...]: ...


@dataclass(frozen=True, slots=True)
class Example:
    """A small run on which a rule must fire or stay quiet: its test, the picture on its page, `diagnose explain`.

    `make` gives canonical metric name -> (steps, values), from `diagnose.synth`; settings are canonical.
    """

    title: str
    fires: bool
    make: Callable[[], Mapping[str, tuple[Steps, Floats]]]
    settings: Mapping[str, Any] = field(default_factory=Frozen, kw_only=True)
    events: tuple[Event, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Rule:
    """A diagnosis. `needs` are canonical metrics without which it can't look (`a|b` for either); `uses` are kinds of finding."""

    id: str
    title: str
    family: str  # dynamics | gradients | precision | noise-scale | generalisation | throughput | logging
    severity: Severity  # the worst that it gives
    status: str  # preview | stable
    since: str
    needs: tuple[str, ...]
    uses: tuple[str, ...]
    judge: Callable[[Case], Iterator[Diagnosis] | Iterable[Diagnosis]]
    examples: tuple[Example, ...] = ()
    wants: tuple[str, ...] = field(default=(), kw_only=True)  # metrics that sharpen it but are not needed
    page: str = field(default="", kw_only=True)  # the module's docstring; filled by the registry


@dataclass(frozen=True, slots=True)
class Renderer:
    """An output: one report (or several, for a folder of runs) to text. `colour` is honoured by the terminal renderer only."""

    id: str
    title: str
    suffix: str
    render: Callable[..., str]  # (report: Report, *, colour: bool = False, verbose: bool = False) -> str
    render_many: Callable[[Sequence[Report]], str] | None = field(default=None, kw_only=True)


def fires(title: str, make: Callable[[], Mapping[str, tuple[Steps, Floats]]], **more: Any) -> Example:
    """An example on which the rule must fire."""
    return Example(title, True, make, **more)


def quiet(title: str, make: Callable[[], Mapping[str, tuple[Steps, Floats]]], **more: Any) -> Example:
    """A near miss on which the rule must stay quiet."""
    return Example(title, False, make, **more)


__all__ = [
    "Detector",
    "Dialect",
    "Example",
    "GroupDetector",
    "RawRun",
    "RawSeries",
    "Reader",
    "Renderer",
    "Report",
    "Rule",
    "fires",
    "quiet",
]
