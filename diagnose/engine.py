"""One run through the pipe: files -> run table -> signals -> findings -> outcomes -> report. Every stage can be saved.

`read` gives the table, `judge` the report, `diagnose` both in one; `examine` runs the detectors alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnose import assembly, curves, metrics, registry
from diagnose import signals as stage
from diagnose.assembly import Target, discover
from diagnose.case import Case
from diagnose.errors import DiagnoseError, NothingReadable
from diagnose.model import Curve, Diagnosis, Finding, Frozen, Mask, Outcome, Problem, Report, Severity, Signal, Status
from diagnose.parts import Rule
from diagnose.table import Run

MADE_BY = "diagnose 0.1.0"
CURVE_POINTS = 1200  # of one drawn curve; thinning keeps every extreme


def read(what: Target | str | Path) -> Run:
    """The run table of a target, a file, a run directory, or a saved table."""
    if isinstance(what, Target):
        return assembly.read(what)
    path = Path(what)
    if path.suffix == ".parquet" and path.is_file():
        return Run.load(path)
    targets = discover([path])
    if len(targets) > 1:
        names = ", ".join(t.name for t in targets[:5])
        raise NothingReadable(
            f"holds {len(targets)} runs ({names}, ...).", where=str(path), hint="Name one of them, or use `diagnose scan`."
        )
    return assembly.read(targets[0])


def diagnose(what: Target | str | Path) -> Report:
    """Reads and judges one run."""
    return judge(read(what))


@curves.quietly
def judge(run: Run) -> Report:
    """The report on a run table. A rule that fails costs itself."""
    ready = stage.build(run)
    findings = examine(ready.by_name, ready.masks, ready.facts)
    case = Case(
        run.name,
        run.step_unit,
        signals=ready.by_name,
        findings=findings,
        events=ready.events,
        settings=ready.settings,
        masks=ready.masks,
        facts=ready.facts,
    )
    outcomes = judge_case(case)
    return _report(run, ready, findings, outcomes)


@curves.quietly
def judge_signals(
    named: Mapping[str, Signal], *, settings: Mapping[str, Any] | None = None, events: Sequence[Any] = ()
) -> tuple[Case, tuple[Outcome, ...]]:
    """Judges signals given by canonical name, with canonical settings: for examples, tests and programs."""
    from diagnose.model import Setting
    from diagnose.table import ordered

    series = tuple(ordered(n, s.logged_as or n, s.steps, s.values, s.times, rank=None, source=0) for n, s in named.items())
    spelled = tuple(Setting(k, v, spelled=k, where="example") for k, v in (settings or {}).items())
    ready = stage.build(Run("example", series=series, events=tuple(events), settings=spelled))
    known = {**{s.name: s for s in spelled}, **ready.settings}
    findings = examine(ready.by_name, ready.masks, ready.facts)
    case = Case(
        "example",
        "step",
        signals=ready.by_name,
        findings=findings,
        events=tuple(events),
        settings=Frozen(known),
        masks=ready.masks,
        facts=ready.facts,
    )
    return case, judge_case(case)


# -- detectors


def examine(named: Mapping[str, Signal], masks: Sequence[Mask] = (), facts: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
    """Every detector once on every signal whose metric asks for its shape; findings numbered and marked with their masks."""
    found: list[Finding] = []
    layers = sorted(
        (n for n in named if n.startswith("grad_norm/layer/")), key=lambda n: metrics.depth_of(n.removeprefix("grad_norm/layer/"))
    )
    for part in registry.detectors():
        if hasattr(part, "detect_group"):
            if len(layers) >= 2:
                found += part.detect_group([named[n] for n in layers])
            continue
        for name, signal in named.items():
            if part.shape in metrics.metric(name).shapes and len(signal):
                found += part.detect(signal)
    found.sort(key=lambda f: (f.onset.first_step, f.kind, f.signal, f.span.last_step))
    return tuple(replace(f, id=f"f{i}", masks=_explained(f, masks)) for i, f in enumerate(found, 1))


# which known event explains which shape on which signal: knowledge 0.3, column "what it explains"
_EXPLAINS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "X1": (("level-shift", "drift", "jump"), ("loss/", "grad_norm", "accuracy", "noise_scale"), ("down", "up", "none")),
    "X2": (
        ("level-shift", "spike", "growth", "divergence", "period", "drift", "plateau", "alternation"),
        ("loss/", "grad_norm", "accuracy", "noise_scale"),
        (),
    ),
    "X3": (
        ("level-shift", "jump", "spike", "drift", "growth", "divergence"),
        ("loss/", "grad_norm", "time/", "throughput/", "noise_scale", "mfu"),
        (),
    ),
    "X4": (
        ("level-shift", "jump", "spike", "drift", "growth", "divergence", "plateau"),
        ("loss/", "grad_norm", "time/", "throughput/", "noise_scale", "mfu"),
        (),
    ),
    "X5": (("level-shift", "jump", "spike", "growth", "drift", "divergence"), ("loss/", "grad_norm", "lr", "time/", "throughput/"), ()),
    "X12": (("jump",), ("loss/", "grad_norm"), ()),
}


def _explained(finding: Finding, masks: Sequence[Mask]) -> tuple[str, ...]:
    hits = []
    for mask in masks:
        rule = _EXPLAINS.get(mask.kind)
        if rule is None or finding.kind not in rule[0] or not any(finding.signal.startswith(p) for p in rule[1]):
            continue
        if mask.kind == "X1" and finding.signal.startswith("loss/") and finding.direction == "up":
            continue  # a falling rate never explains a rising loss
        if finding.onset.overlaps(mask.span):
            hits.append(f"{mask.kind}: {mask.says}")
    return tuple(dict.fromkeys(hits))[:3]


# -- rules


def judge_case(case: Case) -> tuple[Outcome, ...]:
    """All rules on a case, by id, then the rivalry between diagnoses of one incident settled."""
    outcomes = [_judge_one(rule, case) for rule in registry.rules()]
    return _settled(tuple(outcomes), case)


def _judge_one(rule: Rule, case: Case) -> Outcome:
    missing = tuple(n for n in rule.needs if not case.has(n))
    if missing:
        return Outcome(rule.id, Status.NOT_APPLICABLE, missing=missing)
    start = time.perf_counter()
    try:
        diagnoses = tuple(rule.judge(case))
    except Exception as error:
        return Outcome(rule.id, Status.FAILED, error=f"{type(error).__name__}: {error}", took_s=round(time.perf_counter() - start, 4))
    status = Status.FIRED if diagnoses else Status.QUIET
    return Outcome(rule.id, status, diagnoses=diagnoses, missing=tuple(w for w in rule.wants if not case.has(w)))


def _settled(outcomes: tuple[Outcome, ...], case: Case) -> tuple[Outcome, ...]:
    """A diagnosis that names another fired one of the same incident in `rivals` gives way to it: it is kept, as info."""
    fired = {d.rule: d for o in outcomes for d in o.diagnoses}
    slack = case.near(10, 0.05)

    def meets(d: Diagnosis, other: Diagnosis) -> bool:
        return d.onset is None or other.onset is None or d.onset.overlaps(other.onset, slack)

    def yields(d: Diagnosis) -> bool:
        return any(r in fired and d.rule not in fired[r].rivals and meets(d, fired[r]) for r in d.rivals)

    out = []
    for outcome in outcomes:
        kept = tuple(replace(d, severity=Severity.INFO) if d.severity.rank > 0 and yields(d) else d for d in outcome.diagnoses)
        out.append(replace(outcome, diagnoses=kept))
    return tuple(out)


# -- the report


def _report(run: Run, ready: stage.Signals, findings: tuple[Finding, ...], outcomes: tuple[Outcome, ...]) -> Report:
    from diagnose.remedies import logging_snippet

    rested = {e.about for o in outcomes for d in o.diagnoses for e in d.evidence}
    spans = [d.onset for o in outcomes for d in o.diagnoses if d.onset is not None]
    unexplained = tuple(
        f.id
        for f in findings
        if f.id not in rested
        and not f.masks
        and f.kind not in ("jump", "jump-in-schedule", "plateau")
        and not any(f.onset.overlaps(s, 5) for s in spans)
    )
    missing: dict[str, list[str]] = {}
    for outcome in outcomes:
        for name in outcome.missing if outcome.status is Status.NOT_APPLICABLE else ():
            missing.setdefault(name, []).append(outcome.rule)
    framework = str(ready.facts.get("framework", ""))
    advice = {n: logging_snippet(n.split("|")[0].removesuffix("/*"), framework or None) for n in missing}
    facts = {
        "name": run.name,
        "path": run.path,
        "step_unit": run.step_unit,
        "first_step": ready.facts["first_step"],
        "last_step": ready.facts["last_step"],
        "points": run.points,
        "attempts": ready.facts.get("attempts", 1),
        "framework": framework,
        "signals": len(ready.by_name),
    }
    used = {f.signal for f in findings}
    report = Report(
        Frozen(facts),
        "",
        outcomes=outcomes,
        findings=findings,
        unexplained=unexplained,
        masks=ready.masks,
        curves=_curves(ready.by_name, used),
        events=run.events,
        settings=tuple(s for _, s in sorted(ready.settings.items())),
        sources=run.sources,
        problems=run.problems,
        missing=Frozen({k: tuple(v) for k, v in missing.items()}),
        advice=Frozen({k: v for k, v in advice.items() if v}),
        made_by=MADE_BY,
    )
    return replace(report, verdict=verdict(report))


def _curves(named: Mapping[str, Signal], used: Iterable[str]) -> tuple[Curve, ...]:
    first = ("loss/train", "loss/eval", "grad_norm", "lr", "loss_scale")
    layers = [n for n in named if n.startswith("grad_norm/layer/")]
    names = [*(n for n in first if n in named), *(n for n in named if (n in metrics.CATALOGUE or n in used) and n not in first), *layers]
    out = []
    for name in dict.fromkeys(names[:64]):
        signal = named[name]
        index = curves.thin(signal.values, CURVE_POINTS) if len(signal) > CURVE_POINTS else np.arange(len(signal))
        out.append(Curve(name, signal.logged_as, signal.unit, signal.steps[index], signal.values[index], points=len(signal)))
    return tuple(out)


def verdict(report: Report) -> str:
    """One line: what, since which step, how sure; or that nothing was found, and by how many rules."""
    if not report.readable:
        return "Nothing to judge: no number could be read."
    blind = sum(o.status is Status.NOT_APPLICABLE for o in report.outcomes)
    looked = sum(o.status in (Status.FIRED, Status.QUIET) for o in report.outcomes)
    serious = [d for d in report.diagnoses if d.severity is not Severity.INFO]
    if not serious:
        tail = f"; {blind} could not look (see what is not logged)" if blind else ""
        return f"Nothing wrong found: {looked} rules looked at {report.run['points']} points{tail}."
    worst = serious[0]
    more = f" (+{len(serious) - 1} more)" if len(serious) > 1 else ""
    return f"{worst.severity.value.upper()}: {worst.summary} [{worst.rule}, {worst.confidence.value} confidence]{more}"


def unreadable(name: str, path: str, error: Exception) -> Report:
    """The report of a run that could not be read: its verdict and problem say why."""
    says = str(error) if isinstance(error, DiagnoseError) else f"{type(error).__name__}: {error}"
    return Report(Frozen(name=name, path=path, points=0), f"Could not judge: {says}", problems=(Problem(path, says),), made_by=MADE_BY)
