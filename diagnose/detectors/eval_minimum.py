"""A sparse signal whose minimum lies behind: it rose since, for at least three points.

Kind "eval-minimum": numbers minimum, last, rise (share above the minimum), points (since the minimum), sigma (noise widths of the rise).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class EvalMinimum:
    """Above max(2 %, 3σ) for at least 3 points up to the end (knowledge E1); medians of three, so that one lucky point is no minimum."""

    shape: str = "eval-minimum"
    kinds: tuple[str, ...] = ("eval-minimum",)
    rise: float = 0.02
    sigma: float = 3.0
    points: int = 3
    least: int = 6

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the rise as a share of the minimum; `strength` the rise in noise widths."""
        steps, y = curves.kept(signal)
        if len(y) < self.least or signal.good != "down":
            return ()
        padded = np.r_[y[0], y, y[-1]]
        smooth = np.median(np.lib.stride_tricks.sliding_window_view(padded, 3), axis=1)
        low = int(np.argmin(smooth))
        noise = curves.noise(y)
        need = max(math.log1p(self.rise), self.sigma * noise)
        tail = smooth[low + 1 :] - smooth[low]
        above = np.flatnonzero(~(tail > need))
        lasting = len(tail) - (int(above[-1]) + 1 if len(above) else 0)
        if len(tail) < self.points or lasting < self.points:
            return ()
        rise = float(np.median(smooth[-3:]) - smooth[low])
        logs = curves.in_log(signal)
        numbers = {
            "minimum": math.exp(min(float(smooth[low]), 700.0)) if logs else float(smooth[low]),
            "last": float(signal.values[np.isfinite(signal.values)][-1]),
            "rise": math.expm1(min(rise, 700.0)) if logs else rise,
            "points": float(len(tail)),
            "sigma": rise / max(noise, 1e-12),
        }
        onset = Span(int(steps[low]), int(steps[min(low + 1, len(steps) - 1)]))
        return (
            Finding(
                "eval-minimum",
                signal.name,
                Span(int(steps[low]), int(steps[-1])),
                direction="up",
                size=numbers["rise"],
                strength=numbers["sigma"],
                onset=onset,
                numbers=Frozen(numbers),
            ),
        )


DETECTOR = EvalMinimum()
