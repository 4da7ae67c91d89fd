"""A report as sections, in the order in which a reader wants them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from diagnose.model import Finding, Mask, Report, Span, Status
from diagnose.outline.blocks import Block, KeyValues, Outline, Section, Snippet, Table, Text
from diagnose.outline.cards import card, frameworks, language_of, unit_of
from diagnose.outline.words import clean, clean_block, counted, number, path_shown, place, shown


def outline(report: Report) -> Outline:
    """The whole report as sections, in the order in which a reader wants them."""
    made = (_diagnoses(report), _blind(report), _normal(report), _unexplained(report), _failed(report), _read(report), _problems(report))
    return Outline(path_shown(report), clean(report.verdict), tuple(s for s in made if s is not None))


def _diagnoses(report: Report) -> Section | None:
    found = report.diagnoses
    return Section("diagnoses", counted(len(found), "diagnosis", "diagnoses"), tuple(card(report, d) for d in found)) if found else None


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
            blocks.append(Snippet(language_of(code), clean_block(code), f"to log {metric_shown(metric)}"))
    return Section("blind", "Could not be looked at", tuple(blocks))


def metric_shown(metric: str) -> str:
    """A needed metric in words: `a|b` is either, a trailing `*` any of a family."""
    return " or ".join(clean(m) for m in metric.split("|"))


def _heaviest(missing: Mapping[str, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    return sorted(missing.items(), key=lambda item: (-len(item[1]), item[0]))


def _normal(report: Report) -> Section | None:
    unit = unit_of(report)
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
    unit = unit_of(report)
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
    unit = unit_of(report)
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
