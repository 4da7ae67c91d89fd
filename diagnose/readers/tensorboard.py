"""TensorBoard event files: own framing and wire decoding, CRC-32C verified, damage skipped and counted.

Scalars of every kind (simple_value and tensors), histograms as min/max/mean/norm summaries, hparams and text configuration. All
files of a run in name order; nothing is purged here.
"""

from __future__ import annotations

import gzip
import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import crc32c
import numpy as np

from diagnose.model import Event, Frozen, Problem, Setting, Source
from diagnose.parts import RawRun, RawSeries, Reader

_MASK_DELTA = 0xA282EAD8
LARGEST = 1 << 31  # bytes of one file after unpacking
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", 17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8"}
_SUBRUNS = frozenset({"train", "validation", "val", "valid", "eval", "test"})


def masked(data: bytes) -> int:
    """The masked CRC-32C of TFRecord framing."""
    c = crc32c.crc32c(data)
    return (((c >> 15) | (c << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def claims(path: Path) -> bool:
    """`brain.Event:` near the start, or a name with tfevents when the file is too short to tell."""
    try:
        if path.name.endswith(".profile-empty"):
            return False
        with path.open("rb") as file:
            head = file.read(64)
            if head[:2] == b"\x1f\x8b" and "tfevents" in path.name:
                with gzip.open(path) as inner:
                    head = inner.read(64)
        if b"brain.Event:" in head:
            return True
        return "tfevents" in path.name and (len(head) < 24 or (len(head) >= 12 and masked(head[:8]) == struct.unpack("<I", head[8:12])[0]))
    except (OSError, EOFError, ValueError):
        return False


def home(path: Path) -> Path:
    """The file's directory; of a sub-run (train, validation, rank_N, the DeepSpeed monitor's job) the directory above."""
    folder = path.parent
    if folder.name.lower() in _SUBRUNS or re.fullmatch(r"rank_?\d+", folder.name.lower()):
        return folder.parent
    return folder


def records(data: bytes, name: str, problems: list[Problem]) -> Iterator[tuple[int, bytes]]:
    """(offset, payload) of every intact record; a bad one costs itself, a bad length a search for the next frame."""
    at, n, bad = 0, len(data), 0
    while at + 12 <= n:
        size, check = struct.unpack_from("<QI", data, at)
        if size > n or masked(data[at : at + 8]) != check:
            if not any(data[at : min(n, at + 4096)]) and not data[at:].strip(b"\0"):
                return
            found = _next_frame(data, at + 1)
            problems.append(Problem(f"{name}@{at}", f"the frame is damaged; {(found if found >= 0 else n) - at} bytes are left out"))
            if found < 0:
                return
            at = found
            continue
        if at + 16 + size > n:
            break
        payload = data[at + 12 : at + 12 + size]
        if masked(payload) == struct.unpack_from("<I", data, at + 12 + size)[0]:
            yield at, payload
        else:
            bad += 1
            problems.append(Problem(f"{name}@{at}", "a record's checksum is wrong; it is left out"))
        at += 16 + size
    if at < n:
        problems.append(Problem(f"{name}@{at}", f"the file ends inside a record; {n - at} bytes are not read"))


def _next_frame(data: bytes, at: int) -> int:
    end = len(data) - 12
    window = np.frombuffer(data, np.uint8)
    while at < end:
        stop = min(end, at + (1 << 20))
        zero = np.flatnonzero((window[at + 5 : stop + 5] == 0) & (window[at + 6 : stop + 6] == 0) & (window[at + 7 : stop + 7] == 0)) + at
        for p in zero.tolist():
            size, check = struct.unpack_from("<QI", data, p)
            if size <= len(data) - p and masked(data[p : p + 8]) == check:
                return int(p)
        at = stop
    return -1


def varint(b: bytes, i: int) -> tuple[int, int]:
    """A base-128 number and the place after it."""
    shift = value = 0
    while True:
        byte = b[i]
        i += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, i
        shift += 7
        if shift > 63:
            raise ValueError("number too long")


def fields(b: bytes) -> Iterator[tuple[int, int, Any]]:
    """(field number, wire type, value) of a protobuf message."""
    i, n = 0, len(b)
    while i < n:
        key, i = varint(b, i)
        kind = key & 7
        value: Any
        if kind == 0:
            value, i = varint(b, i)
        elif kind == 1:
            value, i = b[i : i + 8], i + 8
        elif kind == 2:
            size, i = varint(b, i)
            value, i = b[i : i + size], i + size
        elif kind == 5:
            value, i = b[i : i + 4], i + 4
        else:
            raise ValueError("unknown wire type")
        if i > n:
            raise ValueError("cut message")
        yield key >> 3, kind, value


def signed(value: int) -> int:
    """A varint as a two's complement int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _packed(kind: int, value: Any, code: str) -> list[float]:
    if kind == 2 and code != "v":
        return np.frombuffer(value[: len(value) // int(code[2]) * int(code[2])], code).astype(float).tolist()
    if kind == 2:
        out, i = [], 0
        while i < len(value):
            v, i = varint(value, i)
            out.append(float(signed(v)))
        return out
    if kind == 0:
        return [float(signed(value))]
    return np.frombuffer(value, "<f4" if kind == 5 else "<f8").astype(float).tolist()


def tensor(b: bytes) -> tuple[int, tuple[int, ...], np.ndarray, list[bytes]]:
    """(dtype, shape, numbers, strings) of a TensorProto."""
    dtype, shape, content = 0, [], b""
    numbers: list[float] = []
    strings: list[bytes] = []
    halves: list[float] = []
    for f, kind, v in fields(b):
        if f == 1 and kind == 0:
            dtype = v
        elif f == 2 and kind == 2:
            for g, k, w in fields(v):
                if g == 2 and k == 2:
                    shape.append(next((signed(x) for h, kk, x in fields(w) if h == 1 and kk == 0), 0))
        elif f == 4:
            content = v
        elif f == 5:
            numbers += _packed(kind, v, "<f4")
        elif f == 6:
            numbers += _packed(kind, v, "<f8")
        elif f in (7, 10, 11, 16, 17):
            numbers += _packed(kind, v, "v")
        elif f == 8:
            strings.append(v)
        elif f == 13:
            halves += _packed(kind, v, "v")
    if halves:
        bits = np.array(halves, np.int64).astype(np.uint16)
        numbers = _half(bits, dtype).tolist()
    if content and dtype in _DTYPES:
        numbers = np.frombuffer(content[: len(content) // np.dtype(_DTYPES[dtype]).itemsize * np.dtype(_DTYPES[dtype]).itemsize], _DTYPES[dtype]).astype(float).tolist()
    elif content and dtype == 14:
        numbers = _half(np.frombuffer(content[: len(content) // 2 * 2], "<u2"), 14).tolist()
    return dtype, tuple(shape), np.array(numbers, float), strings


def _half(bits: np.ndarray, dtype: int) -> np.ndarray:
    if dtype == 14:
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(float)
    return bits.astype(np.uint16).view(np.float16).astype(float)


class _File:
    def __init__(self, path: Path, group: str) -> None:
        self.path, self.group = path, group
        self.steps: dict[str, list[int]] = {}
        self.values: dict[str, list[float]] = {}
        self.times: dict[str, list[float]] = {}
        self.settings: dict[str, Setting] = {}
        self.events: list[Event] = []
        self.problems: list[Problem] = []
        self.writer = ""

    def add(self, tag: str, step: int, value: float, time: float) -> None:
        self.steps.setdefault(tag, []).append(step)
        self.values.setdefault(tag, []).append(value)
        self.times.setdefault(tag, []).append(time)

    def event(self, at: int, payload: bytes) -> None:
        time, step, summaries = float("nan"), 0, []
        for f, kind, v in fields(payload):
            if f == 1 and kind == 1:
                time = struct.unpack("<d", v)[0]
            elif f == 2 and kind == 0:
                step = signed(v)
            elif f == 5 and kind == 2:
                summaries.append(v)
            elif f == 7 and kind == 2 and any(g == 1 and w == 1 for g, _, w in fields(v)):
                self.events.append(Event("restart", "the writer starts a session", where=f"{self.path}@{at}", step=step, time=time))
            elif f == 10 and kind == 2:
                self.writer = next((w.decode("utf-8", "replace") for g, k, w in fields(v) if g == 1 and k == 2), "")
        for summary in summaries:
            for f, kind, v in fields(summary):
                if f == 1 and kind == 2:
                    self.value(at, step, time, v)

    def value(self, at: int, step: int, time: float, b: bytes) -> None:
        tag, node, plugin, content, body = "", "", "", b"", None
        for f, kind, v in fields(b):
            if f == 1 and kind == 2:
                tag = v.decode("utf-8", "replace")
            elif f == 7 and kind == 2:
                node = v.decode("utf-8", "replace")
            elif f == 2 and kind == 5:
                body = ("scalar", struct.unpack("<f", v)[0])
            elif f == 5 and kind == 2:
                body = ("histogram", v)
            elif f == 8 and kind == 2:
                body = ("tensor", v)
            elif f == 9 and kind == 2:
                for g, k, w in fields(v):
                    if g == 1 and k == 2:
                        for h, kk, x in fields(w):
                            plugin = x.decode("utf-8", "replace") if h == 1 and kk == 2 else plugin
                            content = x if h == 2 and kk == 2 else content
        tag = tag or node
        if plugin == "hparams":
            self.hparams(at, content)
        elif body is None:
            return
        elif body[0] == "scalar":
            if not (tag == "hp_metric" and body[1] == -1):
                self.add(tag, step, float(body[1]), time)
        elif body[0] == "histogram":
            self.histogram(tag, step, time, body[1])
        else:
            dtype, shape, numbers, strings = tensor(body[1])
            if dtype == 7:
                self.text(at, tag, strings)
            elif len(numbers) >= 1 and int(np.prod(shape or (1,))) == 1:
                self.add(tag, step, float(numbers[0]), time)
            elif len(shape) == 2 and shape[1] == 3 and len(numbers) == shape[0] * 3 and len(numbers):
                left, right, count = numbers.reshape(-1, 3).T
                self.summary(tag, step, time, float(left[0]), float(right[-1]), float(count.sum()), float(((left + right) / 2 * count).sum()),
                             float((((left + right) / 2) ** 2 * count).sum()))  # fmt: skip

    def histogram(self, tag: str, step: int, time: float, b: bytes) -> None:
        got = dict.fromkeys(range(1, 6), 0.0)
        for f, kind, v in fields(b):
            if kind == 1 and f in got:
                got[f] = struct.unpack("<d", v)[0]
        self.summary(tag, step, time, got[1], got[2], got[3], got[4], got[5])

    def summary(self, tag: str, step: int, time: float, low: float, high: float, count: float, total: float, squares: float) -> None:
        if count > 0:
            for name, value in (("min", low), ("max", high), ("mean", total / count), ("norm", max(squares, 0.0) ** 0.5)):
                self.add(f"{tag}/{name}", step, value, time)

    def setting(self, at: int, name: str, value: Any) -> None:
        if len(self.settings) < 5000:
            self.settings[name] = Setting(name, value, spelled=name, where=f"{self.path}@{at}")

    def hparams(self, at: int, content: bytes) -> None:
        for f, kind, start in fields(content):
            if f != 3 or kind != 2:
                continue
            for g, k, entry in fields(start):
                if g != 1 or k != 2:
                    continue
                name, value = "", None
                for h, kk, x in fields(entry):
                    if h == 1 and kk == 2:
                        name = x.decode("utf-8", "replace")
                    elif h == 2 and kk == 2:
                        for m, mk, y in fields(x):
                            value = struct.unpack("<d", y)[0] if m == 2 and mk == 1 else y.decode("utf-8", "replace") if m == 3 else bool(y) if m == 4 else value
                if name and value is not None:
                    self.setting(at, name, value)

    def text(self, at: int, tag: str, strings: list[bytes]) -> None:
        name = tag.removesuffix("/text_summary")
        text = b"\n".join(strings)[: 1 << 20].decode("utf-8", "replace").strip()
        text = re.sub(r"^```\w*\n?|\n?```$", "", text).strip()
        if text[:1] == "{" and text[:65536].count("{") < 500:
            try:
                for key, value in _flat(json.loads(text)):
                    self.setting(at, key, value)
                return
            except (ValueError, RecursionError):
                pass
        if name.startswith(("arguments/", "args/", "hparams/", "config/")) and "\n" not in text and len(text) < 200:
            self.setting(at, name.partition("/")[2], text)
            return
        rows = re.findall(r"^\|\s*([\w./-]{1,80})\s*\|\s*([^|\n]{0,200}?)\s*\|\s*$", text, re.M) or re.findall(r"^\s*[*-]?\s*`?([\w./-]{1,80})`?\s*[:=]\s*(\S[^\n]{0,200})$", text, re.M)
        for key, value in rows[:2000]:
            if set(key) - set("-:"):
                self.setting(at, key, value.strip("`*\" "))
        if not rows:
            self.events.append(Event("config", f"{name}: {text[:200]}", where=f"{self.path}@{at}"))


def _flat(value: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and depth < 8:
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    elif prefix:
        yield prefix, value if isinstance(value, (str, int, float, bool, list)) or value is None else str(value)


def _bytes(path: Path, problems: list[Problem]) -> bytes:
    with path.open("rb") as file:
        head = file.read(2)
    opener = gzip.open if head == b"\x1f\x8b" else open
    try:
        with opener(path, "rb") as file:
            data: bytes = file.read(LARGEST + 1)
    except (OSError, EOFError) as error:
        problems.append(Problem(str(path), f"could not be read ({error})"))
        return b""
    if len(data) > LARGEST:
        problems.append(Problem(str(path), f"larger than {LARGEST >> 30} GiB; the rest is not read"))
    return data[:LARGEST]


def read(paths: Sequence[Path]) -> RawRun:
    """All event files of one run in name order."""
    ordered = sorted(paths, key=lambda p: (p.name, str(p)))
    top = min((home(p) for p in ordered), key=lambda p: len(p.parts))
    files = []
    for path in ordered:
        group = "" if path.parent == top or top not in path.parents else str(path.parent.relative_to(top))
        one = _File(path, group)
        for at, payload in records(_bytes(path, one.problems), str(path), one.problems):
            try:
                one.event(at, payload)
            except (ValueError, IndexError, struct.error):
                one.problems.append(Problem(f"{path}@{at}", "an event could not be decoded; it is left out"))
        files.append(one)
    series = []
    for source, one in enumerate(files):
        rank = int(m[1]) if (m := re.fullmatch(r"rank_?(\d+)", one.group.lower())) else None
        for tag in one.steps:
            series.append(RawSeries(tag, np.array(one.steps[tag], np.int64), np.array(one.values[tag], float), times=np.array(one.times[tag], float),
                                    rank=rank, group="" if rank is not None else one.group, source=source))  # fmt: skip
    return RawRun(
        tuple(series), settings=tuple(s for f in files for s in f.settings.values()), events=tuple(e for f in files for e in f.events),
        problems=tuple(p for f in files for p in f.problems), sources=tuple(Source(str(f.path), "tensorboard", f.writer) for f in files),
        facts=Frozen(framework=_framework(series)) if _framework(series) else Frozen(),
    )  # fmt: skip


def _framework(series: Sequence[RawSeries]) -> str:
    tags = {s.name for s in series}
    if any(t.startswith("Train/Samples/") for t in tags):
        return "deepspeed"
    return "hf" if "train/total_flos" in tags or {"train/learning_rate", "train/grad_norm", "train/epoch"} <= tags else ""


READER = Reader("tensorboard", "TensorBoard events", claims, read, home=home, priority=90)
