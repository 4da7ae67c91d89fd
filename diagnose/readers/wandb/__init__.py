"""W&B's own log, `wandb/(offline-)run-<date>-<id>/run-<id>.wandb`, written by SDKs 0.12 to 0.31, and older JSON lines.

Every history value that is a number becomes a point under the name as the server shows it (nested parts joined with dots).
Histograms, images and text are not kept, but of the histograms `gradients/*` their smallest and largest edge and their norm
(`<key>/min`, `<key>/max`, `<key>/norm`, from the bins). The machine's own numbers are `system/<key>`. Directories of one
run id are attempts of one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.model import Event, Floats, Frozen, Problem, Setting, Source
from diagnose.parts import RawRun, RawSeries, Reader
from diagnose.readers.wandb.axes import Axes, series_of, system_of
from diagnose.readers.wandb.frames import MAGIC
from diagnose.readers.wandb.log import Log, key_of, read_json_lines, read_log

_JSON_LINES = "wandb-history.jsonl"
_OVERLAP_S = 5.0  # clocks of two attempts may differ so much without being two writers at once
_HF = ("transformers_version", "per_device_train_batch_size", "_name_or_path")  # keys that only HF's callback logs


def _claims(path: Path) -> bool:
    try:
        if path.name == _JSON_LINES:
            return True
        if path.name.startswith("run-") and path.suffix == ".wandb":
            return path.is_file()  # also one of 0 bytes, or with zeros: reading says what was seen
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


def _home(path: Path) -> Path:
    base = path.parent.parent
    return base.parent if base.name in ("wandb", ".wandb") else path.parent


def _read(paths: Sequence[Path]) -> RawRun:
    logs = sorted((_one(p) for p in _distinct(paths)), key=Log.order)
    series: list[RawSeries] = []
    events: list[Event] = []
    problems: list[Problem] = []
    spans: list[_Span] = []
    for k, log in enumerate(logs):
        found, axes, clock = series_of(log.rows, log.defined, k, nulls=not log.writes_nan())
        series += found + system_of(log.system, log.system_times, k)
        span = _Span(log, axes, clock)
        if spans:
            events += _continued(spans[-1], span)
            problems += _concurrent(spans[-1], span)
        spans.append(span)
        events += _events(log, axes)
        problems += [*log.problems, *(Problem(str(log.path), said) for said in axes.said())]
    settings, changes = _settings(logs)
    last = logs[-1] if logs else None
    return RawRun(
        tuple(series), settings=settings, events=(*events, *changes), problems=tuple(problems),
        sources=tuple(Source(str(log.path), "wandb", log.version) for log in logs),
        key=next((log.run_id for log in logs if log.run_id), key_of(logs[0].path) if logs else ""),
        clean_end=None if last is None or last.complete is None else last.exit is not None and last.exit[0] == 0,
        facts=Frozen(_facts(logs, series, settings)),
    )  # fmt: skip


def _distinct(paths: Sequence[Path]) -> list[Path]:
    """Each file once: `latest-run` is a link to the last run, and JSON lines give way to a `.wandb` of the same directory."""
    by_target = {path.resolve(): path for path in reversed([Path(p) for p in paths])}
    logs = {target.parent for target in by_target if target.suffix == ".wandb"}
    return [path for target, path in reversed(by_target.items()) if target.name != _JSON_LINES or target.parent not in logs]


def _one(path: Path) -> Log:
    return read_json_lines(path) if path.name == _JSON_LINES else read_log(path)


class _Span:
    """Where a file began and ended, in steps and seconds."""

    def __init__(self, log: Log, axes: Axes, clock: Floats) -> None:
        self.log = log
        steps = axes.filled(axes.main) if axes.main else axes.own
        self.first: int | None = int(steps[0]) if len(steps) else None
        self.last: int | None = int(np.max(steps)) if len(steps) else None
        known = clock[np.isfinite(clock)]
        self.began: float | None = float(known[0]) if len(known) else None
        self.ended: float | None = float(known[-1]) if len(known) else None


def _continued(before: _Span, now: _Span) -> list[Event]:
    """The event where a later file of the same run begins."""
    kind = "resume" if now.log.resumed or (now.first or 0) > 0 else "restart"
    if now.first is None or before.last is None:
        said, numbers = f"the run was started again in {now.log.path.parent.name}", {}
    else:
        said = f"the run goes on at step {now.first} in {now.log.path.parent.name}; the file before it had reached step {before.last}"
        numbers = {"first_step": float(now.first), "last_step_before": float(before.last)}
    return [Event(kind, said, where=f"{now.log.path}@0", step=now.first, time=now.log.started or now.began, numbers=Frozen(numbers))]


def _concurrent(before: _Span, now: _Span) -> list[Problem]:
    if before.ended is None or now.began is None or now.began >= before.ended - _OVERLAP_S:
        return []
    early, other = before.ended - now.began, before.log.path.parent.name
    return [Problem(str(now.log.path), f"begins {early:.0f} s before {other} of the same run id ends: two writers at once, not a restart")]


def _events(log: Log, axes: Axes) -> list[Event]:
    events = [replace(heard.event, step=axes.at(heard.row)) for heard in log.console.heard]
    if log.exit is not None:
        code, where = log.exit
        step, numbers = axes.at(len(log.rows)), Frozen({"exit_code": float(code)})
        events.append(Event("exit", f"the program ended with exit code {code}", where=where, step=step, numbers=numbers))
    return events


def _settings(logs: Sequence[Log]) -> tuple[tuple[Setting, ...], list[Event]]:
    """Command line first, then configuration, which wins; later attempts win over earlier ones, and what they changed is an event."""
    settings: dict[str, Setting] = {}
    changes = []
    config: dict[str, Setting] = {}
    for k, log in enumerate(logs):
        for setting in log.arguments:
            settings.setdefault(setting.name, setting)
        for name, setting in log.config.items():
            if k and name in config and not _same(config[name].value, setting.value):
                said = f"{name} was {_shown(config[name].value)} and is {_shown(setting.value)} from {log.path.parent.name} on"
                changes.append(Event("config", said, where=setting.where, time=log.started))
            settings[name] = config[name] = setting
    return tuple(settings.values()), changes[:100]


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) or str(one) == str(other) == "nan"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _facts(logs: Sequence[Log], series: Sequence[RawSeries], settings: Sequence[Setting]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for log in logs:
        facts.update(log.facts)
    names = {s.name for s in series}
    spelled = {s.name for s in settings}
    if "train/global_step" in names and (spelled & set(_HF) or "transformers_version" in facts):
        facts["framework"] = "hf"
    elif "trainer/global_step" in names:
        facts["framework"] = "lightning"
    elif any(n.startswith("Train/Samples/") for n in names):
        facts["framework"] = "deepspeed"
    started = [log.started for log in logs if log.started is not None]
    if started:
        facts["started"] = _iso(started[0])
    versions = [log.version for log in logs if log.version]
    if versions:
        facts["wandb_version"] = versions[-1]
    texts = [name for log in logs for name in log.rows.texts if name not in names]
    if texts:
        facts["not_numeric"] = list(dict.fromkeys(texts))[:100]
    return facts


def _iso(when: float) -> str:
    try:
        return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return ""


READER = Reader("wandb", "W&B log (.wandb)", _claims, _read, home=_home, priority=90, key=key_of, exclusive=True)
