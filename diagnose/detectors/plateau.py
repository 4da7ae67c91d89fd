"""A signal that stops improving, or never improves.

Kind "plateau": numbers level, since (step), share (of the run), improvement_before (nats or units gained until then), never_moved
(1 when it is flat from the start), spread (of the block medians, in point noise widths).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Plateau:
    """Flat means that block medians move by less than the blocks' own noise allows, for at least 30 % of the run."""

    shape: str = "plateau"
    kinds: tuple[str, ...] = ("plateau",)
    count: int = 24  # blocks
    share: float = 0.3
    effect: float = 0.01  # nats or share of the range: movement below this is flat
    least: int = 40

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the improvement before the plateau; `strength` the plateau's share of the run."""
        steps, y = curves.kept(signal)
        if len(y) < self.least:
            return ()
        sign = -1.0 if signal.good == "up" else 1.0
        mids, size = curves.blocks(sign * y, self.count, 2)
        if len(mids) < 8:
            return ()
        error = 1.253 * curves.noise(y) / math.sqrt(size)
        allowed = max(self.effect if curves.in_log(signal) else self.effect * max(float(np.ptp(y)), 1e-12), 3.0 * error)
        last = float(np.median(mids[-3:]))
        flat = np.abs(mids - last) <= allowed
        moving = np.flatnonzero(~flat)
        since = int(moving[-1]) + 1 if len(moving) else 0
        share = 1.0 - since / len(mids)
        if share < self.share:
            return ()
        tail = mids[since:]
        gained = curves.slope_of(np.arange(len(tail), dtype=float), tail) * len(tail)
        if gained < -allowed:
            return ()
        before = float(np.median(mids[:2])) - last
        logs = curves.in_log(signal)
        level = math.exp(min(last, 700.0)) if logs else sign * last
        at = int(steps[since * size])
        numbers = {
            "level": level,
            "since": float(at),
            "share": share,
            "improvement_before": before,
            "never_moved": float(since <= 1),
            "start": math.exp(min(float(np.median(sign * y[: max(3, size // 4)])), 700.0))
            if logs
            else float(np.median(y[: max(3, size // 4)])),
        }
        return (
            Finding(
                "plateau",
                signal.name,
                Span(at, int(steps[-1])),
                size=before,
                strength=share,
                onset=Span(int(steps[max(0, (since - 1) * size)]), at),
                numbers=Frozen(numbers),
            ),
        )


DETECTOR = Plateau()
