"""A dynamic loss scale that collapses.

Kind "scale-collapse": at least 4 net halvings within 50 steps, or a fall to 1/64 of the median of the 1000 steps before (numbers
before, after, halvings, calibration: 1 for the descent from the initial scale, which is normal). Kind "scale-floor": the scale
sits at its lowest value, at or below 1, until the end (numbers floor, share).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class ScalePath:
    """Knowledge P2: a leading indicator (GLM-130B 30 steps, BLOOM's 104B some 2000 steps ahead of the loss)."""

    shape: str = "scale-path"
    kinds: tuple[str, ...] = ("scale-collapse", "scale-floor")
    halvings: float = 4.0
    within: int = 50  # steps
    fall: float = 64.0
    past: int = 1000  # points whose median a deep fall is measured from
    most: int = 10  # findings a signal

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is before over after; `strength` the number of halvings."""
        good = np.isfinite(signal.values) & (signal.values > 0)
        steps, logs = signal.steps[good], np.log2(signal.values[good])
        if len(logs) < 3 or not np.ptp(logs) > 0:
            return ()
        rises = np.flatnonzero(np.diff(logs) > 0)
        falls = np.flatnonzero(np.diff(logs) < 0)
        quiet = int(falls[0]) if len(falls) else len(logs)
        calm = quiet > max(20, 0.05 * len(logs))  # it stood still before it ever fell: no calibration left
        settled = 0 if calm else self._settled(steps, falls, rises, len(logs))
        found = (
            [self._finding(signal, steps, logs, 0, settled, calibration=True)]
            if settled and logs[0] - logs[settled] >= self.halvings
            else []
        )
        reach = max(self.within, 6 * signal.steps_per_point)
        i = settled
        for k in self._candidates(steps, logs, settled, reach).tolist():
            if k < i:
                continue
            end = int(np.searchsorted(steps, steps[k] + reach, side="right"))
            low = k + int(np.argmin(logs[k:end]))
            since = max(settled, k - self.past)
            usual = float(np.median(logs[since : k + 1]))
            fast, slow = logs[k] - logs[low] >= self.halvings, usual - logs[k] >= math.log2(self.fall)
            start = self._start(logs, k, low) if fast else since + int(np.flatnonzero(logs[since : k + 1] >= usual)[-1])
            if fast or (slow and start >= i):  # a slow fall is not the one told before, seen again from below
                stop = self._bottom(logs, low)
                found.append(self._finding(signal, steps, logs, start, stop, calibration=False))
                if len(found) >= self.most:
                    break
                i = stop + 1
        return (*found, *self._floor(signal, steps, logs))

    def _candidates(self, steps: np.ndarray, logs: np.ndarray, first: int, reach: float) -> np.ndarray:
        """Where a fall may begin: low values follow within reach, or higher ones stand in the past. A sieve, so that long runs are fast."""
        at = np.arange(first, len(logs) - 1)
        lowest = -curves.highest(-logs, at, np.searchsorted(steps, steps[at] + reach, side="right"))
        before = curves.highest(logs, np.maximum(first, at - self.past), at + 1)
        far = (logs[at] - lowest >= self.halvings) | (before - logs[at] >= math.log2(self.fall))
        return np.asarray(at[far], np.int64)

    def _settled(self, steps: np.ndarray, falls: np.ndarray, rises: np.ndarray, n: int) -> int:
        """The end of the first descent: the first rise, or a pause longer than ten times the usual distance of falls."""
        if not len(falls):
            return 0
        end = int(rises[0]) if len(rises) else n - 1
        gaps = np.diff(falls)
        for k, gap in enumerate(gaps[: self.past].tolist()):
            if gap > max(10, 5 * float(np.median(gaps[: k + 1]))):
                return min(end, int(falls[k]) + 1)
        return min(end, int(falls[-1]) + 1) if falls[-1] < 0.5 * n else min(end, int(falls[0]) + 1)

    def _start(self, logs: np.ndarray, i: int, low: int) -> int:
        first = np.flatnonzero(np.diff(logs[i : low + 1]) < 0)
        return i + int(first[0]) if len(first) else i

    def _bottom(self, logs: np.ndarray, low: int) -> int:
        up = np.flatnonzero(np.diff(logs[low:]) > 0)
        return low + int(up[0]) if len(up) else len(logs) - 1

    def _finding(self, signal: Signal, steps: np.ndarray, logs: np.ndarray, a: int, b: int, *, calibration: bool) -> Finding:
        fell = float(logs[a] - logs[a : b + 1].min())
        numbers = {
            "before": 2.0 ** float(min(logs[a], 1000)),
            "after": 2.0 ** float(min(logs[a : b + 1].min(), 1000)),
            "halvings": fell,
            "calibration": float(calibration),
            "to_end": float(b >= len(logs) - 1),
        }
        at = min(a + 1, len(steps) - 1) if not calibration else a
        return Finding(
            "scale-collapse",
            signal.name,
            Span(int(steps[at]), int(steps[b])),
            direction="down",
            size=2.0 ** min(fell, 1000.0),
            strength=fell,
            onset=Span(int(steps[a]), int(steps[at])),
            numbers=Frozen(numbers),
        )

    def _floor(self, signal: Signal, steps: np.ndarray, logs: np.ndarray) -> list[Finding]:
        low = float(logs.min())
        if logs[-1] != low or low > 0:
            return []
        since = int(np.flatnonzero(logs != low)[-1]) + 1 if (logs != low).any() else 0
        if len(logs) - since < 3 or since == 0:
            return []
        at = int(steps[since])
        return [
            Finding(
                "scale-floor",
                signal.name,
                Span(at, int(steps[-1])),
                direction="down",
                size=2.0**low,
                strength=float(len(logs) - since),
                onset=Span(at, at),
                numbers=Frozen(floor=2.0**low, share=1 - since / len(logs)),
            )
        ]


DETECTOR = ScalePath()
