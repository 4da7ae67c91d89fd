"""The plain data that an outline is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from diagnose.model import Diagnosis, Span


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph."""

    says: str


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Pairs of a name and a value, both for people."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under named columns, all cells for people."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Snippet:
    """Something to copy. `language` is python, json, yaml, bash or diff; an empty string when unknown."""

    language: str
    code: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Shade:
    """A part of the step axis to shade, and why."""

    span: Span
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A step to mark, and why. `kind` is onset, end or the kind of an event."""

    step: int
    label: str
    kind: str = "onset"


@dataclass(frozen=True, slots=True)
class ChartSpec:
    """Which curves to draw over one step axis, top first; `low` says that the dips of the first are what matters."""

    title: str
    signals: tuple[str, ...]
    shaded: tuple[Shade, ...] = ()
    marks: tuple[Mark, ...] = ()
    low: bool = False


@dataclass(frozen=True, slots=True)
class CauseLine:
    """A cause: its share of the ranked odds (0 to 1), what speaks for and against it, what would decide."""

    title: str
    share: float
    because: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    would_decide: str = ""


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """One setting to change: what it is now (empty when the log does not tell) and what it should become, spelled for copying."""

    setting: str
    now: str
    new: str


@dataclass(frozen=True, slots=True)
class FixLine:
    """What to do, why, what to expect, and how it is spelled in the framework found."""

    do: str
    because: str = ""
    expect: str = ""
    caution: str = ""
    safe: bool = False
    changes: tuple[ChangeLine, ...] = ()
    framework: str = ""
    snippet: Snippet | None = None
    others: tuple[tuple[str, Snippet], ...] = ()  # the other frameworks' spellings


@dataclass(frozen=True, slots=True)
class Card:
    """One diagnosis, phrased. `evidence` are the sentences, the primary one first."""

    diagnosis: Diagnosis
    headline: str
    severity: str
    sure: str
    rule: str
    facts: tuple[tuple[str, str], ...] = ()
    evidence: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    causes: tuple[CauseLine, ...] = ()
    fixes: tuple[FixLine, ...] = ()
    rivals: tuple[str, ...] = ()
    chart: ChartSpec | None = None


Block = Text | KeyValues | Table | Snippet | Card | ChartSpec


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the outline under its own heading. Ids: diagnoses, normal, blind, unexplained, read, problems, failed."""

    id: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Outline:
    """A report, phrased: the title is the run's name, the verdict one line; sections that would be empty are left out."""

    title: str
    verdict: str
    sections: tuple[Section, ...] = field(default=())

    def section(self, id: str) -> Section | None:
        """The section with this id, or None when it had nothing to say."""
        return next((s for s in self.sections if s.id == id), None)
