"""One event file: its points, settings, texts and marks, under the names as logged."""

from __future__ import annotations

import gzip
import io
import math
import zlib
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from diagnose.model import Event, Frozen, Problem, Setting
from diagnose.readers.tensorboard import config, wire
from diagnose.readers.tensorboard.frames import Damage, Frames
from diagnose.readers.tensorboard.numbers import SUMMARIES, Summary, of_histogram, of_table
from diagnose.readers.tensorboard.points import Points, Record, decode, step_of, time_of
from diagnose.readers.tensorboard.wire import Malformed, Other, Parsed, Span

GZIP = b"\x1f\x8b"
_MOST_UNPACKED = 512 << 20  # bytes of a gzip file; a small one can hold terabytes of zeros
_MOST_TEXTS = 5000  # kept of one file; Megatron writes about 400
_START, _STOP = 1, 2  # SessionLog.status, event.proto


@dataclass(slots=True)
class Log:
    """What one file says; `first_time` is the wall time of its version event, else of its first point, else NaN."""

    path: Path
    points: Points = field(default_factory=Points)
    settings: dict[str, Setting] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    starts: list[Event] = field(default_factory=list)  # SessionLog START: whether it is a restart, the run knows
    problems: list[Problem] = field(default_factory=list)
    other_tags: dict[str, str] = field(default_factory=dict)  # tags that hold no numbers, and what they hold
    plugins: dict[bytes, bytes] = field(default_factory=dict)
    texts: dict[str, tuple[str, int, int, float]] = field(default_factory=dict)  # tag: text, place, step, time
    writer: str = ""
    version: str = ""
    records: int = 0
    stopped: bool = False
    first_time: float = math.nan


def read_log(path: Path) -> Log:
    """Reads a file as far as it can be read; never raises for what stands in it."""
    log = Log(path)
    damage = Damage(str(path))
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            stream: BufferedIOBase = file
            if file.read(2) == GZIP:
                stream, size = _unpacked(file, damage)
            stream.seek(0)
            for window in Frames(stream, size, damage):
                log.records += len(window.starts)
                for record in decode(window, log.points):
                    _take(log, record, damage)
                log.points.end_window()
    except OSError as error:
        damage.problems.append(Problem(str(path), f"can't be read: {error.strerror or error}"))
    if not log.records and not damage.problems:
        damage.problems.append(Problem(str(path), "holds no event"))
    log.first_time = log.points.first_time if math.isnan(log.first_time) else log.first_time
    _configure(log)
    log.problems = damage.all()
    return log


def _unpacked(file: BufferedIOBase, damage: Damage) -> tuple[BufferedIOBase, int]:
    """The content of a gzip file, as much as can be had of a damaged one."""
    file.seek(0)
    parts: list[bytes] = []
    size = 0
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            while size < _MOST_UNPACKED and (chunk := unpacked.read1(1 << 20)):
                parts.append(chunk)
                size += len(chunk)
        if size >= _MOST_UNPACKED:
            damage.say(0, "gzip", f"unpacks to more than {_MOST_UNPACKED >> 20} MiB; the rest is unread")
    except (OSError, EOFError, zlib.error) as error:
        damage.say(0, "gzip", f"the gzip stream is damaged after {size} unpacked bytes ({error})")
    return io.BytesIO(b"".join(parts)), size


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _take(log: Log, record: Record, damage: Damage) -> None:
    """What a record holds besides numbers."""
    place, payload, parsed = record
    if parsed.broken:
        damage.say(place, "records that are no events", f"a record of {len(payload)} bytes is not an event though its checksum is right")
        return
    try:
        if parsed.file_version != wire.NOWHERE:
            log.version = log.version or _text(payload[slice(*parsed.file_version)])[:100]
            log.first_time = time_of(payload, parsed) if math.isnan(log.first_time) else log.first_time
        if parsed.writer != wire.NOWHERE:
            log.writer = log.writer or _writer(payload, parsed.writer)
        if parsed.session != wire.NOWHERE:
            _session(log, place, payload, parsed)
        for tag, metadata in parsed.metadata:
            _metadata(log, place, payload, tag, metadata)
        for other in parsed.others:
            _other(log, record, other)
    except (Malformed, IndexError):
        damage.say(place, "values that can't be decoded", f"a value in a record of {len(payload)} bytes can't be decoded")


def _writer(payload: bytes, place: Span) -> str:
    return next((_text(payload[a:b])[:200] for key, a, b in wire.fields(payload, *place) if key == 0x0A), "")


def _session(log: Log, place: int, payload: bytes, parsed: Parsed) -> None:
    status, message = 0, ""
    for key, begin, end in wire.fields(payload, *parsed.session):
        if key == 0x08:
            status = wire.varint(payload, begin)[0]
        elif key == 0x1A:
            message = _text(payload[begin:end])[:500]
    step, time = step_of(payload, parsed), time_of(payload, parsed)
    where = f"{log.path}@{place}"
    if status == _START:
        log.starts.append(Event("restart", f"the writer starts again at step {step}", where=where, step=step, time=time))
    elif status == _STOP:
        log.stopped = True
        log.events.append(Event("exit", message or "the writer was closed", where=where, step=step, time=time))
    elif message:
        log.events.append(Event("checkpoint", message, where=where, step=step, time=time))


def _metadata(log: Log, place: int, payload: bytes, tag: Span, metadata: Span) -> None:
    name = payload[slice(*tag)]
    for key, begin, end in wire.fields(payload, *metadata):
        if key != 0x0A:
            continue
        parts = {k: payload[a:b] for k, a, b in wire.fields(payload, begin, end)}
        plugin = parts.get(0x0A, b"")
        if len(log.plugins) < _MOST_TEXTS:
            log.plugins.setdefault(name, plugin)
        if plugin == b"hparams":
            _settle(log, config.of_hparams(parts.get(0x12, b"")), place)


def _settle(log: Log, found: dict[str, Any], place: int) -> None:
    for name, value in found.items():
        log.settings[name] = Setting(name, value, spelled=name, where=f"{log.path}@{place}")


def _other(log: Log, record: Record, other: Other) -> None:
    place, payload, parsed = record
    tag = payload[slice(*other.tag)]
    if other.kind == "histo":
        _summarise(log, record, tag, of_histogram(payload, other.at))
    elif other.kind == "tensor" and len(other.dims) == 2 and other.dims[1] == 3 and log.plugins.get(tag, b"histograms") == b"histograms":
        _summarise(log, record, tag, of_table(payload, other.at))
    elif other.kind == "strings":
        text = "\n".join(_text(payload[a:b]) for key, a, b in wire.fields(payload, *other.at) if key == 0x42)
        name = _text(tag)
        if (name in log.texts or len(log.texts) < _MOST_TEXTS) and len(text) <= config.LONGEST_TEXT:
            log.texts[name] = (text, place, step_of(payload, parsed), time_of(payload, parsed))
        else:
            log.other_tags.setdefault(name, "text")
    elif not tag.startswith(b"_hparams_/") and len(log.other_tags) < _MOST_TEXTS:
        log.other_tags.setdefault(_text(tag), other.kind)


def _summarise(log: Log, record: Record, tag: bytes, said: Summary) -> None:
    place, payload, parsed = record
    step, time = step_of(payload, parsed), time_of(payload, parsed)
    for name in SUMMARIES:
        if name in said:
            log.points.add(place, tag + b"/" + name.encode(), step, time, said[name])


def _configure(log: Log) -> None:
    """Settings from the texts; what looks like a configuration but can't be parsed becomes an event."""
    names = {tag: tag.removesuffix("/text_summary") for tag in log.texts}
    single = {tag for tag, name in names.items() if config.ARGUMENT_TAG.match(name) and "\n" not in log.texts[tag][0]}
    single -= {tag for tag in single if config.CONFIG_TAG.search(names[tag])}
    arguments = single if len(single) >= config.ARGUMENTS_AT_LEAST else set()
    for tag, (text, place, step, time) in log.texts.items():
        name = names[tag]
        if tag in arguments:
            _settle(log, {name: config.scalar(text)}, place)
        elif config.CONFIG_TAG.search(name):
            found = config.of_text(text)
            if found:
                _settle(log, found, place)
            else:
                says = f"{name}: {' '.join(text.split())[:500]}"
                log.events.append(Event("config", says, where=f"{log.path}@{place}", step=step, time=time, numbers=Frozen()))
        else:
            log.other_tags.setdefault(tag, "text")
