"""Runs of NaN and infinities in a signal.

numbers: nan, posinf, neginf (counts), share (of all points), longest (points in a row), to_end (1 when the last point is in it),
first (1 when it starts with the signal).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Nonfinite:
    """One finding a run of non-finite points (those at most `gap` finite points apart are one), at most `most` of them."""

    shape: str = "nonfinite"
    kinds: tuple[str, ...] = ("nonfinite",)
    gap: int = 2  # a NaN that flickers is one event
    most: int = 20  # findings a signal; more say nothing new

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the number of non-finite points, `strength` too."""
        bad = ~np.isfinite(signal.values)
        found = []
        for a, b in curves.runs_of(bad, self.gap)[: self.most]:
            part = signal.values[a : b + 1]
            counts = {"nan": int(np.isnan(part).sum()), "posinf": int(np.isposinf(part).sum()), "neginf": int(np.isneginf(part).sum())}
            size = float(sum(counts.values()))
            longest = max((d - c + 1 for c, d in curves.runs_of(bad[a : b + 1])), default=0)
            numbers = {**{k: float(v) for k, v in counts.items()}, "share": float(bad.mean()), "longest": float(longest),
                       "to_end": float(b == len(bad) - 1), "first": float(a == 0)}  # fmt: skip
            before = int(signal.steps[a - 1]) + 1 if a else int(signal.steps[a])
            onset = Span(min(before, int(signal.steps[a])), int(signal.steps[a]))
            found.append(Finding("nonfinite", signal.name, Span(int(signal.steps[a]), int(signal.steps[b])), size=size, strength=size,
                                 onset=onset, numbers=Frozen(numbers)))  # fmt: skip
        return tuple(found)


DETECTOR = Nonfinite()
