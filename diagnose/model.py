"""The data that flows through the pipe: every value is frozen, every array read-only.

Readers make events, settings and problems; signals are made from the run table; detectors make findings; rules make
diagnoses; the report carries all of them to the renderers. Nothing here computes anything.

Units stand in the name or in the docstring. A *step* is counted in the run's step unit (see `Report.run`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]
Floats = NDArray[np.float64]


class Frozen(dict[str, Any]):
    """A mapping that can't be changed but can cross process borders (a mappingproxy can't be pickled)."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("this mapping is frozen")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return Frozen, (dict(self),)


class Severity(str, Enum):
    """How bad it is if the diagnosis is true."""

    INFO = "info"  # remarkable but harmless
    MINOR = "minor"  # worth acting on some day
    MAJOR = "major"  # a large waste of compute or quality
    CRITICAL = "critical"  # the run is lost or corrupt

    @property
    def rank(self) -> int:
        """0 for info up to 3 for critical, for comparisons and sorting."""
        return list(Severity).index(self)


class Confidence(str, Enum):
    """How sure the diagnosis is; *high* is claimed only by rules that the benchmark backs."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    @property
    def rank(self) -> int:
        """0 for low up to 2 for high."""
        return list(Confidence).index(self)


class Status(str, Enum):
    """What became of a rule on a run. *Not applicable* is not *quiet*: it could not look."""

    FIRED = "fired"
    QUIET = "quiet"
    NOT_APPLICABLE = "not-applicable"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Span:
    """An inclusive interval of steps."""

    first_step: int
    last_step: int

    def overlaps(self, other: Span, slack: int = 0) -> bool:
        """Whether the two spans share a step, or come within `slack` steps of it."""
        return self.first_step <= other.last_step + slack and other.first_step <= self.last_step + slack


@dataclass(frozen=True, slots=True)
class Source:
    """One file that was read: its path as given, the reader's id, and the version of the program that wrote it."""

    path: str
    reader: str
    version: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something odd in the input; never fatal. `where` is `file:line` or `file@byte`."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class Event:
    """Something said in words at a place in the log.

    Kinds in use: overflow, scale-floor, traceback, exit, resume, restart, checkpoint, eval, oom, comms, config.
    `numbers` holds what the words quantify (`scale`, `new_scale`, `exit_code`, ...).
    """

    kind: str
    says: str
    where: str = field(default="", kw_only=True)
    step: int | None = field(default=None, kw_only=True)
    time: float | None = field(default=None, kw_only=True)  # seconds since 1970, UTC
    rank: int | None = field(default=None, kw_only=True)
    numbers: Mapping[str, float] = field(default_factory=Frozen, kw_only=True)


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration value. `name` is canonical once `settings.canonical` has seen it; `spelled` is the source's own key."""

    name: str
    value: Any  # str, int, float, bool, None or a list of these
    spelled: str = field(default="", kw_only=True)
    where: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """One metric over steps, stitched from all attempts: steps rise strictly, NaN and infinities are kept.

    `good` is the direction in which the metric improves. `multiplicative` says that its noise scales with its level, so
    that it is looked at on a log axis. `resolution` is the smallest difference the log can show (0 when full floats were
    logged). `settled_from` is the first step after the start-up transient (initial descent, warm-up), where known.
    """

    name: str
    logged_as: str
    unit: str
    steps: Steps = field(kw_only=True)
    values: Floats = field(kw_only=True)
    times: Floats | None = field(default=None, kw_only=True)  # seconds since 1970, UTC
    rank: int | None = field(default=None, kw_only=True)
    good: str = field(default="none", kw_only=True)  # down | up | none
    multiplicative: bool = field(default=False, kw_only=True)
    resolution: float = field(default=0.0, kw_only=True)
    settled_from: int | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def steps_per_point(self) -> float:
        """Median distance between logged points, in steps; 1.0 for fewer than two points."""
        return float(np.median(np.diff(self.steps))) if len(self.steps) > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A *shape* in a signal: where, how big, how far above noise. No opinion.

    `size` is in the signal's unit or a ratio (each detector says which); `strength` is in noise widths and comparable
    across signals. `onset` is where it began, as an interval. `numbers` carries what the detector measured besides
    (`base`, `peak`, `period_steps`, `recovered_after`, ...; each detector documents its keys). `masks` is filled by the
    pipe: the known events (`lr-change at 400`, ...) that normally look like this; empty when nothing explains it.
    """

    kind: str
    signal: str
    span: Span
    direction: str = field(default="none", kw_only=True)  # up | down | none
    size: float = field(default=0.0, kw_only=True)
    strength: float = field(default=0.0, kw_only=True)
    onset: Span = field(kw_only=True)
    numbers: Mapping[str, float] = field(default_factory=Frozen, kw_only=True)
    masks: tuple[str, ...] = field(default=(), kw_only=True)
    id: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Mask:
    """A known event of the training that explains what it normally does (knowledge 0.3): `kind` is X1, X2, ..."""

    kind: str
    says: str
    span: Span  # where it excuses, guard included


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sentence with numbers, and what it rests on (`about`: a signal, event, setting or finding id)."""

    says: str
    span: Span | None = field(default=None, kw_only=True)
    role: str = field(default="related", kw_only=True)  # primary | related | against
    about: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible reason, with its share among the ranked ones and what speaks for and against it."""

    id: str
    title: str
    share: float = field(default=0.0, kw_only=True)  # 0 to 1
    because: tuple[Evidence, ...] = field(default=(), kw_only=True)
    would_decide: str = field(default="", kw_only=True)  # the metric whose logging would decide


@dataclass(frozen=True, slots=True)
class Change:
    """One setting to change. `value` is the new value for `set`, the factor for `scale`, the summand for `add`."""

    setting: str
    op: str  # set | scale | add
    value: Any
    now: Any = field(default=None, kw_only=True)  # the value read from the run's configuration


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do: a sentence that starts with a verb, why it helps, what to expect, and how it is spelled."""

    id: str
    do: str
    because: str = field(default="", kw_only=True)
    expect: str = field(default="", kw_only=True)
    caution: str = field(default="", kw_only=True)
    changes: tuple[Change, ...] = field(default=(), kw_only=True)
    spelled: Mapping[str, str] = field(default_factory=Frozen, kw_only=True)  # framework -> snippet
    safety: str = field(default="needs-judgement", kw_only=True)  # safe | needs-judgement


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong with the *training*: at least one piece of evidence, exactly one of it primary, at least one fix."""

    rule: str
    summary: str
    severity: Severity
    confidence: Confidence = field(kw_only=True)
    onset: Span | None = field(default=None, kw_only=True)  # None: the whole run
    end_step: int | None = field(default=None, kw_only=True)
    period_steps: float | None = field(default=None, kw_only=True)
    evidence: tuple[Evidence, ...] = field(default=(), kw_only=True)
    causes: tuple[Cause, ...] = field(default=(), kw_only=True)
    fixes: tuple[Fix, ...] = field(default=(), kw_only=True)
    rivals: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one rule on one run."""

    rule: str
    status: Status
    diagnoses: tuple[Diagnosis, ...] = field(default=(), kw_only=True)
    missing: tuple[str, ...] = field(default=(), kw_only=True)  # metrics that are not logged
    error: str = field(default="", kw_only=True)
    took_s: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A signal thinned for display: every extreme, NaN and infinity of the signal is among its points."""

    name: str
    logged_as: str
    unit: str
    steps: Steps
    values: Floats
    points: int = field(kw_only=True)  # of the signal before thinning


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """All outcomes of one run; the only thing a renderer sees.

    `run` holds plain facts: name, path, step_unit, first_step, last_step, points, attempts, frameworks, started, ended.
    `worst` is the most severe diagnosis's severity, None when nothing fired. `readable` is False when no number was found.
    """

    run: Mapping[str, Any]
    verdict: str
    outcomes: tuple[Outcome, ...] = field(default=(), kw_only=True)
    findings: tuple[Finding, ...] = field(default=(), kw_only=True)
    unexplained: tuple[str, ...] = field(default=(), kw_only=True)  # ids of findings that no diagnosis rests on
    masks: tuple[Mask, ...] = field(default=(), kw_only=True)
    curves: tuple[Curve, ...] = field(default=(), kw_only=True)
    events: tuple[Event, ...] = field(default=(), kw_only=True)
    settings: tuple[Setting, ...] = field(default=(), kw_only=True)
    sources: tuple[Source, ...] = field(default=(), kw_only=True)
    problems: tuple[Problem, ...] = field(default=(), kw_only=True)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=Frozen, kw_only=True)  # metric -> rules blind without it
    advice: Mapping[str, str] = field(default_factory=Frozen, kw_only=True)  # metric -> snippet that would log it
    schema: str = field(default="diagnose.report/1", kw_only=True)
    made_by: str = field(default="", kw_only=True)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """All diagnoses, worst first, then the surer one, then the earlier one."""
        found = [d for o in self.outcomes for d in o.diagnoses]
        return tuple(sorted(found, key=lambda d: (-d.severity.rank, -d.confidence.rank, d.onset.first_step if d.onset else -1, d.rule)))

    @property
    def worst(self) -> Severity | None:
        """The severity of the worst diagnosis, or None."""
        return max((d.severity for d in self.diagnoses), key=lambda s: s.rank, default=None)

    @property
    def readable(self) -> bool:
        """Whether at least one number or event was found."""
        return bool(self.run.get("points")) or bool(self.events)
