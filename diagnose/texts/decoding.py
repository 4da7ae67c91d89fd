"""Bytes to lines: decoding, terminal redraws, and the prefixes that launchers put before a line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from io import BufferedReader
from pathlib import Path

from diagnose.model import Problem

BLOCK = 1 << 16  # bytes read at a time
LONGEST = 1 << 16  # bytes kept of one line; dumps of arguments reach 30 kB in public logs, longer lines are binary or hostile
MOST_NOTES = 20  # notes of one kind for one file; the rest is only counted


@dataclass(frozen=True, slots=True)
class Line:
    """One record: `number` counts line feeds from 1, `rank` and `time` (seconds UTC; a zone that is not given is taken as UTC)
    were peeled off the front, `text` is what stands behind them.
    """

    number: int
    text: str
    rank: int | None = None
    time: float | None = None


# --- bytes to text ------------------------------------------------------------------------------------------------------

_NUL_RUN = re.compile(rb"\0{4,}")  # sparse files; UTF-16 text has at most three in a row
_ANSI = re.compile(r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)|[@-Z\\-_])")
_BACKSPACES = re.compile("\x08+")
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma"}


@dataclass(slots=True)
class _Decoder:
    """Bytes of one line to text. The encoding is settled per line, since a log can be appended to from another shell."""

    endian: str = ""

    def text(self, raw: bytes) -> str:
        if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
            self.endian = "le" if raw[0] == 0xFF else "be"
            raw = raw[2:]
        if b"\0" not in raw:
            return raw.decode("utf-8", "replace").removeprefix("\ufeff")
        if not self.endian and raw.count(0) * 10 > 3 * len(raw) > 6:  # more than 30 % NUL: UTF-16 without its mark
            self.endian = "be" if raw[0] == 0 else "le"
        if not self.endian:
            return raw.replace(b"\0", b"").decode("utf-8", "replace").removeprefix("\ufeff")
        if self.endian == "le":
            raw = raw[1:] if raw[0] == 0 else raw  # the second byte of the line feed before
            if b"\0" not in raw:  # the file went on in UTF-8
                return raw.decode("utf-8", "replace").removeprefix("\ufeff")
            raw += b"\0" * (len(raw) % 2)
        else:
            raw = raw[: len(raw) // 2 * 2]  # the first byte of the line feed behind
        return raw.decode(f"utf-16-{self.endian}", "replace").replace("\0", "")


def _open(path: Path) -> BufferedReader:
    with path.open("rb") as file:
        head = file.read(6)
    for magic, module in _MAGIC.items():
        if head.startswith(magic):
            import importlib  # compressed logs are rare; their modules load when met

            opened: BufferedReader = importlib.import_module(module).open(path, "rb")
            return opened
    return path.open("rb")


def _blocks(path: Path, problems: list[Problem]) -> Iterator[bytes]:
    try:
        with _open(path) as stream:
            while block := stream.read1(BLOCK):  # read() loses what a cut gzip file still gives
                yield block
    except (OSError, EOFError, ValueError) as error:  # also a gzip file that was cut
        problems.append(Problem(where=path.name, what=f"reading stopped early ({type(error).__name__}: {error})"))
    except Exception as error:  # lzma and zlib have error types of their own
        if type(error).__module__ not in ("lzma", "_lzma", "zlib"):
            raise
        problems.append(Problem(where=path.name, what=f"reading stopped early ({type(error).__name__}: {error})"))


def _pieces(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes, int]]:
    r"""Line number, bytes up to `\n` or `\r` (a redraw), and how many bytes were cut off."""
    line, held, size, cut = 1, [], 0, 0
    for block in blocks:
        for piece in block.splitlines(keepends=True):
            body = piece.rstrip(b"\r\n")
            if b"\0\0\0\0" in body:
                body = _NUL_RUN.sub(b"", body)
            room = LONGEST - size
            if len(body) > room:
                cut += len(body) - room
                body = body[:room]
            held.append(body)
            size += len(body)
            if piece[-1] in b"\r\n":
                if size:
                    yield line, b"".join(held), cut
                line += piece.endswith(b"\n")
                held, size, cut = [], 0, 0
    if size:
        yield line, b"".join(held), cut


def _redraws(text: str) -> list[str]:
    """The texts that one line showed in turn: a long run of backspaces is a redraw, a short one takes characters back."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\x08" not in text:
        return [text]
    shown, at = [""], 0
    for run in _BACKSPACES.finditer(text):
        shown[-1] += text[at : run.start()]
        at = run.end()
        size = run.end() - run.start()
        if size >= 4:  # Keras takes back the whole line, spinners take back one or two characters
            shown.append("")
        else:
            shown[-1] = shown[-1][:-size]
    shown[-1] += text[at:]
    return shown


# --- prefixes -----------------------------------------------------------------------------------------------------------

_STAMP = r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIX = re.compile(
    r"\[rank(?P<rank>\d{1,6})\]:\s?"  # torch >= 2.3
    r"|\[[a-z]{1,20}(?P<local>\d{1,6})\]:\s?"  # torchrun --tee: role and local rank
    r"|\[\d{1,6},(?P<mpi>\d{1,6})\]<std(?:out|err)>:\s?"  # mpirun --tag-output
    r"|\((?:\w{1,60} )?pid=\d+(?:, ip=[\d.]+)?\) "  # Ray
    r"|std(?:out|err): |(?:\S{1,64} )?\[?node[-_]?\d[-\w]{0,40}\]?: "
    r"|[\w.-]{1,64}: (?=\[\d{4}-\d\d-\d\d )"  # pdsh: the host
    r"|\[[a-z]\w{0,20}\] (?=\d{4}-\d\d-\d\d[ T])"  # a program's name before the time
    r"| ?\[?(?:(?:INFO|WARNING|ERROR|DEBUG) )?(?P<time>" + _STAMP + r")\]?(?: -)? ?"
    r"|[IWEF]\d{3,4} \d\d:\d\d:\d\d\.\d+ +\d+ \S{1,200}:\d+\] ?"  # glog and torch: no year, so no time
)
_SRUN = re.compile(r"(?P<rank>\d{1,5}): ")
_SRUN_BYTES = re.compile(rb"\s?\d{1,5}: ")
_GLUED = re.compile(r"\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]|\[rank\d{1,6}\]:|Traceback \(most recent call last\):")
_MOST_PREFIXES = 8  # `[default0]:[rank0]:[titan] 2026-…` nests four deep; more is hostile


@lru_cache(maxsize=4096)
def _whole_second(stamp: str) -> float | None:
    try:
        return datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
    except ValueError:  # the 31st of February
        return None


def seconds(stamp: str) -> float | None:
    """Seconds UTC of `2026-11-30 21:26:34,338`, `2024-05-01T10:00:00.123456789Z` and kin; None when it is no date."""
    base = _whole_second(stamp[:19])
    if base is None:
        return None
    tail = stamp[19:].replace(",", ".")
    sign = max(tail.find("+"), tail.find("-"))
    fraction, zone = (tail[:sign], tail[sign:].replace(":", "")) if sign >= 0 else (tail.removesuffix("Z"), "")
    base += float(fraction) if len(fraction) > 1 else 0.0
    if zone:
        base -= (1 if zone[0] == "+" else -1) * (int(zone[1:3]) * 3600 + int(zone[3:5] or 0) * 60)
    return base


def peel(text: str, *, srun: bool = False) -> tuple[str, int | None, float | None]:
    """The text without its prefixes, and the rank and time that they gave. `srun` also takes `3: ` for a rank."""
    rank: int | None = None
    time: float | None = None
    sure = False
    at = 0
    for _ in range(_MOST_PREFIXES):
        found = (_SRUN.match(text, at) if srun else None) or _PREFIX.match(text, at)
        if not found:
            break
        srun, at = False, found.end()
        got = found.groupdict()
        if got.get("rank"):
            rank, sure = int(got["rank"]), True
        elif not sure and (got.get("local") or got.get("mpi")):
            rank = int(got["local"] or got["mpi"])
        if got.get("time"):
            time = seconds(got["time"])
            text, at = text[at:], 0
            if not text.startswith(("[default", "[rank", "std", "20", "[20")):
                break  # behind the time stands the message, save for `kubectl --timestamps` and kin
    return text[at:], rank, time


def _unboxed(text: str) -> tuple[str, float | None]:
    """The line inside Docker's JSON (`{"log":"…\\n","stream":"stdout","time":"…"}`), or the text itself."""
    if not text.startswith('{"log":"'):
        return text, None
    try:
        box = json.loads(text)
        return str(box["log"]).rstrip("\r\n"), seconds(str(box.get("time", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text, None


def _records(text: str) -> list[str]:
    """A text split before each time stamp or traceback that is glued to something else (a bar without a newline)."""
    if "[20" not in text and "[rank" not in text and "Traceback (" not in text:
        return [text]
    cuts = [m.start() for m in _GLUED.finditer(text) if m.start() and not text[: m.start()].isspace()]
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def lines(path: Path, problems: list[Problem] | None = None) -> Iterator[Line]:
    """The logical lines of a text file, plain or gz, bz2, xz. Never raises for what is in it; notes go to `problems`.

    Empty lines are left out. A rank or time before glued records holds for all of them that have none of their own.
    """
    notes = problems if problems is not None else []
    blocks = _blocks(path, notes)
    head = next(blocks, b"")
    numbered = [bool(_SRUN_BYTES.match(raw)) for raw in head[:8192].splitlines()[:200] if raw.strip()]
    srun = len(numbered) >= 3 and sum(numbered) >= 0.8 * len(numbered)
    decoder, long_lines = _Decoder(), 0
    for count, raw, cut in _pieces(_chain(head, blocks)):
        if cut:
            long_lines += 1
            if long_lines <= MOST_NOTES:
                what = f"a line of {len(raw) + cut} bytes was cut to {len(raw)}"
                notes.append(Problem(where=f"{path.name}:{count}", what=what))
        for shown in _redraws(decoder.text(raw)):
            inner, boxed = _unboxed(shown)
            text, rank, time = peel(inner, srun=srun)
            first, *more = _records(text)
            if first and not first.isspace():
                yield Line(count, first, rank, time if time is not None else boxed)
            for glued in more:
                rest, own_rank, own_time = peel(glued)
                yield Line(count, rest, own_rank if own_rank is not None else rank, own_time if own_time is not None else time)
    if long_lines > MOST_NOTES:
        notes.append(Problem(where=path.name, what=f"{long_lines - MOST_NOTES} more lines over {LONGEST} bytes were cut"))


def _chain(head: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from rest


def head(path: Path, size: int = BLOCK) -> str:
    """The first bytes of a file as text, for `claims`: decoded, without colours; empty for what can't be read."""
    raw = b""
    try:
        with _open(path) as stream:
            while len(raw) < size and (block := stream.read1(size - len(raw))):
                raw += block
    except Exception:  # a test that is False in doubt; what is wrong is said when the file is read
        if not raw:
            return ""
    decoder = _Decoder()
    return "\n".join(_ANSI.sub("", decoder.text(piece)) for piece in raw.replace(b"\r", b"\n").split(b"\n"))
