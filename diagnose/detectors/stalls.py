"""Slow points that come back at a regular distance, as checkpoints, evaluations or collectors cause them.

Kind "stalls" (numbers period_steps, share of the time lost, ratio to the median, count). Regular: at least 5 slow points whose
distances vary by less than a fifth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Stalls:
    """Slow is 1.5 times the median (knowledge T2); healthy runs have p99/median 1.72 and .07 % of steps beyond 2."""

    shape: str = "stalls"
    kinds: tuple[str, ...] = ("stalls",)
    slow: float = 1.5
    sharper: tuple[float, ...] = (4.0, 3.0, 2.5, 2.1, 1.8)  # the sharper the slow points, the less noise among them
    variation: float = 0.2  # of the distances
    count: int = 5
    least: int = 40

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the slow points' median over the median; `strength` is the number of slow points."""
        good = np.isfinite(signal.values) & (signal.values > 0)
        steps, v = signal.steps[good], np.minimum(signal.values[good], curves.HUGE)
        if len(v) < self.least:
            return ()
        middle = float(np.median(v))
        looks = [self._regular(steps, v > factor * middle, signal.steps_per_point) for factor in (*self.sharper, self.slow)]
        at = max(looks, key=len)  # the look that sees most of them; the sharpest one among equals
        if not len(at):
            return ()
        level = float(np.median(v[at]))
        numbers = {
            "period_steps": float(np.median(np.diff(steps[at]))),
            "share": float((v[at] - middle).sum() / v.sum()),
            "ratio": level / middle,
            "count": float(len(at)),
            "slow_s": level,
        }
        return (
            Finding(
                "stalls",
                signal.name,
                Span(int(steps[at[0]]), int(steps[at[-1]])),
                direction="up",
                size=level / middle,
                strength=float(len(at)),
                onset=Span(int(steps[at[0]]), int(steps[at[0]])),
                numbers=Frozen(numbers),
            ),
        )

    def _regular(self, steps: curves.Index, slow: curves.Flags, per: float) -> curves.Index:
        """Where the slow points begin, if they come at a regular distance; else none."""
        at = np.array([a for a, _ in curves.runs_of(slow)], np.int64)
        if len(at) < self.count or len(at) > len(slow) // 3:
            return at[:0]
        gaps = np.diff(steps[at]).astype(float)
        usual = float(np.median(gaps))
        regular = np.abs(gaps / usual - np.round(gaps / usual)) < self.variation
        near = np.abs(gaps / usual - 1) < self.variation
        steady = usual >= 3 * per and float(regular.mean()) >= 0.85 and float(near.mean()) >= 0.7
        return at if steady else at[:0]


DETECTOR = Stalls()
