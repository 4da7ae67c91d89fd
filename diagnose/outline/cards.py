"""One diagnosis as a card: facts, evidence, causes, fixes and the chart that shows it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from diagnose.model import Cause, Change, Curve, Diagnosis, Evidence, Finding, Fix, Report
from diagnose.outline.blocks import Card, CauseLine, ChangeLine, ChartSpec, FixLine, Mark, Shade, Snippet
from diagnose.outline.words import clean, clean_block, number, place, shown


def card(report: Report, diagnosis: Diagnosis) -> Card:
    """One diagnosis of the report, phrased."""
    unit = unit_of(report)
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


def unit_of(report: Report) -> str:
    """What the run counts its steps in."""
    return clean(str(report.run.get("step_unit") or "step"))


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
    snippets = {name: Snippet(language_of(code), clean_block(code)) for name, code in fix.spelled.items() if code.strip()}
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


def language_of(code: str) -> str:
    """The language of a snippet, for highlighting."""
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


def curve_of(report: Report, name: str) -> Curve | None:
    """The thinned curve of a signal, or None when the report does not carry it."""
    return next((c for c in report.curves if c.name == name), None)
