"""Bytes to logical lines, numbers, and `key: value` points: all that any console reader needs before it knows a format.

Each step mends a failure seen in real logs: UTF-16 from PowerShell, NUL runs after a crash, colours, bars that redraw
themselves, records glued to a bar, prefixes of launchers and schedulers. Everything streams; memory is bounded by
`LONGEST` bytes a line; every pattern is linear in the line. Nothing here knows a framework.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from io import BufferedReader
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

from diagnose.model import Problem

BLOCK = 1 << 16  # bytes read at a time
LONGEST = 1 << 16  # bytes kept of one line; dumps of arguments reach 30 kB in public logs, longer lines are binary or hostile
MOST_NOTES = 20  # notes of one kind for one file; the rest is only counted

NUM = r"(?>[-+]?(?:(?i:nan|inf(?:inity)?)(?![A-Za-z])|(?:\d[\d_]*+\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?))"
"""A number as logs print it, atomic, so that a pattern around it can't give digits back and stays linear."""

_SCALES = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}  # nanotron's human_format
_NO_NUMBER = {"", "null", "none", "na", "n/a", "-"}  # Keras NA, torchtitan N/A, JSON null, empty Lightning cells
_TENSOR = re.compile(r"tensor\(\s{0,8}\[?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_PLAIN = re.compile(NUM)


def number(text: str) -> float | None:
    """The number that a token means, or None when it is none: `7,282` · `0,001` · `1.2B` · `'3.9'` · `tensor(0.1)` · `1.#QNAN`."""
    if len(text) < 400:
        try:
            return float(text)  # nearly always
        except ValueError:
            pass
    token = text.strip().strip("'\"")
    if token.lower() in _NO_NUMBER:
        return None
    if inside := _TENSOR.match(token):
        token = token[inside.end() :].split(",", 1)[0].rstrip(")] ")
    token = token.removesuffix("%")
    if "#" in token:  # old MSVC: 1.#QNAN, -1.#IND, 1.#INF
        bad = token.upper()
        return float("nan") if "#QNAN" in bad or "#IND" in bad or "#SNAN" in bad else _infinity(bad) if "#INF" in bad else None
    factor = _SCALES.get(token[-1:], 1.0) if token[:1] not in "nNiI" else 1.0
    if factor != 1.0:
        token = token[:-1]
    if "," in token:
        token = token.replace(",", "") if _THOUSANDS.fullmatch(token) else token.replace(",", ".", 1)
    if len(token) > 400 or not _PLAIN.fullmatch(token):
        return None
    try:
        return float(token) * factor
    except ValueError:
        return None


def _infinity(token: str) -> float:
    return float("-inf") if token.startswith("-") else float("inf")


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


# --- key: value ---------------------------------------------------------------------------------------------------------

_WORD = r"[A-Za-z_][\w./-]{0,40}+"
_PAIR = re.compile(
    r"(?<![\w./'\"-])[\"']?"
    rf"(?:(?P<bare>(?:(?:[Tt]rain|[Vv]al|[Ee]val|[Tt]est)[a-z]{{0,7}}+ )?{_WORD}) {{1,4}}+"  # `loss 4.2`, `val loss 4.3`
    rf"|(?P<key>{_WORD}(?: {{1,2}}[\w(][\w./()%-]{{0,30}}+){{0,4}}?)[\"']?\s{{0,20}}+[:=]\s{{0,20}}+)"  # `grad norm: 0.9`: up to five
    rf"[\"']?(?:tensor\()?(?P<value>{NUM})(?!\.\d|[-:]\d|x[0-9A-Fa-f])"  # no version, date, clock or address
)
_MAY_HAVE_STEP = re.compile(r"(?i)step|iter|epoch|update|batch|\bit\b")
_NO_NAMES = frozenset({"of", "at", "to", "in", "from", "for", "by", "and", "is", "are", "after", "than", "with", "on", "took", "or"})
_STEP_KEYS = {
    **dict.fromkeys(("global_step", "global_steps"), 0),
    **dict.fromkeys(("step", "steps", "train_step", "training_step"), 1),
    **dict.fromkeys(("iteration", "iterations", "iter", "iters", "it"), 2),
    "update": 3,
    "updates": 3,
    "batch": 4,
    "epoch": 5,
    "epochs": 5,
}
_AXES = {4: "iteration", 5: "epoch"}
_SPLIT = re.compile(r"(?i)\b(eval|valid|val|test|dev)(?:uation|uating|idation|ing)?\b")
_DIGITS = re.compile(r"\d+")
_GREATEST_STEP = 2**53  # beyond it a float no longer counts


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """The `key: value`, `key=value` and `key value` pairs of a line whose value is a number, both as written."""
    for found in _PAIR.finditer(text):
        key = found["key"] or found["bare"]
        if key.lower() not in _NO_NAMES:
            yield key, found["value"]


def _step_rank(key: str) -> int | None:
    flat = key.lower().replace(" ", "_")
    rank = _STEP_KEYS.get(flat)
    return _STEP_KEYS.get(flat.rsplit("_", 1)[-1]) if rank is None and " " in key else rank


class Point(NamedTuple):
    """One value of one name, with its place: what `Miner` hands over."""

    name: str
    step: int
    value: float
    axis: str
    group: str
    line: int
    time: float | None
    rank: int | None


@dataclass(slots=True)
class _Template:
    """Lines of one shape: waiting points a name, until the name has recurred often enough; and how its steps count."""

    waiting: dict[str, list[Point]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    last: tuple[Any, ...] = ()
    last_time: float | None = None
    last_line: int = 0
    epoch: float = -1.0
    raw_step: int = -1
    offset: int = 0
    offsets: dict[float, int] = field(default_factory=dict)

    def counted_on(self, step: int, epoch: float | None) -> int:
        """The step over all epochs, where it starts again in each of them; the same number where it doesn't."""
        if epoch is None or isnan(epoch):
            return step
        if epoch > self.epoch >= 0 and step < self.raw_step:
            self.offset += self.raw_step + (step == 0)
        elif epoch < self.epoch:  # a restart: count as then
            self.offset = self.offsets.get(epoch, 0)
        self.epoch, self.raw_step = epoch, step
        self.offsets.setdefault(epoch, self.offset)
        return step + self.offset


@dataclass(slots=True)
class Miner:
    """Finds series in lines of unknown programs: numbers with names, on lines that also name a step.

    A name counts when it recurs on `enough` lines of one template (the text before its first pair and the step's key);
    in a file of at most `short_file` lines, `enough_if_short`. So points come late: the first `enough` at once.
    Lines without a rank that repeat (step, values) within a second are one line of several ranks.
    """

    enough: int = 5  # below it, sentences with a number in them become series (formats: template mining)
    enough_if_short: int = 3
    short_file: int = 200  # lines
    most_templates: int = 2000  # memory; a log with more shapes than that has no shape
    step: int | None = None  # of the last line that named one
    repeats: int = 0
    overflowed: bool = False
    _templates: dict[tuple[str, str], _Template] = field(default_factory=dict)

    def feed(self, line: Line) -> list[Point]:
        """The points that this line settles: its own and those that were waiting."""
        text = line.text
        if not _MAY_HAVE_STEP.search(text):
            return []
        found = list(pairs(text))
        ranked = [(r, key, value) for key, value in found if (r := _step_rank(key)) is not None]
        if not ranked or len(found) < 2:
            return []
        order, step_key, step_text = min(ranked, key=lambda t: t[0])
        at = number(step_text)
        if at is None or not at.is_integer() or not 0 <= at < _GREATEST_STEP:
            return []
        before = text[: text.find(found[0][0])][:60]
        template = self._template((_DIGITS.sub("#", before), step_key))
        if template is None:
            return []
        rank = line.rank
        if rank is None and (said := [v for k, v in found if k.lower() == "rank"]):
            rank = int(number(said[0]) or 0)
        if rank is None and self._repeated(template, line, (at, *found)):
            return []
        epochs = [number(v) for r, _, v in ranked if r == 5]
        self.step = template.counted_on(int(at), epochs[0] if epochs and order != 5 else None)
        split = _SPLIT.search(before)
        base = Point("", self.step, 0.0, _AXES.get(order, "step"), split[1].lower() if split else "", line.number, line.time, rank)
        return self._settled(template, base, [(k, v) for k, v in found if k != step_key and k.lower() != "rank"])

    def _template(self, key: tuple[str, str]) -> _Template | None:
        if key not in self._templates:
            if len(self._templates) >= self.most_templates:
                self.overflowed = True
                return None
            self._templates[key] = _Template()
        return self._templates[key]

    def _repeated(self, template: _Template, line: Line, content: tuple[Any, ...]) -> bool:
        if line.time is not None and template.last_time is not None:
            near = abs(line.time - template.last_time) <= 1.0
        else:
            near = line.number - template.last_line <= 64  # ranks of one node stand close together
        if near and content == template.last:
            self.repeats += 1
            return True
        template.last, template.last_time, template.last_line = content, line.time, line.number
        return False

    def _settled(self, template: _Template, base: Point, found: list[tuple[str, str]]) -> list[Point]:
        out: list[Point] = []
        seen: set[str] = set()
        for key, text in found:
            value = number(text)
            if value is None or key in seen:
                continue
            seen.add(key)
            point = base._replace(name=key, value=value)
            if key in template.open:
                out.append(point)
                continue
            waiting = template.waiting.setdefault(key, [])
            waiting.append(point)
            if len(waiting) >= self.enough:
                template.open.add(key)
                out += template.waiting.pop(key)
        return out

    def close(self, lines_read: int) -> list[Point]:
        """What a short file has left over: names that recurred at least `enough_if_short` times."""
        if lines_read > self.short_file:
            return []
        left = [w for t in self._templates.values() for w in t.waiting.values() if len(w) >= self.enough_if_short]
        return sorted((p for w in left for p in w), key=lambda p: p.line)
