"""Runs of NaN and infinities in a signal.

numbers: nan, posinf, neginf (counts), share (of all points of the signal), longest (points in a row), to_end (1 when the last point of
the signal is in it), first (1 when it starts with the signal). A single odd point has longest 1, a broken run to_end 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.curves import Flags
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """One finding a stretch of non-finite points; exact, so without a threshold of noise."""

    shape: str = "nonfinite"
    kinds: tuple[str, ...] = ("nonfinite",)
    gap: int = 2  # finite points between two stretches that are one: a NaN that flickers is one event
    most: int = 20  # findings a signal, the longest ones; more say nothing new

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` and `strength` are the number of non-finite points."""
        bad = ~np.isfinite(signal.values)
        if not bad.any():
            return ()
        near = curves.runs_of(bad, self.gap)
        if len(near) > self.most:
            kept = sorted(near, key=lambda r: (r[0] - r[1], r[0]))[: self.most]
            near = sorted({*kept, near[0], near[-1]})
        share = float(bad.mean())
        return tuple(self._finding(signal, bad, a, b, share) for a, b in near)

    def _finding(self, signal: Signal, bad: Flags, a: int, b: int, share: float) -> Finding:
        part = signal.values[a : b + 1]
        numbers = {
            "nan": float(np.isnan(part).sum()),
            "posinf": float(np.isposinf(part).sum()),
            "neginf": float(np.isneginf(part).sum()),
            "share": share,
            "longest": float(max(d - c + 1 for c, d in curves.runs_of(bad[a : b + 1]))),
            "to_end": float(b == len(bad) - 1),
            "first": float(a == 0),
        }
        size = numbers["nan"] + numbers["posinf"] + numbers["neginf"]
        begins = int(signal.steps[a])
        after = int(signal.steps[a - 1]) + 1 if a else begins
        return Finding(
            "nonfinite",
            signal.name,
            Span(begins, int(signal.steps[b])),
            size=size,
            strength=size,
            onset=Span(min(after, begins), begins),
            numbers=Frozen(numbers),
        )


DETECTOR = Nonfinite()
