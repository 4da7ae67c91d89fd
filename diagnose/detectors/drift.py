"""A slow trend over the whole run after its start: Theil-Sen slope and Mann-Kendall test on block medians.

numbers: slope (nats or units per 10 % of the run), total (first to last block), p, ramp (1 when a line fits the blocks better than one step).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Drift:
    """Blocks, because smoothed or correlated points make the test fire on noise (knowledge B.7)."""

    shape: str = "drift"
    kinds: tuple[str, ...] = ("drift",)
    count: int = 16  # blocks (10 to 20)
    p: float = 0.01
    total: float = 0.1  # nats, or noise widths' share for plain signals
    least: int = 40

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is last over first block (multiplicative) or their difference; `strength` is the total over the blocks' noise."""
        steps, y = curves.kept(signal)
        if signal.settled_from is not None:
            y, steps = y[steps >= signal.settled_from], steps[steps >= signal.settled_from]
        if len(y) < self.least or not np.ptp(y) > 0:
            return ()
        mids, size = curves.blocks(y, self.count, 2)
        if len(mids) < 8:
            return ()
        x = np.arange(len(mids), dtype=float)
        slope, p = curves.slope_of(x, mids), curves.mann_kendall(mids)
        total = slope * (len(mids) - 1)
        width = max(curves.noise(mids), 1e-12)
        if p > self.p or abs(total) < (self.total if signal.multiplicative else self.total * float(np.ptp(y))):
            return ()
        line = float(((mids - np.median(mids - slope * x) - slope * x) ** 2).sum())
        step = min(float(((mids[:k] - mids[:k].mean()) ** 2).sum() + ((mids[k:] - mids[k:].mean()) ** 2).sum()) for k in range(2, len(mids) - 1))
        per_tenth = slope / size * 0.1 * len(y)
        numbers = {"slope": per_tenth, "total": total, "p": p, "ramp": float(line <= step)}
        return (Finding("drift", signal.name, Span(int(steps[0]), int(steps[-1])), direction="up" if total > 0 else "down",
                        size=math.exp(float(np.clip(total, -700, 700))) if signal.multiplicative else total, strength=abs(total) / width,
                        onset=Span(int(steps[0]), int(steps[len(steps) // 4])), numbers=Frozen(numbers)),)  # fmt: skip


DETECTOR = Drift()
