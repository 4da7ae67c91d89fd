"""Several reports: their order, their row in a table, their count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diagnose.model import Report, Severity, Status
from diagnose.outline.words import clean, counted, number, path_shown


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
