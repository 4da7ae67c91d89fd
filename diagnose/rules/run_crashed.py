"""The program ended with an error, in words.

## What it looks for
Tracebacks, CUDA and host out-of-memory lines, NCCL watchdog timeouts, driver errors (Xid, ECC), a full disk, the end that Slurm made.

## Why it matters
The run stopped there, whatever the curves say; what broke first is what has to be mended.

## How it decides
The earliest event that names a reason is the diagnosis. A launcher's `ChildFailedError`, an exit code of -15 and a watchdog timeout
on other ranks are consequences. Of a hang, the rank that timed out is a victim: the one that stopped is the one that is missing.

## When it is wrong
Lines of several ranks interleave; without rank prefixes the first one printed need not be the first one that failed.

## What to do
What the error asks for: memory, disk, the network's settings, a longer time limit, or a look at the line of code it names.

## References
torch.distributed.elastic; ProcessGroupNCCL.cpp; Slurm's slurmstepd; NVIDIA's list of Xid errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Confidence, Diagnosis, Event, Evidence, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, since, some, when

# a reason, and the shapes of the words that name it, from the most telling to the least
_REASONS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("out-of-memory", "The accelerator's memory is full", ("oom",), r"(?i)out of memory|OutOfMemory|RESOURCE_EXHAUSTED"),
    (
        "host-out-of-memory",
        "The host's memory is full, and the kernel killed a process",
        ("host-oom",),
        r"(?i)DataLoader worker .{0,80}killed|oom-kill",
    ),
    ("disk-full", "The disk or the quota is full", ("disk-full",), r"(?i)no space left|quota exceeded"),
    (
        "loss-scale-exhausted",
        "fp16 could not find a loss scale that works",
        ("scale-floor",),
        r"(?i)loss scale already at minimum|Minimum loss scale",
    ),
    (
        "hardware-fault",
        "A device or its memory is faulty, or a kernel touched memory that is not its own",
        ("hardware",),
        r"(?i)illegal memory access|ECC|Xid|launch failure|fallen off",
    ),
    ("device-assert", "An index is out of range on the device: labels, token ids or positions", (), r"device-side assert"),
    (
        "nccl-hang",
        "A collective timed out: one rank stopped or did something else",
        ("nccl-timeout",),
        r"(?i)NCCL.{0,80}(?:timeout|timed out)|watchdog|DistBackendError",
    ),
    ("time-limit", "The scheduler's time limit was reached", ("time-limit",), r"TIME LIMIT"),
    ("preempted", "The job was pre-empted or its node failed", ("preempted",), r"PREEMPTION|NODE FAILURE"),
    (
        "non-finite-guard",
        "The program's own check stopped it at a value that is not finite",
        (),
        r"(?i)\bnan\b|non-finite|FloatingPointError|inf or nan",
    ),
    (
        "shape-mismatch",
        "Sizes of tensors do not fit",
        (),
        r"(?i)size mismatch|shapes? .{0,60}(?:mismatch|cannot be multiplied|invalid)|must match",
    ),
    ("missing-file", "A file or module is missing", (), r"FileNotFoundError|ModuleNotFoundError|ImportError|No such file"),
    ("interrupted", "Somebody or the scheduler stopped it", ("cancelled",), r"KeyboardInterrupt|CANCELLED|SIGTERM"),
    (
        "peer-lost",
        "Another rank stopped or was killed, and this one waited for it",
        (),
        r"(?i)connection (?:reset|closed) by peer|timed out waiting|broken pipe|socket timeout|remote process exited",
    ),
    ("killed", "The process was killed by a signal", ("signal",), r"(?i)segmentation fault|core dumped|^killed|bus error"),
)
_SHAPES = tuple((id, title, kinds, re.compile(shape)) for id, title, kinds, shape in _REASONS)
_MILD = frozenset({"interrupted", "time-limit", "preempted"})
_ENDS = ("traceback", *dict.fromkeys(k for _, _, kinds, _ in _REASONS for k in kinds))
_SIGNALS = frozenset((-9.0, -6.0, -11.0, -7.0, 134.0, 135.0, 137.0, 139.0))  # KILL, ABRT, SEGV, BUS, and as shells count them
_CURES: dict[str, tuple[str, ...]] = {
    "out-of-memory": ("less-memory",),
    "host-out-of-memory": ("more-host-memory",),
    "disk-full": ("free-disk",),
    "loss-scale-exhausted": ("bf16", "lower-lr"),
    "hardware-fault": ("check-hardware", "debug-error"),
    "device-assert": ("check-data", "debug-error"),
    "nccl-hang": ("find-hung-rank", "check-hardware", "nccl-network"),
    "time-limit": ("resume-longer",),
    "preempted": ("resume-longer", "check-hardware"),
    "non-finite-guard": ("locate-nan", "lower-lr"),
    "peer-lost": ("find-hung-rank", "check-hardware"),
    "interrupted": ("resume-longer",),
    "killed": ("more-host-memory", "check-hardware"),
}


def judge(case: Case) -> Iterator[Diagnosis]:
    """The earliest event that names a reason; a program that fails and goes on is an attempt, told as minor."""
    ends = [e for e in case.events if e.kind in _ENDS or (e.kind == "exit" and e.numbers.get("exit_code", 0.0) in _SIGNALS)]
    named = [(e, r) for e in ends if (r := _reason(e)) is not None]
    if not ends:
        return
    first, reason = named[0] if named else (ends[0], None)
    if (killed := _killed(case)) is not None and (reason is None or reason[0] == "peer-lost"):
        first, reason = killed, ("killed", "A process was killed by a signal, and the others lost it")
    later = first.step is not None and first.step < case.last_step - case.near()
    ranks = sorted({e.rank for e in ends if e.rank is not None})
    step = f" at {since(first.step)}" if first.step is not None else ""
    title = reason[1] if reason else "The program ended with an error"
    mild = reason is not None and reason[0] in _MILD
    severity = Severity.MINOR if mild or later else Severity.CRITICAL
    yield Diagnosis(
        "run-crashed",
        f"{title}{step}: {_short(first.says)}",
        severity,
        confidence=Confidence.HIGH if reason else Confidence.MEDIUM,
        onset=None if first.step is None else Span(first.step, first.step),
        evidence=some(
            Evidence(first.says[:300], role="primary", about=first.kind),
            *(
                Evidence(f"{e.kind}: {_short(e.says)}", about=e.kind)
                for e in ends
                if e is not first and _short(e.says) != _short(first.says)
            ),
            Evidence(f"Ranks that report it: {', '.join(map(str, ranks[:16]))}.", about=first.kind) if len(ranks) > 1 else None,
        )[:6],
        causes=_causes(case, first, reason),
        fixes=_fixes(case, first, reason),
    )


def _killed(case: Case) -> Event | None:
    """The exit of a rank that a signal ended; -15 is the launcher ending the others, a victim."""
    return next((e for e in case.said("exit") if e.numbers.get("exit_code", 0.0) in _SIGNALS), None)


def _short(says: str) -> str:
    return says if len(says) <= 140 else says[:137] + "..."


def _reason(event: Event) -> tuple[str, str] | None:
    for id, title, kinds, shape in _SHAPES:
        if event.kind in kinds or shape.search(event.says):
            return id, title
    return None


def _causes(case: Case, first: Event, reason: tuple[str, str] | None) -> tuple[Cause, ...]:
    if reason is None:
        return ranked((cause("program-error", "An error in the program or its inputs", 1.0, would_decide="the whole traceback"),))
    socket = any("Socket" in e.says for e in case.said("network"))
    options = [cause(reason[0], reason[1], 1.0, when(True, 1, f"The log says so: {_short(first.says)}"))]
    if reason[0] in ("nccl-hang", "peer-lost"):
        options += [
            cause(
                "rank-crashed",
                "One rank failed first, and the others waited for it",
                0.6,
                when(case.said("oom") or case.said("traceback"), 1, "Another error stands in the log."),
                would_decide="the log of every rank",
            ),
            cause("network-fault", "The network between the nodes failed or is slow", 0.4, when(socket, 1, "NCCL uses sockets.")),
        ]
    if reason[0] == "out-of-memory":
        tried = first.numbers.get("tried_gib")
        options.append(
            cause("fragmentation", "The memory is fragmented", 0.3, when(tried and tried < 1, 1, f"Only {num(tried)} GiB were asked for."))
        )
    if reason[0] == "hardware-fault":
        options.append(cause("index-out-of-range", "An index is out of range in a custom kernel", 0.4))
    return ranked(options)


def _fixes(case: Case, first: Event, reason: tuple[str, str] | None) -> tuple[Fix, ...]:
    names = _CURES.get(reason[0] if reason else "", ("debug-error",))
    return tuple(fix(name) for name in names)


def _with(kind: str, says: str, **numbers: float) -> tuple[Event, ...]:
    return (Event(kind, says, where="train.log:9", step=1999, numbers=numbers),)


RULE = Rule(
    id="run-crashed",
    title="The program ended with an error",
    family="infrastructure",
    severity=Severity.CRITICAL,
    status="preview",
    since="0.1",
    needs=(),
    uses=(),
    judge=judge,
    examples=(
        fires(
            "a CUDA out-of-memory error",
            lambda: {"loss/train": synth.loss()},
            events=_with("oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", tried_gib=2.0),
        ),
        quiet("checkpoints and evaluations", lambda: {"loss/train": synth.loss()}, events=_with("checkpoint", "saved checkpoint")),
    ),
)
