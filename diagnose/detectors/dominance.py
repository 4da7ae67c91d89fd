"""A ratio that lies above one almost all the time, in every window after the start.

Kind "mostly-above": numbers share (of points above 1), median_ratio, windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Dominance:
    """More than 80 % in at least three windows of 500 points, shorter ones in short runs (knowledge G6)."""

    shape: str = "mostly-above"
    kinds: tuple[str, ...] = ("mostly-above",)
    share: float = 0.8
    window: int = 500
    windows: int = 3
    least: int = 30

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the median ratio; `strength` the share of points above one."""
        good = np.isfinite(signal.values)
        if signal.settled_from is not None:
            good &= signal.steps >= signal.settled_from
        steps, v = signal.steps[good], signal.values[good]
        if len(v) < self.least:
            return ()
        window = min(self.window, len(v) // self.windows)
        count = len(v) // window
        shares = (v[: count * window].reshape(count, window) > 1.0).mean(axis=1)
        if not (shares > self.share).all():
            return ()
        numbers = {"share": float((v > 1.0).mean()), "median_ratio": float(np.median(np.minimum(v, curves.HUGE))), "windows": float(count)}
        return (
            Finding(
                "mostly-above",
                signal.name,
                Span(int(steps[0]), int(steps[-1])),
                direction="up",
                size=numbers["median_ratio"],
                strength=numbers["share"],
                onset=Span(int(signal.steps[0]), int(steps[0])),
                numbers=Frozen(numbers),
            ),
        )


DETECTOR = Dominance()
