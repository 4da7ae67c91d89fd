"""What the console said that no series says: tracebacks, memory that ran out, points that the SDK threw away."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from diagnose.model import Event, Problem

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)")
_RANK = re.compile(r"^\[(?:rank|default)(\d{1,6})\]:\s?")
_LAST_LINE = re.compile(r"^([A-Za-z_][\w.]{0,200})(?::\s|:?$)")  # "torch.cuda.OutOfMemoryError: CUDA out of memory."
_DROPPED = re.compile(r"Tried to log to step (\d{1,18}) that is less than the current step (\d{1,18})")
_DROPPED_OLD = re.compile(r"Step must only increase in log calls\.\s+Step (\d{1,18}) < (\d{1,18})")  # up to 0.16
_OOM = ("CUDA out of memory", "HIP out of memory", "OutOfMemoryError")
_MAX_LINE = 8 << 10  # characters of a line that are kept; a bar that redraws itself for ever is one line
_MAX_TRACE = 2000  # lines of one traceback
_MAX_EVENTS = 200
_MAX_SAID = 300  # characters of a last line


@dataclass(slots=True)
class Heard:
    """An event and how many history rows stood before it."""

    event: Event
    row: int


@dataclass(slots=True)
class Console:
    """Takes console text in pieces of any length."""

    name: str
    heard: list[Heard] = field(default_factory=list)
    lines: int = 0
    unheard: int = 0
    dropped: int = 0
    _first_drop: tuple[str, str, str] = ("", "", "")  # where, step, current step
    _open: list[str] = field(default_factory=list)  # pieces of a line without its end yet, and their length
    _size: int = 0
    _trace: int = 0  # lines since the traceback's head, 0 outside
    _where: str = ""
    _rank: int | None = None

    def feed(self, text: str, where: str, row: int, time: float | None = None) -> None:
        """A piece of output that began at `where`, after `row` history rows."""
        if "\n" not in text and "\r" not in text:
            if self._size < _MAX_LINE:
                self._open.append(text[:_MAX_LINE])
                self._size += len(text)
            return
        whole = "".join((*self._open, text))
        *lines, rest = re.split(r"\r\n|\n|\r", whole) if "\r" in whole else whole.split("\n")
        for line in lines:
            self.line(line, where, row, time)
        self._open, self._size = [rest[:_MAX_LINE]], len(rest)

    def close(self, row: int) -> None:
        """The end of the output: what is open counts."""
        if self._size:
            self.line("".join(self._open), "", row, None)
            self._open, self._size = [], 0
        if self._trace:
            self._emit("traceback", "a traceback without its last line", self._where, row)
            self._trace = 0

    def line(self, line: str, where: str, row: int, time: float | None) -> None:
        """One whole line."""
        self.lines += 1
        if self._trace:
            self._in_trace(line, where, row, time)
        elif "Traceback (most recent call last)" in line:
            self._begin(line, where)
        elif any(word in line for word in _OOM):
            self._emit("oom", _clean(line)[0][:_MAX_SAID], where, row, time=time, rank=_clean(line)[1])
        elif "less than the current step" in line or "Step must only increase" in line:
            hit = _DROPPED.search(line) or _DROPPED_OLD.search(line)
            if hit:
                self.dropped += 1
                self._first_drop = self._first_drop if self.dropped > 1 else (where, hit[1], hit[2])

    def _begin(self, line: str, where: str) -> None:
        self._trace, self._where, self._rank = 1, where, _clean(line)[1]

    def _in_trace(self, line: str, where: str, row: int, time: float | None) -> None:
        line, rank = _clean(line)
        self._trace += 1
        if "Traceback (most recent call last)" in line:
            self._begin(line, where)
        elif line[:1] not in ("", " ", "\t", "|", "+") and rank == self._rank and _LAST_LINE.match(line):
            self._trace = 0
            self._emit("traceback", line[:_MAX_SAID], self._where, row, time=time, rank=self._rank)
            if any(word in line for word in _OOM):
                self._emit("oom", line[:_MAX_SAID], where, row, time=time, rank=self._rank)
        elif self._trace > _MAX_TRACE:
            self._trace = 0
            self._emit("traceback", "a traceback without its last line", self._where, row, time=time, rank=self._rank)

    def _emit(self, kind: str, says: str, where: str, row: int, *, time: float | None = None, rank: int | None = None) -> None:
        if len(self.heard) >= _MAX_EVENTS:
            self.unheard += 1
            return
        self.heard.append(Heard(Event(kind, says, where=where, time=time, rank=rank), row))

    def problems(self) -> tuple[Problem, ...]:
        """What was lost before it reached the log."""
        out = []
        if self.dropped:
            where, step, current = self._first_drop
            said = f"the SDK dropped {self.dropped} log calls whose step lay behind (the first: step {step}, when it had reached {current})"
            out.append(Problem(where or self.name, said))
        if self.unheard:
            said = f"{self.unheard} more tracebacks and memory errors stand on the console; the first {_MAX_EVENTS} are kept"
            out.append(Problem(self.name, said))
        return tuple(out)


def _clean(line: str) -> tuple[str, int | None]:
    """A line without colours and rank prefix, and that rank."""
    line = _ANSI.sub("", line[:_MAX_LINE]).rstrip()
    hit = _RANK.match(line)
    return (line[hit.end() :], int(hit[1])) if hit else (line, None)
