"""What any console log may say beside its metrics: how a program ended, where it began again, what network and hardware report.

Every reader of consoles hands each line to `Facts` and gets events for the run; a fact is told once a rank and kind, so that a log
of thousands of NCCL lines costs a handful of events. Shapes of line: PyTorch (torchrun, ProcessGroupNCCL.cpp), NCCL's debug.cc,
CPython's traceback module, Slurm's slurmstepd, the NVIDIA driver's Xid messages, DeepSpeed's loss scaler.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from diagnose.model import Event, Frozen
from diagnose.texts import NUM, Line, number

_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,120})(?::(?: (?P<message>.*))?)?$")
_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "ProcessRaisedException")  # says that a rank failed, not why
_FRAME = re.compile(r'\s{0,40}File "(?P<file>[^"]{1,400})", line (?P<line>\d{1,9})')
_BARE = re.compile(  # an error without its traceback, as people paste it
    r"^(?:\w{1,40}\.){0,6}(?P<type>[A-Z]\w{0,60}(?:Error|Exception|Interrupt)): (?P<message>\S.*)$"
)
_EXIT = re.compile(
    r"exits with return code = (?P<code>-?\d{1,9})|failed \(exitcode: (?P<elastic>-?\d{1,9})\) local_rank: (?P<rank>\d{1,6})"
)
_GOOD_EXIT = re.compile(r"Process \d{1,12} exits successfully")
_OOM = re.compile(r"(?i)cuda out of memory|hip out of memory|outofmemoryerror|cuda error: out of memory|RESOURCE_EXHAUSTED: Out of memory")
_TRIED = re.compile(rf"[Tt]ried to allocate (?P<size>{NUM}) (?P<unit>[KMG]i?B)")
_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0}
_HOST = (
    (
        "host-oom",
        re.compile(
            r"(?i)oom-kill event|out of memory: kill(?:ed)? process|oom_kill"
            r"|DataLoader worker \(pid\(?s?\)? ?[\d, ]{1,80}\)? (?:is killed|exited)"
        ),
    ),
    ("disk-full", re.compile(r"(?i)no space left on device|disk quota exceeded")),
    ("time-limit", re.compile(r"DUE TO TIME LIMIT")),
    ("preempted", re.compile(r"DUE TO PREEMPTION|DUE TO NODE FAILURE")),
    ("cancelled", re.compile(r"slurmstepd: error: \*\*\* (?:JOB|STEP) \S{1,60} (?:ON \S{1,200} )?CANCELLED|srun: Job step aborted")),
    (
        "hardware",
        re.compile(
            r"NVRM: Xid|(?i:uncorrectable ecc error)|GPU has fallen off the bus"
            r"|CUDA error: (?:an illegal memory access|unspecified launch failure|device-side assert|misaligned address|invalid device)"
        ),
    ),
    ("signal", re.compile(r"Segmentation fault|\(core dumped\)|^Killed$|^Aborted\b|Bus error|Fatal Python error")),
)
_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d{1,18}), OpType=(?P<op>\w{1,40})"
    r"|(?:detected by watchdog|Some NCCL operations have failed or timed out|Timeout at NCCL work|NCCL watchdog thread terminated)"
)
_RAN_FOR = re.compile(r"ran for (?P<ms>\d{1,18}) milliseconds")
_PG_RANK = re.compile(r"\[(?:PG [^\]]{0,80})?Rank (?P<rank>\d{1,6})\]")
_NCCL = re.compile(r"\bNCCL (?P<level>INFO|WARN) (?P<says>.*)$")
_NETWORK = re.compile(r"Using network (?P<net>[\w-]{1,40})|NET/(?P<plugin>IB|Socket|OFI|RoCE) : (?P<what>.{0,120})")
_WORLD = re.compile(r"nranks (?P<n>\d{1,7})")
_SAVED = re.compile(
    r"(?i)saving model checkpoint|zero checkpoint saved|checkpoint \S{1,400} is ready now|successfully saved checkpoint"
    r"|saving checkpoint (?:at|to)|saved checkpoint|saving (?:a |the )?(?:full |final )?(?:checkpoint|model)\b|checkpoint saved"
)
_LOADED = re.compile(
    r"(?i)loading checkpoint from|successfully loaded checkpoint|loading \d{1,6} zero partition checkpoints"
    r"|rank: \d{1,6} loading checkpoint|resum(?:ing|ed) (?:training )?(?:from|at)|continuing training from checkpoint|loaded checkpoint"
)
_STEP_IN_NAME = re.compile(r"(?:global_?step_?|iteration |iter_|checkpoint-|step_)(?P<at>\d{1,18})")
_EVAL = re.compile(r"(?i)\*{5} Running Evaluation|evaluating iter \d{1,9}/|^validation (?:loss )?at|running validation")
_OVERFLOW = re.compile(
    rf"(?i)overflow(?:!| detected\.).{{0,40}}skipping step(?:.{{0,40}}loss scal.{{0,60}}?:\s{{0,60}}(?P<old>{NUM}))?"
    rf"(?:.{{0,60}}reducing to (?P<new>{NUM}))?"
)
_FLOOR = re.compile(r"(?i)loss scale already at minimum|Minimum loss scale reached")
_LONGEST_TRACEBACK = 400  # lines; ranks without a prefix interleave, a lost end must not swallow the log
_MOST = 100_000  # events of one file
_CUES = (
    *("rror", "xcept", "raceback", "exit", "emory", "heckpoint", "esum", "NCCL", "atchdog", "slurm", "srun", "DUE", "oom", "Xid"),
    *("ECC", "space", "quota", "illed", "fault", "dumped", "Abort", "Interrupt", "verflow", "OVERFLOW", "valuat", "alidation"),
    *("scale", "bus"),
)


@dataclass(slots=True)
class Facts:
    """Collects events from the lines of one file. `step` is the last step that the reader saw; the reader sets it."""

    path: Path
    step: int | None = None
    events: list[Event] = field(default_factory=list)
    clean_end: bool | None = None
    world: int | None = None
    _open: dict[int | None, int] = field(default_factory=dict)
    _frame: dict[int | None, str] = field(default_factory=dict)
    _seen: set[tuple[object, ...]] = field(default_factory=set)
    _errors: int = 0
    _good: int = 0
    _good_at: int = -1
    _launcher: tuple[str, Line] | None = None

    def take(self, line: Line) -> bool:
        """Whether the line is such a fact and nothing else, so that the reader need not look at it."""
        text = line.text
        if line.rank in self._open and self._traceback(line):
            return True
        if not any(cue in text for cue in _CUES):
            return False
        if text.startswith("Traceback (most recent call last):") or "Traceback (most recent call last):" in text:
            self._open[line.rank] = 0
            self._frame.pop(line.rank, None)
            return True
        return (
            self._network(line)
            or self._memory(line)
            or self._host(line)
            or self._exit(line)
            or self._scaler(line)
            or self._moment(line)
            or self._bare_error(line)
        )

    def close(self) -> None:
        """Settles what was open at the end of the file: the launcher's error where nothing better was found."""
        if self._launcher and not self._errors:
            says, line = self._launcher
            self._add("traceback", says, line)
            self.clean_end = False
        if 0 <= self._good_at < len(self.events):
            numbers = Frozen({"exit_code": 0.0, "processes": float(self._good)})
            self.events[self._good_at] = replace(
                self.events[self._good_at], says=f"{self._good} processes exit successfully", numbers=numbers
            )

    # -- parts

    def _add(self, kind: str, says: str, line: Line, *, rank: int | None = None, numbers: Mapping[str, float] | None = None) -> None:
        if len(self.events) < _MOST:
            self.events.append(
                Event(
                    kind,
                    says.strip()[:400],
                    where=f"{self.path}:{line.number}",
                    step=self.step,
                    time=line.time,
                    rank=line.rank if rank is None else rank,
                    numbers=Frozen(numbers or {}),
                )
            )

    def _once(self, *key: object) -> bool:
        if key in self._seen or len(self._seen) >= _MOST:
            return False
        self._seen.add(key)
        return True

    def _traceback(self, line: Line) -> bool:
        rank, text = line.rank, line.text
        self._open[rank] += 1
        if self._open[rank] > _LONGEST_TRACEBACK:
            del self._open[rank]
            return False
        if text[:1].isspace() or not text:
            if found := _FRAME.match(text):
                self._frame[rank] = f"{found['file']}:{found['line']}"
            return True
        found = _ERROR.match(text[:2000])
        if not found or not (found["type"][0].isupper() or "." in found["type"]):
            return text.startswith(("  |", "During handling", "The above exception"))
        del self._open[rank]
        self._failed(text.strip(), found["type"], line, self._frame.pop(rank, ""))
        return True

    def _failed(self, says: str, kind: str, line: Line, frame: str) -> None:
        if kind.rsplit(".", 1)[-1] in _LAUNCHERS:
            self._launcher = self._launcher or (says, line)
            return
        if _OOM.search(says):
            self._memory(line)
        self.clean_end = False
        told = f"{says[:300]} (at {frame})" if frame else says
        if _FLOOR.search(says) and self._once("scale-floor", line.rank):
            self._add("scale-floor", says, line)
        if self._once("traceback", line.rank, says[:80]) and self._errors < 64:
            self._errors += 1
            self._add("traceback", told, line)

    def _bare_error(self, line: Line) -> bool:
        found = _BARE.match(line.text[:2000])
        if not found:
            return False
        self._failed(line.text.strip(), found["type"], line, "")
        return True

    def _memory(self, line: Line) -> bool:
        if not _OOM.search(line.text):
            return False
        numbers = {}
        if found := _TRIED.search(line.text):
            numbers["tried_gib"] = (number(found["size"]) or 0.0) * _GIB[found["unit"][0]]
        if self._once("oom", line.rank):
            self._add("oom", line.text, line, numbers=numbers)
        self.clean_end = False
        return True

    def _host(self, line: Line) -> bool:
        for kind, shape in _HOST:
            if shape.search(line.text):
                if self._once(kind, line.rank):
                    self._add(kind, line.text, line)
                self.clean_end = False
                return True
        return False

    def _exit(self, line: Line) -> bool:
        found = _EXIT.search(line.text) if "exit" in line.text else None
        if not found:
            return self._good_exit(line)
        code = int(found["code"] or found["elastic"])
        self._add("exit", line.text, line, rank=int(found["rank"]) if found["rank"] else None, numbers={"exit_code": float(code)})
        self.clean_end = code == 0 and self.clean_end is not False
        return True

    def _good_exit(self, line: Line) -> bool:
        if not _GOOD_EXIT.search(line.text):
            return False
        self._good += 1
        if self._good_at < 0:
            self._good_at = len(self.events)
            self._add("exit", "a process exits successfully", line, numbers={"exit_code": 0.0})
        self.clean_end = self.clean_end is not False
        return True

    def _network(self, line: Line) -> bool:
        text = line.text
        if found := _WATCHDOG.search(text):
            where = _PG_RANK.search(text)
            rank = int(where["rank"]) if where else line.rank
            numbers = {"seq": float(found["seq"])} if found["seq"] else {}
            if ran := _RAN_FOR.search(text):
                numbers["ran_for_s"] = float(ran["ms"]) / 1000.0
            if self._once("nccl-timeout", rank, found["seq"]):
                self._add("nccl-timeout", text, line, rank=rank, numbers=numbers)
            self.clean_end = False
            return True
        found = _NCCL.search(text) if "NCCL" in text else None
        if not found:
            return False
        if world := _WORLD.search(found["says"]):
            self.world = max(self.world or 0, int(world["n"]))
        if net := _NETWORK.search(found["says"]):
            name = net["net"] or net["plugin"]
            if self._once("network", name):
                self._add("network", f"NCCL uses the network {name}" + (f": {net['what']}" if net["what"] else ""), line)
        elif found["level"] == "WARN" and self._once("nccl-warn", found["says"][:60]):
            self._add("nccl-warn", found["says"], line)
        return True

    def _scaler(self, line: Line) -> bool:
        text = line.text
        if _FLOOR.search(text):
            if self._once("scale-floor", line.rank):
                self._add("scale-floor", text, line)
            return "Error" not in text and "Exception" not in text
        found = _OVERFLOW.search(text) if "verflow" in text or "OVERFLOW" in text else None
        if not found:
            return False
        numbers = {k: v for k, g in (("scale", "old"), ("new_scale", "new")) if found[g] and (v := number(found[g])) is not None}
        self._add("overflow", text, line, numbers=numbers)
        return True

    def _moment(self, line: Line) -> bool:
        text = line.text
        kind = "checkpoint" if _SAVED.search(text) else "resume" if _LOADED.search(text) else "eval" if _EVAL.search(text) else ""
        if not kind:
            return False
        found = _STEP_IN_NAME.search(text)
        at = int(found["at"]) if found else self.step
        if self._once(kind, at):
            held, self.step = self.step, at
            self._add(kind, text, line)
            self.step = held
        return True
