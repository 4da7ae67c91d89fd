"""A positive signal that falls to about zero, or around zero, and stays there.

Kind "collapse": numbers before (median until then; 0 from the start), after, share (of the run).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Collapse:
    """A hundredth of the level before, for at least a tenth of the run; missing values count as nothing (knowledge N4)."""

    shape: str = "collapse"
    kinds: tuple[str, ...] = ("collapse",)
    fraction: float = 0.01
    share: float = 0.1
    least: int = 20

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is after over before; `strength` the share of the run."""
        n = len(signal)
        v = np.clip(np.where(np.isfinite(signal.values), signal.values, 0.0), -curves.HUGE, curves.HUGE)
        if n < self.least:
            return ()
        high = float(np.quantile(np.abs(v), 0.9))
        tail = np.abs(v) <= self.fraction * high if high > 0 else np.ones(n, bool)
        loud = np.flatnonzero(~tail)
        since = int(loud[-1]) + 1 if len(loud) else 0
        crossing = float(np.mean(v[n // 2 :] <= 0))
        if crossing > 0.3 and n - since < self.share * n:
            since = 0 if float(np.mean(v <= 0)) > 0.3 else n // 2  # an estimate that changes its sign is around zero
        if n - since < self.share * n:
            return ()
        before = float(np.median(v[:since])) if since > 3 else 0.0
        after = float(np.median(v[since:]))
        at = int(signal.steps[since])
        onset = Span(int(signal.steps[max(0, since - 1)]), at)
        return (
            Finding(
                "collapse",
                signal.name,
                Span(at, int(signal.steps[-1])),
                direction="down",
                size=after / before if before else 0.0,
                strength=(n - since) / n,
                onset=onset,
                numbers=Frozen(before=before, after=after, share=(n - since) / n),
            ),
        )


DETECTOR = Collapse()
