"""A slow trend over the whole run after its start: Theil-Sen slope and Mann-Kendall test on block medians.

Only what can be a fault: a trend against the signal's good direction, or any trend of a signal that has none. A single step is left to
`level-shift`. numbers: slope (nats, or units, per 10 % of the run), total (first to last block), p,
ramp (BIC of a step less that of a line).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal


@dataclass(frozen=True, slots=True)
class Drift:
    """Blocks, because smoothed or correlated points make the test fire on noise: an EMA of .9 in 37 % at α = 1 % (knowledge B.7)."""

    shape: str = "drift"
    kinds: tuple[str, ...] = ("drift",)
    count: int = 16  # blocks (10 to 20, N1)
    p: float = 0.01  # (B.7)
    total: float = 0.3  # nats over the run, for signals without a good direction (G10's .1 per tenth is a rise all through: 1.0)
    wrong: float = 0.05  # nats over the run against the good direction (O5: 5 %)
    widths: float = 3.0  # of the blocks' own noise, on any scale
    least: int = 40

    @curves.quietly
    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is last over first block on a ratio scale, else their difference; `strength` the total in widths of the blocks' noise."""
        v = curves.view(signal, settled=True)
        if len(v) < self.least or not float(np.ptp(v.y)) > 0:
            return ()
        mids = curves.parts(v.y, self.count)
        slope, p = curves.slope_of(np.arange(len(mids), dtype=np.float64), mids), curves.mann_kendall(mids)
        total = slope * (len(mids) - 1)
        width = max(curves.noise(mids), v.floor, 1e-9 * float(np.ptp(v.y)))
        needed = (self.total if signal.good == "none" else self.wrong) if v.log else 0.0
        improves = (signal.good == "down" and total < 0) or (signal.good == "up" and total > 0)
        ramp = curves.step_or_ramp(mids)
        if p > self.p or improves or abs(total) < max(needed, self.widths * width) or ramp < 0:
            return ()
        per_tenth = slope * len(mids) / 10.0
        numbers = {"slope": per_tenth, "total": total, "p": p, "ramp": ramp}
        return (
            Finding(
                "drift",
                signal.name,
                v.span(0, len(v) - 1),
                direction="up" if total > 0 else "down",
                size=v.ratio(total, 0.0) if v.log else total,
                strength=abs(total) / width,
                onset=v.span(0, len(v) // len(mids)),
                numbers=Frozen(numbers),
            ),
        )


DETECTOR = Drift()
