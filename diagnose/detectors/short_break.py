"""A break in a log of a few rows, where there is too little to measure noise over windows: most pasted logs have six rows.

Kind "short-break": the largest step between two rows, where it leads beyond all rows before (numbers before, after: rows on either
side, base, peak, last, ratio, returns: 1 when the last row is back at the base, alone: the step over the largest other one). A slow
rise of three rows or more counts from its lowest row (alone 0). Up for signals that should fall, down for those that should rise.
It is no alarm by itself: rows of a noisy loss step that far. Rules ask for `alone`, for a second signal, or for a large batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.curves import Array, Index
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class ShortBreak:
    """With alone >= 2.5 and five rows or more: 4 in 1,000 pieces of healthy runs, all of losses near zero (B of knowledge, 0.1)."""

    shape: str = "short-break"
    kinds: tuple[str, ...] = ("short-break",)
    least: int = 3  # rows
    most: int = 29  # rows; from 30 on the other detectors have their windows
    small: float = 1.04  # smallest ratio
    floor: float = 0.005  # nats: rows that agree better are rounded
    ratio: float = 1.5  # of a slow rise
    rising: int = 3  # rows of a slow rise
    back: float = 0.1  # of the step: the last row counts as returned below it

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the ratio; `strength` the step over the range of the rows before (over ln 1.5 with one row)."""
        steps, y = curves.kept(signal)
        if not self.least <= len(y) <= self.most or not curves.in_log(signal) or not np.ptp(y) > 0:
            return ()
        sign = -1.0 if signal.good == "up" else 1.0
        found = self._step(signal, steps, y, sign * y) or self._climb(signal, steps, y, sign * y)
        return (found,) if found is not None else ()

    def _step(self, signal: Signal, steps: Index, y: Array, up: Array) -> Finding | None:
        """The largest step up between two rows, where it leads above all rows before."""
        rises = np.diff(up)
        k = int(np.argmax(rises)) + 1
        step = float(rises[k - 1])
        if step < math.log(self.small) or float(up[k]) <= float(up[:k].max()):
            return None
        others = float(np.abs(np.delete(rises, k - 1)).max())
        return self._finding(signal, steps, y, up, k, step / max(others, self.floor))

    def _climb(self, signal: Signal, steps: Index, y: Array, up: Array) -> Finding | None:
        low = int(np.argmin(up))
        rise = np.diff(up[low:])
        if len(rise) < self.rising or not (rise[-self.rising :] > 0).all() or float(up[-1] - up[low]) < math.log(self.ratio):
            return None
        falls = float(-rise.min()) if rise.min() < 0 else 0.0
        if falls > 0.25 * float(up[-1] - up[low]):
            return None
        return self._finding(signal, steps, y, up, low + 1, 0.0)

    def _finding(self, signal: Signal, steps: Index, y: Array, up: Array, k: int, alone: float) -> Finding:  # noqa: PLR0917 - the arrays of one look
        base = float(np.median(up[max(0, k - 3) : k]))
        top = k + int(np.argmax(up[k:]))
        step = float(up[top]) - base
        returned = float(up[-1]) - base <= self.back * step and len(up) - k > 1
        ratio = math.exp(min(step, 700.0))
        numbers = {
            "before": float(k),
            "after": float(len(up) - k),
            "base": math.exp(min(float(y[max(0, k - 1)]), 700.0)),
            "peak": math.exp(min(float(y[top]), 700.0)),
            "last": math.exp(min(float(y[-1]), 700.0)),
            "ratio": ratio,
            "returns": float(returned),
            "to_end": float(not returned),
            "rows": float(len(up)),
            "alone": alone,
        }
        return Finding(
            "short-break",
            signal.name,
            Span(int(steps[k]), int(steps[-1])),
            direction="down" if signal.good == "up" else "up",
            size=ratio,
            strength=alone,
            onset=Span(int(steps[k - 1]), int(steps[k])),
            numbers=Frozen(numbers),
        )


DETECTOR = ShortBreak()
