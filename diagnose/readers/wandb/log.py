"""One file of a run: its records, or the JSON lines of very old SDKs, as rows, settings, console and facts."""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from diagnose.model import Problem, Setting
from diagnose.readers.wandb import side
from diagnose.readers.wandb.axes import Defined
from diagnose.readers.wandb.console import Console
from diagnose.readers.wandb.frames import HEADER, MAGIC, Damage, OtherOrigin, records
from diagnose.readers.wandb.rows import MAX_JSON, Rows, plain
from diagnose.readers.wandb.wire import as_bytes, fields, message, seconds, signed, text, varint

_SUMMARY = 0x1A  # tag byte of Record.summary (3): skipped unread, half of the bytes since 0.19
_HISTORY = 0x12  # Record.history (2)
_NUM = 0x08  # Record.num (1)
_DATED = re.compile(r"run-(\d{8}_\d{6})-")
_RUN_TEXTS = {2: "entity", 3: "project", 6: "group", 7: "job_type", 8: "run_name", 12: "sweep"}


@dataclass
class Log:
    """What one file says."""

    path: Path
    rows: Rows = field(default_factory=Rows)
    system: Rows = field(default_factory=Rows)
    system_times: array[float] = field(default_factory=lambda: array("d"))
    defined: Defined = field(default_factory=Defined)
    config: dict[str, Setting] = field(default_factory=dict)
    arguments: list[Setting] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    run_id: str = ""
    started: float | None = None
    resumed: bool = False
    exit: tuple[int, str] | None = None  # code, where
    complete: bool | None = None  # whether the file says that the program ended
    version: str = ""
    damaged: int = 0
    _first_damaged: tuple[int, str] = (0, "")

    def __post_init__(self) -> None:
        self.console = Console(str(self.path))

    def order(self) -> tuple[float, str]:
        """When the file began, for sorting; the date in the directory's name decides where the record is lost."""
        hit = _DATED.search(self.path.parent.name)
        return (self.started if self.started is not None else math.inf, hit[1] if hit else self.path.parent.name)

    def where(self, offset: int) -> str:
        """The place of a record."""
        return f"{self.path}@{offset}"

    def writes_nan(self) -> bool:
        """Whether NaN of every width was written as NaN, so that null is a None (wandb#12116; seen in 0.31.0, not in 0.19.11)."""
        hit = re.match(r"(\d{1,4})\.(\d{1,4})", self.version)
        return hit is not None and (int(hit[1]), int(hit[2])) >= (0, 31)

    # -- records

    def record(self, offset: int, data: bytes) -> None:
        """One record of the log; one that can't be decoded costs only itself."""
        try:
            pos = 0
            if data[0] == _NUM:
                pos = 2
                while data[pos - 1] > 127:
                    pos += 1
            tag = data[pos] if pos < len(data) else _SUMMARY
            if tag == _SUMMARY:
                return
            if tag == _HISTORY:
                size, pos = varint(data, pos + 1)
                if pos + size > len(data):
                    raise ValueError("a field longer than its message")
                self.rows.add(data[pos : pos + size])
                return
            for number, value in fields(data):
                handle = _HANDLERS.get(number)
                if handle is not None:
                    handle(self, as_bytes(value), offset)
        except (ValueError, IndexError) as error:
            self.damaged += 1
            if self.damaged == 1:
                self._first_damaged = offset, str(error) or type(error).__name__

    def _run(self, data: bytes, offset: int) -> None:
        for number, value in fields(data):
            if number == 1:
                self.run_id = plain(text(value))
            elif number in _RUN_TEXTS:
                self.facts[_RUN_TEXTS[number]] = plain(text(value))
            elif number == 4:
                self._config(as_bytes(value), offset)
            elif number == 17:
                self.started = seconds(value)
            elif number == 18:
                self.resumed = bool(value)
            elif number == 19:
                self._telemetry(as_bytes(value), offset)
            elif number == 21:
                commit = text(message(value).get(2, b""))
                if commit:
                    self.facts["git_commit"] = plain(commit)

    def _config(self, data: bytes, offset: int) -> None:
        for number, item in fields(data):
            key, nested, raw = "", [], b""
            for inner, value in fields(as_bytes(item)):
                if inner == 1:
                    key = text(value)
                elif inner == 2:
                    nested.append(text(value))
                elif inner == 16:
                    raw = as_bytes(value)
            name = ".".join(nested) or key
            if number == 2:
                self._forget(name)
            elif number == 1 and (nested or [key])[0] != "_wandb":
                self._set(name, raw, offset)

    def _forget(self, name: str) -> None:
        for known in [k for k in self.config if k == name or k.startswith(name + ".")]:
            del self.config[known]

    def _set(self, name: str, raw: bytes, offset: int) -> None:
        try:
            value = json.loads(raw) if len(raw) <= MAX_JSON else f"{len(raw)} bytes, not read"
        except (ValueError, RecursionError):
            self.problems.append(Problem(self.where(offset), f"the setting {plain(name)[:80]} is no JSON value; it is left out"))
            return
        for dotted, scalar in side.flat(value, name):
            self.config[dotted] = Setting(dotted, scalar, spelled=dotted, where=self.where(offset))

    def _stats(self, data: bytes, offset: int) -> None:
        when, items = None, []
        for number, value in fields(data):
            if number == 2:
                when = seconds(value)
            elif number == 3:
                item = message(value)
                items.append(([text(item.get(1, b""))], as_bytes(item.get(16, b""))))
        self.system.add_items(items)
        self.system_times.append(math.nan if when is None else when)

    def _output(self, data: bytes, offset: int) -> None:
        parts = message(data)
        self.console.feed(text(parts.get(3, b"")), self.where(offset), len(self.rows), seconds(parts[2]) if 2 in parts else None)

    def _metric(self, data: bytes, offset: int) -> None:
        parts = message(data)
        self.defined.add(text(parts.get(1, b"")), text(parts.get(2, b"")), text(parts.get(4, b"")))

    def _exit(self, data: bytes, offset: int) -> None:
        self.exit = signed(message(data).get(1, 0)), self.where(offset)
        self.complete = True

    def _header(self, data: bytes, offset: int) -> None:
        producer = text(message(message(data).get(1, b"")).get(1, b""))
        self.version = plain(producer.partition("+")[0]) or self.version

    def _telemetry(self, data: bytes, offset: int) -> None:
        parts = message(data)
        self.version = self.version or plain(text(parts.get(5, b"")))
        for number, name in ((4, "python"), (6, "transformers_version")):
            if text(parts.get(number, b"")):
                self.facts[name] = plain(text(parts[number]))

    def _environment(self, data: bytes, offset: int) -> None:
        """Since mid 2025; in 0.16 the same number held sweep parameters, so only what fits is taken."""
        args, gpus = [], 0
        for number, value in fields(data):
            if number == 5:
                args.append(text(value))
            elif number == 6:
                self.facts["program"] = plain(text(value))
            elif number == 18:
                self.facts["gpu"] = plain(text(value))
            elif number == 19 and isinstance(value, int) and value:
                self.facts["gpu_count"] = value
            elif number == 24:
                gpus += 1
        if gpus:
            self.facts.setdefault("gpu_count", gpus)
        if args and text(message(data).get(1, b"")):  # field 1 is the operating system: it is an environment
            self._args(args, self.where(offset))

    def _args(self, args: list[Any], where: str) -> None:
        if args and not self.arguments:
            self.facts["args"] = " ".join(plain(str(a)) for a in args)[:4000]
            self.arguments = [Setting(name, value, spelled=name, where=where) for name, value in side.arguments(args)]

    # -- files beside the log

    def beside(self) -> None:
        """Metadata, configuration where the log has none, and the copy of the console where the log has none."""
        folders = (self.path.parent / "files", self.path.parent)
        for folder in folders:
            found = side.metadata(folder / "wandb-metadata.json")
            self._metadata(found, folder / "wandb-metadata.json")
            if not self.config:
                self._config_yaml(folder / "config.yaml")
            if not self.console.lines and side.hear(folder / "output.log", self.console, len(self.rows)):
                break
        self.console.close(len(self.rows))

    def _metadata(self, found: dict[str, Any], path: Path) -> None:
        for key in ("program", "gpu", "gpu_count", "python"):
            value = found.get(key)
            if isinstance(value, (str, int)):
                self.facts.setdefault(key, plain(value) if isinstance(value, str) else value)
        if isinstance(found.get("args"), list):
            self._args(found["args"], str(path))
        code = found.get("exitcode")
        if self.exit is None and isinstance(code, int) and abs(code) < 1 << 31:  # only SDKs that wrote JSON lines had it
            self.exit, self.complete = (code, str(path)), True

    def _config_yaml(self, path: Path) -> None:
        found = side.config_yaml(path) if path.is_file() else {}
        if found is None:
            self.problems.append(Problem(str(path), "no YAML mapping, or longer than 256 KiB; its settings are left out"))
            return
        for dotted, value in side.flat(found):
            if dotted:
                self.config[dotted] = Setting(dotted, value, spelled=dotted, where=str(path))

    # -- what was odd

    def said(self) -> None:
        """Turns the counts of odd values into problems, one each."""
        name, rows = str(self.path), self.rows
        nulls = rows.kept_nulls()
        if nulls:
            names = ", ".join(list(nulls)[:3]) + (", ..." if len(nulls) > 3 else "")
            n = sum(nulls.values())
            times = f"{n} time{'s' * (n != 1)} ({names})"
            said = f"null was read as NaN {times}: old SDKs wrote 16 and 32 bit NaN so, but it may be a None"
            if self.writes_nan():
                said = f"null stands in series of numbers {times}; it is a None and left out, since this SDK writes NaN as NaN"
            self.problems.append(Problem(name, said))
        counts = (
            (rows.mixed_flags(), "true or false stand in series of numbers; they are left out"),
            (rows.unreadable + self.system.unreadable, "values are no JSON, too long or too deep; they are left out"),
            (rows.dropped + self.system.dropped, "values belong to names beyond the first 100000; they are left out"),
        )
        self.problems += [Problem(name, f"{n} {what}") for n, what in counts if n]
        if self.damaged:
            offset, why = self._first_damaged
            said = f"{self.damaged} records can't be decoded (the first: {why}); they are left out"
            self.problems.append(Problem(self.where(offset), said))
        self.problems += self.console.problems()


_HANDLERS: dict[int, Callable[[Log, bytes, int], None]] = {
    2: lambda log, data, offset: log.rows.add(data),
    4: Log._output,
    5: Log._config,
    7: Log._stats,
    11: Log._telemetry,
    12: Log._metric,
    13: Log._output,
    17: Log._run,
    18: Log._exit,
    21: Log._header,
    26: Log._environment,
}


def seen(head: bytes) -> str:
    """What a file begins with, when that is no header of version 0; nothing when it is."""
    if len(head) < HEADER:
        return f"the file has {len(head)} bytes, less than a header; the run was killed before it wrote anything"
    if head[:6] != MAGIC:
        shown = head[:7].decode("ascii", "backslashreplace") if any(head) else "zeros"
        hint = "; it is a Git LFS pointer, fetch the file itself" if head.startswith(b"version") else ""
        return f"the file begins with {shown!r}, not with ':W&B', so it is no W&B log{hint}"
    return "" if head[6] == 0 else f"the file has version {head[6]}; only version 0 is known"


def read_log(path: Path) -> Log:
    """One `.wandb` file and what lies beside it."""
    log = Log(path)
    try:
        with path.open("rb") as file:
            refused = seen(file.read(HEADER))
        if refused:
            log.problems.append(Problem(f"{path}@0", refused))
        else:
            log = _decoded(path)
    except OSError as error:
        log.problems.append(Problem(str(path), f"can't be read ({error.strerror or error})"))
    log.beside()
    log.said()
    return log


def _decoded(path: Path) -> Log:
    for origin in (0, HEADER):
        log, damage = Log(path), Damage(str(path))
        try:
            for offset, data in records(path, origin, damage):
                log.record(offset, data)
        except OtherOrigin:
            continue
        log.problems += damage.problems()
        log.complete = log.exit is not None
        if not log.complete and not log.rows and not log.run_id:
            log.problems.append(Problem(str(path), "neither a run nor history in it; the run was killed early or the log is damaged"))
        return log
    raise AssertionError("origin 7 never asks for another origin")


def read_json_lines(path: Path) -> Log:
    """`wandb-history.jsonl` and the `wandb-events.jsonl` beside it: SDKs before 0.10."""
    log = Log(path)
    take = partial(_json_rows, log)
    take(path, log.rows.add_object)
    take(path.with_name("wandb-events.jsonl"), partial(_json_stats, log))
    log.run_id = key_of(path)
    stamps = [float(v[0]) for name, _, v in log.rows.columns() if name == "_timestamp" and math.isfinite(v[0])]
    log.started = stamps[0] if stamps else None
    log.beside()
    log.said()
    return log


def _json_rows(log: Log, path: Path, take: Callable[[dict[str, Any]], None]) -> None:
    bad, first = 0, 0
    for number, row in side.json_lines(path):
        if row is None:
            bad, first = bad + 1, first or number
        else:
            take(row)
    if bad:
        log.problems.append(Problem(f"{path}:{first}", f"{bad} lines are no JSON object; they are left out"))


def _json_stats(log: Log, row: dict[str, Any]) -> None:
    when = row.get("_timestamp")
    log.system.add_object({k.removeprefix("system."): v for k, v in row.items() if k.startswith("system.")})
    log.system_times.append(float(when) if isinstance(when, (int, float)) else math.nan)


def key_of(path: Path) -> str:
    """The run's id by names alone: `run-<id>.wandb`, else the end of `run-<date>-<id>/`."""
    if path.suffix == ".wandb":
        return path.stem.removeprefix("run-")
    hit = _DATED.search(path.parent.name)
    return path.parent.name[hit.end() :] if hit else path.parent.name
