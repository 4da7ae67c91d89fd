"""A report as sections and blocks of plain data, so that text, Markdown and the page draw the same outline.

All words in an outline are clean: control characters, terminal escapes and direction overrides from logs are gone, every
number has gone through `number`. What a face still has to do is escape for its own medium and lay out.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np

from diagnose.model import Cause, Change, Curve, Diagnosis, Evidence, Finding, Fix, Mask, Report, Severity, Span, Status

# -- numbers and words

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC with their payload
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
)


def number(value: float) -> str:
    """A number for people: whole numbers in full as `14 200`, others with four significant digits, `NaN` and `inf` as words."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return _grouped(str(int(value))) if abs(int(value)) < 10**15 else _power(Decimal(int(value)))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e7:  # loss scales are powers of two: 65 536, not 65 540
        return _grouped(str(int(value)))
    return _grouped(_fixed(value)) if 1e-4 <= abs(value) < 1e7 else _power(value)


def _fixed(value: float) -> str:
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{float(f'{value:.4g}'):.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _power(value: float | Decimal) -> str:
    mantissa, power = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def _grouped(digits: str) -> str:
    whole, dot, rest = digits.partition(".")
    sign, whole = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    if len(whole) > 4:  # four digits stay together, as in a year or a step 1700
        whole = f"{int(whole):,}".replace(",", " ")
    return f"{sign}{whole}{dot}{rest}"


def shown(value: Any) -> str:
    """Any configuration value for people; `not set` for None."""
    if value is None:
        return "not set"
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return number(value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(str(k))}: {shown(v)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(shown(v) for v in value)
    return clean(str(value))


def clean(text: str) -> str:
    """One line without control characters: terminal escapes go, line breaks become spaces, the rest shows as `\\x07`."""
    return " ".join(_visible(_ESCAPES.sub("", text), keep="\n\r\t\v\f").split())


def clean_block(text: str) -> str:
    """Several lines without control characters; line breaks and indentation stay."""
    return _visible(_ESCAPES.sub("", text).replace("\r\n", "\n").replace("\t", "    "), keep="\n").strip("\n")


def _visible(text: str, keep: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(ch if ch in keep else _safe(ch) for ch in text)


def _safe(ch: str) -> str:
    if ch.isprintable() or ch in "\u200c\u200d":  # the joiners are needed to write Persian and some emoji
        return ch
    # not printable: controls, direction overrides, lone surrogates, separators, private and unassigned code points
    return " " if unicodedata.category(ch) == "Zs" else _named(ch)


def _named(ch: str) -> str:
    code = ord(ch)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 point`, `14 200 points`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def place(span: Span | None, unit: str = "step") -> str:
    """`step 400`, `step 400 to 420`, or `the whole run`."""
    if span is None:
        return "the whole run"
    if span.first_step == span.last_step:
        return f"{unit} {number(span.first_step)}"
    return f"{unit} {number(span.first_step)} to {number(span.last_step)}"


def path_shown(report: Report) -> str:
    """The name of the run, or its path where it has no name."""
    return clean(str(report.run.get("name") or report.run.get("path") or "run"))


# -- blocks


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


# -- report -> outline


def outline(report: Report) -> Outline:
    """The whole report as sections, in the order in which a reader wants them."""
    made = (_diagnoses(report), _blind(report), _normal(report), _unexplained(report), _failed(report), _read(report), _problems(report))
    return Outline(path_shown(report), clean(report.verdict), tuple(s for s in made if s is not None))


def card(report: Report, diagnosis: Diagnosis) -> Card:
    """One diagnosis of the report, phrased."""
    unit = _unit(report)
    primary = [e for e in diagnosis.evidence if e.role == "primary"]
    related = [e for e in diagnosis.evidence if e.role not in ("primary", "against")]
    return Card(
        diagnosis,
        clean(diagnosis.summary),
        diagnosis.severity.value,
        diagnosis.confidence.value,
        diagnosis.rule,
        facts=_facts(diagnosis, unit),
        evidence=tuple(clean(e.says) for e in [*primary, *related]),
        against=tuple(clean(e.says) for e in diagnosis.evidence if e.role == "against"),
        causes=tuple(_cause(c) for c in diagnosis.causes),
        fixes=tuple(_fix(f, frameworks(report)) for f in diagnosis.fixes),
        rivals=tuple(clean(r) for r in diagnosis.rivals),
        chart=_chart(report, diagnosis),
    )


def frameworks(report: Report) -> tuple[str, ...]:
    """The frameworks that wrote the run, as found."""
    found = report.run.get("frameworks") or report.run.get("framework") or ()
    return (found,) if isinstance(found, str) else tuple(str(f) for f in found)


def _unit(report: Report) -> str:
    return clean(str(report.run.get("step_unit") or "step"))


def _diagnoses(report: Report) -> Section | None:
    found = report.diagnoses
    return Section("diagnoses", counted(len(found), "diagnosis", "diagnoses"), tuple(card(report, d) for d in found)) if found else None


def _facts(diagnosis: Diagnosis, unit: str) -> tuple[tuple[str, str], ...]:
    facts = [("since", place(diagnosis.onset, unit))]
    if diagnosis.end_step is not None:
        facts.append(("until", f"{unit} {number(diagnosis.end_step)}"))
    if diagnosis.period_steps is not None:
        facts.append(("repeats", f"every {number(diagnosis.period_steps)} {unit}s"))
    return tuple(facts)


def _cause(cause: Cause) -> CauseLine:
    return CauseLine(
        clean(cause.title),
        min(1.0, max(0.0, cause.share)) if math.isfinite(cause.share) else 0.0,
        tuple(clean(e.says) for e in cause.because if e.role != "against"),
        tuple(clean(e.says) for e in cause.because if e.role == "against"),
        clean(cause.would_decide),
    )


def _fix(fix: Fix, found: Iterable[str]) -> FixLine:
    snippets = {name: Snippet(_language(code), clean_block(code)) for name, code in fix.spelled.items() if code.strip()}
    known = {name.lower(): name for name in snippets}
    chosen = next((known[f.lower()] for f in found if f.lower() in known), "")
    chosen = chosen or next(iter(snippets), "")
    return FixLine(
        clean(fix.do),
        clean(fix.because),
        clean(fix.expect),
        clean(fix.caution),
        fix.safety == "safe",
        tuple(ChangeLine(clean(c.setting), "" if c.now is None else copyable(c.now), new_value(c)) for c in fix.changes),
        clean(chosen),
        snippets.get(chosen),
        tuple((clean(name), snippet) for name, snippet in snippets.items() if name != chosen),
    )


def new_value(change: Change) -> str:
    """What a setting becomes: computed from its present value where that is a number, else `x 0.5` or `+ 100`."""
    numeric = _numeric(change.now) and _numeric(change.value)
    if change.op == "scale":
        return copyable(change.now * change.value) if numeric else f"x {copyable(change.value)}"
    if change.op == "add":
        return copyable(change.now + change.value) if numeric else f"+ {copyable(change.value)}"
    return copyable(change.value)


def _numeric(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def copyable(value: Any) -> str:
    """A configuration value as one would type it: no grouping, at most six significant digits."""
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return shown(value)


def _language(code: str) -> str:
    text = code.strip()
    if text.startswith(("{", '"')):
        return "json"
    if text.startswith(("--", "$ ")):
        return "bash"
    if re.match(r"^[\w.-]+:(\s|$)", text):
        return "yaml"
    return "python"


def _chart(report: Report, diagnosis: Diagnosis) -> ChartSpec | None:
    curves = [c.name for c in report.curves]
    findings = {f.id: f for f in report.findings if f.id}
    evidence = sorted(diagnosis.evidence, key=lambda e: e.role != "primary")
    names: list[str] = []
    for piece in evidence:
        name = _signal_of(piece, findings)
        if name in curves and name not in names:
            names.append(name)
    if not names:
        names = [n for n in ("loss/train", *curves[:1]) if n in curves][:1]
    if not names:
        return None
    first = next((findings[e.about] for e in evidence if e.about in findings), None)
    shaded = [Shade(e.span, clean(e.says)) for e in evidence if e.span is not None]
    marks = [Mark(diagnosis.onset.first_step, "onset")] if diagnosis.onset else []
    if diagnosis.end_step is not None:
        marks.append(Mark(diagnosis.end_step, "end", "end"))
    low = first is not None and first.direction == "down" and first.signal == names[0]
    return ChartSpec(clean(diagnosis.summary), tuple(names), tuple(shaded), tuple(marks), low)


def _signal_of(piece: Evidence, findings: Mapping[str, Finding]) -> str:
    found = findings.get(piece.about)
    return found.signal if found else piece.about


def _blind(report: Report) -> Section | None:
    if not report.missing:
        return None
    blind = {r for rules in report.missing.values() for r in rules}
    lead = f"{counted(len(blind), 'rule')} could not look, because the log lacks what they need. Not looked at is not the same as fine."
    rows = tuple((metric_shown(metric), ", ".join(clean(r) for r in rules)) for metric, rules in _heaviest(report.missing))
    blocks: list[Block] = [Text(lead), Table(("not logged", "rules that need it"), rows)]
    for metric, _ in _heaviest(report.missing):
        code = report.advice.get(metric, "")
        if code.strip():
            blocks.append(Snippet(_language(code), clean_block(code), f"to log {metric_shown(metric)}"))
    return Section("blind", "Could not be looked at", tuple(blocks))


def metric_shown(metric: str) -> str:
    """A needed metric in words: `a|b` is either, a trailing `*` any of a family."""
    return " or ".join(clean(m) for m in metric.split("|"))


def _heaviest(missing: Mapping[str, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    return sorted(missing.items(), key=lambda item: (-len(item[1]), item[0]))


def _normal(report: Report) -> Section | None:
    unit = _unit(report)
    explained = [f for f in report.findings if f.masks]
    if not explained:
        return None
    words = {m.kind: m for m in report.masks}
    rows = []
    for finding in explained:
        why = "; ".join(_mask_says(m, words) for m in finding.masks)
        rows.append((clean(finding.signal), shape(finding), place(finding.span, unit), why))
    return Section("normal", "Normal here", (Table(("signal", "shape", "where", "explained by"), tuple(rows)),))


def _mask_says(name: str, known: Mapping[str, Mask]) -> str:
    return clean(known[name].says) if name in known else re.sub(r"^X\d+: ", "", clean(name))


def shape(finding: Finding) -> str:
    """A finding in a few words: `spike up, 12.3 noise widths`."""
    way = "" if finding.direction == "none" else f" {finding.direction}"
    strength = f", {number(finding.strength)} noise widths" if finding.strength else ""
    return f"{clean(finding.kind)}{way}{strength}"


def _unexplained(report: Report) -> Section | None:
    unit = _unit(report)
    wanted = set(report.unexplained)
    found = sorted((f for f in report.findings if f.id in wanted), key=lambda f: (-f.strength, f.onset.first_step, f.signal))
    if not found:
        return None
    rows = tuple((clean(f.signal), shape(f), place(f.span, unit)) for f in found)
    lead = "These stand out from the noise, and no diagnosis rests on them."
    return Section("unexplained", "Unexplained shapes", (Text(lead), Table(("signal", "shape", "where"), rows)))


def _failed(report: Report) -> Section | None:
    rows = tuple((clean(o.rule), clean(o.error) or "no message") for o in report.outcomes if o.status is Status.FAILED)
    if not rows:
        return None
    lead = "These rules broke on this run, which is a bug in the rule; what they would have said is missing here."
    return Section("failed", "Rules that failed", (Text(lead), Table(("rule", "error"), rows)))


def _read(report: Report) -> Section | None:
    run, pairs = report.run, []
    unit = _unit(report)
    if run.get("path") and len(report.sources) != 1:  # one file is named below
        pairs.append(("path", shown(run["path"])))
    if report.readable:
        points = counted(int(run.get("points") or 0), "point")
        signals = int(run.get("signals") or len(report.curves))
        if signals:
            points += f" of {counted(signals, 'signal')}"
        pairs.append(("points", points))
        if run.get("first_step") is not None and run.get("last_step") is not None:
            pairs.append(("span", place(Span(int(run["first_step"]), int(run["last_step"])), unit)))
        if int(run.get("attempts") or 1) > 1:
            pairs.append(("attempts", number(int(run["attempts"]))))
    if frameworks(report):
        pairs.append(("written by", ", ".join(clean(f) for f in frameworks(report))))
    pairs += [(key, shown(run[key])) for key in ("started", "ended") if run.get(key) not in (None, "")]
    statuses = [o.status for o in report.outcomes]
    if statuses:
        counts = [(s.value.replace("-", " "), statuses.count(s)) for s in Status]
        pairs.append(("rules", ", ".join(f"{n} {word}" for word, n in counts if n)))
    blocks: list[Block] = [KeyValues(tuple(pairs))] if pairs else []
    if report.sources:
        versions = any(s.version for s in report.sources)
        rows = tuple((*((clean(s.version),) if versions else ()), clean(s.reader), clean(s.path)) for s in report.sources)
        blocks.append(Table((*(("version",) if versions else ()), "format", "file"), rows))
    return Section("read", "What was read", tuple(blocks)) if blocks else None


def _problems(report: Report) -> Section | None:
    rows = tuple((clean(p.where), clean(p.what)) for p in report.problems)
    return Section("problems", "Problems of reading", (Table(("where", "what"), rows),)) if rows else None


# -- what several faces share


def ranked(reports: Iterable[Report]) -> list[Report]:
    """Reports worst first: by severity, certainty, then by name; unreadable runs stand before the clean ones."""
    return sorted(reports, key=lambda r: (-_weight(r)[0], -_weight(r)[1], path_shown(r), str(r.run.get("path", ""))))


def _weight(report: Report) -> tuple[int, int]:
    if not report.diagnoses:
        return (0 if report.readable else 1), 0
    worst = report.diagnoses[0]
    return worst.severity.rank + 2, worst.confidence.rank


def overview(report: Report) -> tuple[str, str, str, str, str]:
    """One row of a table over runs: run, verdict, severity, since, sure. The verdict leaves out what the other cells say."""
    name = path_shown(report)
    if not report.readable:
        return name, clean(report.verdict.removeprefix("Could not judge: ")), "unreadable", "", ""
    if not report.diagnoses:
        return name, _nothing(report), "none", "", ""
    worst = report.diagnoses[0]
    more = sum(d.severity is not Severity.INFO for d in report.diagnoses[1:])
    since = number(worst.onset.first_step) if worst.onset else "start"
    verdict = f"{worst.rule}: {clean(worst.summary)}{f' (+{more} more)' if more else ''}"
    return name, verdict, worst.severity.value, since, worst.confidence.value


def _nothing(report: Report) -> str:
    looked = sum(o.status in (Status.FIRED, Status.QUIET) for o in report.outcomes)
    if not looked:
        return "no rule could look, metrics not logged"
    return f"nothing found ({looked} of {counted(len(report.outcomes), 'rule')} looked)"


def origin(report: Report) -> str:
    """The path to give for judging this run again: its one file, else its folder."""
    files = [s.path for s in report.sources]
    return clean(files[0] if len(files) == 1 else str(report.run.get("path") or report.run.get("name") or ""))


def summary(reports: Sequence[Report]) -> str:
    """One line over many runs: `12 runs: 2 critical, 1 major, 1 could not be judged, 8 without a diagnosis`."""
    parts = []
    for severity in reversed(list(Severity)):
        count = sum(1 for r in reports if r.worst is severity)
        if count:
            parts.append(f"{number(count)} {severity.value}")
    blind = sum(1 for r in reports if r.worst is None and not r.readable)
    if blind:
        parts.append(f"{number(blind)} could not be judged")
    fine = sum(1 for r in reports if r.worst is None and r.readable)
    if fine:
        parts.append(f"{number(fine)} without a diagnosis")
    return f"{counted(len(reports), 'run')}: {', '.join(parts) or 'nothing'}."


def curve_of(report: Report, name: str) -> Curve | None:
    """The thinned curve of a signal, or None when the report does not carry it."""
    return next((c for c in report.curves if c.name == name), None)
