"""The steps become slower for good in the middle of a run.

## What it looks for
A lasting step up of the time per step (or down of the throughput) that nothing planned explains.

## Why it matters
One slow node or a starved loader costs its share of the whole cluster until somebody sees it.

## How it decides
The medians before and after a changepoint must differ by 5 % for *minor* and 10 % for *major*, for at least a hundred steps (or a
twentieth of a short run). Changes of batch, sequence length or a resume explain it and are left out. Every healthy run has raw
changepoints of the step time; almost none has a lasting one of this size.

## When it is wrong
Other jobs on a shared machine slow the run without any fault of its own, and the log can't tell.

## What to do
Compare the time to load data with the time to compute; look for one slow node, thermal limits and the network.

## References
FALCON (2410.12588); BLOOM-176B chronicles (149 to 140 TFLOPs, one node); ByteRobust (2509.16293).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Finding, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, grouped, num, number, percent, primary, related, since, some, sure, when

TIME = "time/step"
RATES = ("throughput/samples", "throughput/tokens")
REPORT, ALARM = 0.05, 0.10  # of 73 healthy runs none shifts by 5 % (knowledge T1)
LASTS = 0.25  # of the run: shorter slow stretches come and go on shared machines; what is slow at the end lasts too
FEW, APART = 5, 3.0  # rows of a short log, and times the largest other difference between two of them
SECONDS = 1.0  # steps that take as long do not jitter by 5 %
TWICE = 1.0  # a step that takes twice the time is no jitter: half as long is enough
UNSEEN = 0.02  # the new level must be this much slower than the slow tenth of the steps before: an unsteady machine has been there


def judge(case: Case) -> Iterator[Diagnosis]:
    """The largest lasting slow-down."""
    shifts = [(f, slower) for f in _shifts(case) if (slower := _slower(f)) >= REPORT and _lasts(case, f) and _unseen(case, f)]
    shifts = shifts or [(f, f.size - 1) for f in _in_few_rows(case)]
    if not shifts:
        return
    shift, slower = max(shifts, key=lambda pair: (pair[0].signal == TIME, pair[1]))
    few = shift.kind == "short-break"
    before, after = (number(shift, "base"), number(shift, "peak")) if few else (number(shift, "before"), number(shift, "after"))
    loader = next((f for f in case.found("level-shift", "time/data", direction="up") if f.onset.overlaps(shift.onset, case.near())), None)
    what = "The time per step rises" if shift.signal == TIME else "The throughput falls"
    yield Diagnosis(
        "step-time-regression",
        f"{what} at {since(shift.onset.first_step)}, from {num(before)} to {num(after)}: {percent(slower)} more time per step.",
        Severity.MAJOR if slower >= ALARM else Severity.MINOR,
        confidence=sure(case, shift.signal, plain=slower >= 2 * ALARM),
        onset=shift.onset,
        end_step=shift.span.last_step if shift.span.last_step < case.last_step else None,
        evidence=some(
            primary(
                shift,
                f"The median goes from {num(before)} to {num(after)} and stays for"
                f" {grouped(shift.span.last_step - shift.onset.first_step)} steps.",
            ),
            related(loader, "The time to load data rises with it.") if loader else None,
        ),
        causes=_causes(case, shift, loader),
        fixes=(fix("tune-loader"), fix("profile-step"), fix("check-hardware"))
        if loader
        else (fix("profile-step"), fix("check-hardware"), fix("tune-loader")),
        rivals=("periodic-stalls",),
    )


def _in_few_rows(case: Case) -> list[Finding]:
    """A slow-down in a log too short for levels: far beyond the other differences between rows, and to the end."""
    found = (*case.found("short-break", TIME, direction="up"), *case.found("short-break", RATES, direction="down"))
    enough = [f for f in found if number(f, "before") >= 2 and number(f, "after") >= 2 and number(f, "rows") >= FEW]
    slow = (case.level(TIME) or 0.0) >= SECONDS
    return [f for f in enough if slow and number(f, "alone") >= APART and f.size >= 1 + REPORT and not number(f, "returns")]


def _shifts(case: Case) -> list[Finding]:
    up = case.found("level-shift", TIME, direction="up", masked=False)
    down = case.found("level-shift", RATES, direction="down", masked=False) if not case.has(TIME) else ()
    return [f for f in (*up, *down) if not case.masks_at(f.onset, "X3", "X4", "X5")]


def _slower(shift: Finding) -> float:
    """How much more time a step takes, as a share."""
    before, after = number(shift, "before"), number(shift, "after")
    if before <= 0 or after <= 0:
        return 0.0
    return after / before - 1 if shift.signal == TIME else before / after - 1


def _lasts(case: Case, shift: Finding) -> bool:
    """Whether the slow level holds for a quarter of the run, or until its end."""
    start = shift.onset.first_step
    if case.last_step - start < min(100, case.length // 20) or start - case.first_step < case.length // 10:
        return False  # too little after it, or too little before it to know what is usual
    after = number(shift, "after")
    share = LASTS if _slower(shift) < TWICE else LASTS / 2
    until = min(case.last_step, start + round(share * case.length))
    late = case.level(shift.signal, Span(until - max(case.near(), case.length // 20), until))
    half = (number(shift, "before") + after) / 2
    return late is not None and (late >= half if shift.signal == TIME else late <= half)


def _unseen(case: Case, shift: Finding) -> bool:
    """Whether the run had never been that slow for a while before."""
    before = Span(case.first_step + case.near(), shift.onset.first_step - 1)
    slow = case.quantile(shift.signal, 0.9 if shift.signal == TIME else 0.1, before)
    after = number(shift, "after")
    return slow is None or (after >= slow * (1 + UNSEEN) if shift.signal == TIME else after <= slow * (1 - UNSEEN))


def _causes(case: Case, shift: Finding, loader: Finding | None) -> tuple[Cause, ...]:
    data = case.has("time/data")
    return ranked(
        (
            cause(
                "slow-node-or-loader",
                "One node slowed down, or the data loader falls behind",
                1.0,
                when(loader, 2, "The time to load data rises with it."),
                would_decide="" if data else "the time to load a batch, and the step time per rank",
            ),
            cause("network-contention", "The network is shared or degraded", 0.5, when(loader, -1, "The time to load data explains it.")),
            cause(
                "thermal-throttling",
                "The processors run hot and slow down",
                0.4,
                when(loader, -1, "The time to load data explains it."),
                would_decide="clocks and temperatures",
            ),
            cause("memory-pressure", "The memory is nearly full: garbage collection and retries", 0.3, would_decide="the memory reserved"),
        )
    )


RULE = Rule(
    id="step-time-regression",
    title="Steps become slower",
    family="throughput",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(f"{TIME}|{RATES[0]}|{RATES[1]}",),
    wants=("time/data",),
    uses=(
        "level-shift",
        "short-break",
    ),
    judge=judge,
    examples=(
        fires(
            "a quarter more time per step from step 900 on", lambda: {TIME: synth.with_level_shift(synth.step_time(), at=900, ratio=1.25)}
        ),
        quiet("rare slow steps", lambda: {TIME: synth.step_time()}),
        quiet("a slow stretch that ends", lambda: {TIME: synth.with_level_shift(synth.step_time(), at=900, ratio=1.25, until=960)}),
    ),
)
