"""The engine's own lines, of all ages: progress, throughput, overflow and loss scale, timers, pipeline, comms, memory.

Line and function numbers change with every release and are never looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from diagnose.model import Frozen
from diagnose.readers.deepspeed.columns import Said, betas, drop, relabel, rename, repeats
from diagnose.texts import NUM, Line, number
from diagnose.transcript import Page

_STEP = re.compile(
    r"\bstep=(?P<step>\d{1,18}), skipped=(?P<skipped>\d{1,18}), lr=\[(?P<lr>[^\]]{0,4000})\](?:, mom=\[(?P<mom>.{0,4000})\])?"
)
_THROUGHPUT = re.compile(
    r"(?:epoch=\d{1,18}/micro_step=\d{1,18}/global_step=(?P<step>\d{1,18})|\b\d{1,18}/(?P<micro>\d{1,18})), "  # 0.8.0 | before
    rf"(?P<rest>(?:Running\w{{0,40}}|Curr\w{{0,40}})?SamplesPerSec={NUM}.{{0,400}})"
)
_FIELD = re.compile(rf"(?P<key>[A-Za-z]\w{{0,40}})=(?P<value>{NUM})")
# The ZeRO family; the number part is optional, since recorders of terminals break words (`loss scal      e: 8192`).
_OVERFLOW = re.compile(
    r"(?:OVERFLOW! ?(?:Rank (?P<rank>\d{1,6}) )?Skipping step|fp16 dynamic loss scale overflow! Skipping step"
    r"|(?P<fused>Overflow detected)\. Skipping step)\.?"
    rf"(?: Attempted loss\s+scal\s*e: ?(?P<scale>{NUM})(?:, reducing to (?P<new>{NUM})"
    r"|, but hysteresis is (?P<had>-?\d{1,9})\. Reducing hysteresis to (?P<left>-?\d{1,9}))?)?"
)
_GRAD_OVERFLOW = re.compile(r"(?<!No )Grad overflow on iteration:? (?P<at>\d{1,18})")
_SCALE = re.compile(rf"(?P<way>Reducing|Increasing) dynamic loss scale from (?P<old>{NUM}) to (?P<new>{NUM})")
_HYSTERESIS = re.compile(r"Consecutive hysteresis is enabled\. Restoring hysteresis to (?P<to>-?\d{1,9})")
_FLOOR = "loss scale already at minimum"
_TIMERS = re.compile(r"time \(ms\) \| (?P<body>.*)")
_TIMER = re.compile(rf"(?P<key>[\w][\w /-]{{0,60}}+): (?P<value>{NUM})")
_PIPELINE = re.compile(rf"steps: (?P<step>\d{{1,18}}) loss: (?P<loss>{NUM}) (?P<rest>.{{0,1000}})")
_PIPELINE_FIELD = re.compile(rf"(?P<key>\w{{1,40}}|iter time \(s\)|samples/sec): (?P<value>{NUM})")
_SIZE = r"(?P<size>[\d.]{1,20}) ?(?P<unit>[KMGTPEZY]?B)"
_COMM = re.compile(
    rf"comm op: (?P<op>\w[\w ]{{0,60}}?) \| time \(ms\): ?(?P<ms>{NUM}) \| msg size: {_SIZE} "
    rf"\| algbw \(Gbps\): {{1,4}}(?P<alg>{NUM}) \| busbw \(Gbps\): {{1,4}}(?P<bus>{NUM})"
)
_TABLE_ROW = re.compile(rf" {{4,40}}+{_SIZE}(?= )(?P<rest>.{{0,400}})$")
_TABLE_COLUMNS = {"Count": "count", "Total Latency(ms)": "total_ms", "Avg Latency(ms)": "avg_ms"}
_TABLE_RATES = {"tput_avg (Gbps)": "algbw_gbps", "busbw_avg (Gbps)": "busbw_gbps"}
_MEMORY = re.compile(rf"\bMA (?P<MA>{NUM}) GB +Max_MA (?P<Max_MA>{NUM}) GB +CA (?P<CA>{NUM}) GB +Max_CA (?P<Max_CA>{NUM}) GB")
_HOST_MEMORY = re.compile(rf"CPU Virtual Memory: +used = (?P<used>{NUM}) GB, percent = (?P<percent>{NUM})%")
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}  # comms_logger's convert_size divides by 1024
_RANKS_S = 2.0  # seconds in which ranks print the same overflow: they meet in the all-reduce of the flag
_FUSED_S = 60.0  # seconds after which the same iteration is that of another process
_ATTEMPTED = "loss scale of overflow lines"  # becomes `loss scale` where nothing else logs that
_STEP_TIMERS = ("fwd", "bwd", "forward", "backward")  # of the line that comes once an optimizer step


@dataclass(slots=True)
class _Overflow:
    """The last overflow of one kind, which lines of other ranks may repeat or complete."""

    index: int
    content: tuple[str | None, ...]
    ranks: set[int | None]
    time: float | None
    confirmed: bool = False


@dataclass(slots=True)
class Engine:
    """Reads engine lines. Two engines in one process (actor and critic) are told apart by alternation: a step that
    comes again belongs to the next engine, group `engine_1`.

    An overflow names no step. It is put one step behind the last step that was named, the next one two behind, and so
    on, but never behind the next progress line: exact while every step overflows, early by less than `steps_per_print`
    otherwise. `Grad overflow on iteration n` (fused and unfused fp16) says its step: n + 1.
    """

    _last: list[int] = field(default_factory=list)  # step of each engine
    _contents: list[tuple[object, ...]] = field(default_factory=list)
    _since: list[int] = field(default_factory=list)  # events without a step of their own since the last progress line
    _base: int = -1  # the named step behind which overflows are counted, and how many there were
    _behind: int = 0
    _increase: tuple[object, ...] = ()
    _zero: _Overflow | None = None
    _fused: _Overflow | None = None
    _iterations: dict[int, float | None] = field(default_factory=dict)
    _timer_rows: int = 0
    _anchors: set[int] = field(default_factory=set)
    _init: bool = False
    _table: list[str] | None = None
    _operation: str = ""
    _operations: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _operation_lines: dict[tuple[str, str], Line] = field(default_factory=dict)

    def take(self, said: Said, out: Page) -> bool:
        """Whether the line is one of the engine's; what it says goes to `out`."""
        text = said.text
        if self._table is not None and self._table_row(said, out):
            return True
        if "skipped=" in text and (found := _STEP.search(text)):
            self._progress(found, said, out)
        elif "SamplesPerSec=" in text and (found := _THROUGHPUT.search(text)):
            self._throughput(found, said, out)
        elif "overflow" in text or "OVERFLOW" in text or "loss scale" in text or "hysteresis" in text:
            return self._scaling(said, out)
        elif "time (ms) |" in text and (found := _TIMERS.search(text)):
            self._timers(found["body"], said, out)
        elif text.startswith("steps: ") and (found := _PIPELINE.match(text)):
            self._pipeline(found, said, out)
        elif "comm op:" in text and (found := _COMM.search(text)):
            self._comm(found, said, out)
        elif text.startswith("Comm. Op "):
            self._table = re.split(r" {2,}", text.strip())
        else:
            return self._memory(said, out)
        return True

    def _memory(self, said: Said, out: Page) -> bool:
        if "Max_MA" in said.text and (found := _MEMORY.search(said.text)):
            for name in ("MA", "Max_MA", "CA", "Max_CA"):
                out.row(name, number(found[name]) or 0.0, said.line, rank=said.rank)
        elif "CPU Virtual Memory" in said.text and (found := _HOST_MEMORY.search(said.text)):
            for name in ("used", "percent"):
                out.row(f"CPU Virtual Memory/{name}", number(found[name]) or 0.0, said.line, rank=said.rank)
        else:
            return False
        return True

    def _progress(self, found: re.Match[str], said: Said, out: Page) -> None:
        step, skipped = int(found["step"]), int(found["skipped"])
        if step == 0:  # printed at initialisation
            if self._last and max(self._last) > 0 and not self._init:
                out.event("restart", f"the engine was initialised again after step {max(self._last)}", said.line)
                self._last, self._contents, self._timer_rows = [], [], 0
                self._anchors.add(-1)  # rows can't be told apart from here on
            self._init = True
            return
        self._init = False
        content = (step, found.group(), said.line.time)
        which = next((i for i, last in enumerate(self._last) if step != last), len(self._last))
        if said.line.time is not None and content in self._contents:
            return  # the same line through two handlers
        if which < len(self._last):
            if step < self._last[which]:  # a restart without a line that says so: all engines count anew
                del self._last[which:], self._contents[which:]
                self._last.append(step)
                self._contents.append(content)
                self._anchors.add(-1)
            self._last[which], self._contents[which] = step, content
        else:
            self._last.append(step)
            self._contents.append(content)
        group = f"engine_{which}" if which else ""
        out.point("skipped", step, skipped, said.line, group=group)
        for i, token in enumerate(_top_level(found["lr"])):
            if (value := number(token)) is not None:
                out.point("lr" if i == 0 else f"lr[{i}]", step, value, said.line, group=group)
        if found["mom"]:
            betas(out, found["mom"], said.line)
        if which == 0:
            self._anchors.add(step - self._timer_rows)
            self._settle(step, out)
        out.step, out.counted = step, True

    def _settle(self, step: int, out: Page) -> None:
        """No overflow before a progress line came after its step."""
        for index in self._since:
            if (out.events[index].step or 0) > step:
                out.events[index] = replace(out.events[index], step=step)
        self._since.clear()

    def _throughput(self, found: re.Match[str], said: Said, out: Page) -> None:
        step = int(found["step"] or found["micro"])
        axis = "step" if found["step"] else "iteration"
        for pair in _FIELD.finditer(found["rest"]):
            out.point(pair["key"], step, number(pair["value"]) or 0.0, said.line, axis=axis)
        if found["step"]:
            out.step = step

    # --- loss scale ---

    def _scaling(self, said: Said, out: Page) -> bool:
        text = said.text
        if _FLOOR in text:
            return False  # a fact of any console, and often the end of a traceback
        if "dynamic loss scale from" not in text and (found := _OVERFLOW.search(text)):
            self._fused_rank_0(found, said, out) if found["fused"] else self._zero_overflow(found, said, out)
        elif found := _GRAD_OVERFLOW.search(text):
            self._grad_overflow(int(found["at"]), said, out)
        elif found := _SCALE.search(text):
            self._scale_change(found, said, out)
        elif found := _HYSTERESIS.search(text):
            out.event("config", found.group(), said.line, step=out.step, rank=said.rank, numbers={"hysteresis": float(found["to"])})
        else:
            return False
        return True

    def _new(self, says: str, numbers: dict[str, float], said: Said, out: Page, step: int | None = None) -> int:
        known = step
        if step is None:
            self._behind = self._behind + 1 if self._base == (out.step or 0) else 1
            self._base = out.step or 0
            step = self._base + self._behind
        index = out.event("overflow", says, said.line, step=step, rank=said.rank, numbers=numbers)
        if known is None and index >= 0:
            self._since.append(index)
        if "scale" in numbers:
            out.point(_ATTEMPTED, step, numbers["scale"], said.line)
        return index

    def _zero_overflow(self, found: re.Match[str], said: Said, out: Page) -> None:
        rank = int(found["rank"]) if found["rank"] else said.rank
        content = (found["scale"], found["new"], found["had"], found["left"])
        last, time = self._zero, said.line.time
        if last and rank not in last.ranks and content == last.content and _near(time, last.time, _RANKS_S):
            last.ranks.add(rank)
            return
        index = self._new(found.group(), _numbers(found), replace(said, rank=rank), out)
        self._zero = _Overflow(index, content, {rank}, time)

    def _grad_overflow(self, at: int, said: Said, out: Page) -> None:
        time = said.line.time if said.line.time is not None else out.last_time
        if at in self._iterations and _near(time, self._iterations[at], _FUSED_S):
            return  # another rank
        self._iterations[at] = time
        index = self._new(said.text.strip(), {"iteration": float(at)}, said, out, step=at + 1)
        self._fused = _Overflow(index, (), {said.rank}, time)

    def _scale_change(self, found: re.Match[str], said: Said, out: Page) -> None:
        old, new = number(found["old"]) or 0.0, number(found["new"]) or 0.0
        if found["way"] == "Increasing":
            content = (*found.groups(), out.step)
            if content != self._increase:  # sixteen ranks say so sixteen times
                self._increase = content
                out.point(_ATTEMPTED, (out.step or 0) + 1, new, said.line)
        elif self._fused and self._fused.index >= 0:
            self._complete(self._fused, old, new, said, out)

    def _fused_rank_0(self, found: re.Match[str], said: Said, out: Page) -> None:
        numbers = _numbers(found)
        last = self._fused
        if last and last.index >= 0 and not last.confirmed and _near(said.line.time, last.time, _FUSED_S):
            last.confirmed = True
            self._complete(last, numbers.get("scale"), numbers.get("new_scale"), said, out)
            return
        index = self._new(found.group(), numbers, said, out)
        self._fused = _Overflow(index, (), {said.rank}, said.line.time, confirmed=True)

    def _complete(self, last: _Overflow, scale: float | None, new: float | None, said: Said, out: Page) -> None:
        event = out.events[last.index]
        if scale is None or new is None or "scale" in event.numbers:
            return
        numbers = {**event.numbers, "scale": scale, "new_scale": new}
        out.events[last.index] = replace(event, numbers=Frozen(numbers))
        out.point(_ATTEMPTED, event.step or 0, scale, said.line)

    # --- timers, pipeline, comms ---

    def _timers(self, body: str, said: Said, out: Page) -> None:
        pairs = [(p["key"].strip(), number(p["value"]) or 0.0) for p in _TIMER.finditer(body)]
        for key, value in pairs:
            out.row(f"time (ms)/{key}", value, said.line, rank=said.rank)
        if any(key in _STEP_TIMERS for key, _ in pairs) and said.rank in (None, 0):
            self._timer_rows += 1

    def _pipeline(self, found: re.Match[str], said: Said, out: Page) -> None:
        step = int(found["step"])
        out.point("loss", step, number(found["loss"]) or 0.0, said.line)
        for pair in _PIPELINE_FIELD.finditer(found["rest"]):
            out.point(pair["key"], step, number(pair["value"]) or 0.0, said.line)
        out.step = step

    def _comm(self, found: re.Match[str], said: Said, out: Page) -> None:
        ms = number(found["ms"]) or 0.0
        out.row(f"comm op/{found['op']}/time (ms)", ms, said.line, rank=said.rank)
        key = (found["op"], f"{found['size']} {found['unit']}")
        if key not in self._operations and len(self._operations) >= 10_000:
            return
        got = self._operations.setdefault(key, [0.0, 0.0, 0.0, 0.0])
        self._operation_lines.setdefault(key, said.line)
        got[0] += 1
        got[1] += ms
        got[2] = max(got[2], ms)
        got[3] += number(found["bus"]) or 0.0

    def _table_row(self, said: Said, out: Page) -> bool:
        found = _TABLE_ROW.match(said.text)
        if found and self._table:
            cells = [number(c) for c in re.split(r" {2,}", found["rest"].strip())]
            names = {**_TABLE_COLUMNS, **_TABLE_RATES}
            numbers = {names.get(n, n): c for n, c in zip(self._table[2:], cells, strict=False) if c is not None}
            numbers["msg_bytes"] = _bytes(found)
            out.event("comms", f"summary: {self._operation} {found['size']} {found['unit']}", said.line, step=out.step, numbers=numbers)
            return True
        if re.fullmatch(r"\w{1,60}\s*", said.text):
            self._operation = said.text.strip()
            return True
        self._table = None if said.origin else self._table
        return False

    def close(self, out: Page) -> None:
        """What only the whole file tells: steps of the timer lines, comms totals, columns that repeat each other."""
        for (op, size), (count, total, worst, bus) in self._operations.items():
            numbers = {"count": count, "total_ms": total, "avg_ms": total / count, "max_ms": worst, "busbw_gbps": bus / count}
            out.event("comms", f"{op} {size}", self._operation_lines[(op, size)], step=None, numbers=numbers)
        if len(self._anchors) == 1 and -1 not in self._anchors:  # one timer line a step, from the first to the last
            shift = self._anchors.pop() - 1  # the timers of a step are printed behind its progress line
            timed = [n for n in out.names if n.startswith("time (ms)/")]
            count = len(out.values("time (ms)/" + next((k for k in _STEP_TIMERS if f"time (ms)/{k}" in timed), "")))
            for name in timed:
                if count and len(out.values(name)) == count and "microstep" not in name and "optimizer_" not in name:
                    relabel(out, name, shift)
        if out.names.isdisjoint({"loss scale", "loss_scale"}):
            rename(out, _ATTEMPTED, "loss scale")
        else:
            drop(out, _ATTEMPTED)
        for name in sorted(n for n in out.names if n.startswith("lr[")):
            if repeats(out, name, "lr"):
                drop(out, name)


def _numbers(found: re.Match[str]) -> dict[str, float]:
    """The scale before and after; with hysteresis the scale stays and `hysteresis` is what is left of it."""
    out: dict[str, float] = {}
    if found["scale"] is not None:
        out["scale"] = number(found["scale"]) or 0.0
        out["new_scale"] = number(found["new"]) or 0.0 if found["new"] is not None else out["scale"]
    if found["left"] is not None:
        out["hysteresis"] = float(found["left"])
    if found["scale"] is not None and found["new"] is None and found["left"] is None:
        del out["new_scale"]  # the line was cut
    return out


def _bytes(found: re.Match[str]) -> float:
    return (number(found["size"]) or 0.0) * _UNITS.get(found["unit"], 1)


def _near(time: float | None, other: float | None, within: float) -> bool:
    return time is None or other is None or abs(time - other) <= within


def _top_level(text: str) -> list[str]:
    """Splits `0.1, tensor(0.2, device='cuda:0')` at commas outside brackets."""
    out, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth <= 0:
            out.append(text[start:i])
            start = i + 1
    return [*out, text[start:]]
