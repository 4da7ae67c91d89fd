"""Every so many steps one step takes far longer.

## What it looks for
Slow steps that return with a fixed period.

## Why it matters
Checkpoints written while all wait, logging, evaluation, garbage collection or one slow worker cost their share of the run.

## How it decides
The slow steps must be evenly spaced and take at least 1 % of all time for *minor*, 10 % for *major*. Below that they are *info*.

## When it is wrong
Evaluation inside the timed step is work, not a stall.

## What to do
Write checkpoints asynchronously or less often, and look at the loader's prefetching.

## References
MegaScale (2402.15627); ByteRobust (2509.16293); CheckFreq (FAST 2021).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Severity
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, number, percent, primary, since, strongest, sure, when

SIGNALS = ("time/step", "time/data", "throughput/samples", "throughput/tokens")
LEAST, LARGE = 0.01, 0.10  # of all time (engineering choice)


def judge(case: Case) -> Iterator[Diagnosis]:
    """The strongest series of stalls."""
    stalls = strongest(f for f in case.found("stalls", SIGNALS))
    if stalls is None:
        return
    period, share, ratio = number(stalls, "period_steps"), number(stalls, "share"), number(stalls, "ratio", default=stalls.size)
    saves = [e.step for e in case.said("checkpoint") if e.step is not None]
    saved = len(saves) >= 2 and period > 0 and all(abs((b - a) / period - round((b - a) / period)) < 0.1 for a, b in pairwise(saves))
    yield Diagnosis(
        "periodic-stalls",
        f"Every {num(period)} steps one step takes {num(ratio)} times as long, {percent(share)} of all time,"
        f" first at {since(stalls.onset.first_step)}.",
        Severity.INFO if share < LEAST else Severity.MINOR if share < LARGE else Severity.MAJOR,
        confidence=sure(case, stalls.signal),
        onset=stalls.onset,
        period_steps=period or None,
        evidence=(primary(stalls, f"Slow steps return every {num(period)} steps, at {num(ratio)} times the median time."),),
        causes=ranked(
            (
                cause(
                    "periodic-stall",
                    "Checkpoints or another periodic job block the training",
                    1.0,
                    when(saved, 3, "Checkpoints are written with this period."),
                ),
                cause(
                    "slow-node-or-loader",
                    "The data loader runs dry, or one worker is slow",
                    0.6,
                    when(stalls.signal == "time/data", 3, "The time to load data has the same period."),
                    would_decide="" if case.has("time/data") else "the time to load a batch",
                ),
            )
        ),
        fixes=(fix("async-checkpoint"), fix("tune-loader")),
    )


RULE = Rule(
    id="periodic-stalls",
    title="Steps stall periodically",
    family="throughput",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=("time/step|throughput/samples|throughput/tokens",),
    wants=("time/data",),
    uses=("stalls",),
    judge=judge,
    examples=(
        fires(
            "every hundred steps one takes six times as long",
            lambda: {"time/step": synth.with_stalls(synth.step_time(), every=100, ratio=6.0)},
        ),
        quiet("rare slow steps at no distance", lambda: {"time/step": synth.step_time()}),
    ),
)
