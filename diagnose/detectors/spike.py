"""Excursions above the level before them: persistent ones (k of n) and single points.

Kind "spike": at least 3 of 5 points above 4 noise widths, the first one too, and a median of the five at least 2 % up (numbers
base, peak, ratio, recovered_after in steps or inf, width in points, z). Kind "jump": one or two points far out (numbers base, peak,
ratio, z, rank: its z over that of the largest other excursion). A jump is no alarm by itself: per-step losses have heavy tails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.curves import Array, Index
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Spike:
    """Thresholds as calibrated on 74 healthy runs with per-step loss: 0 alarms (knowledge 0.1)."""

    shape: str = "spike"
    kinds: tuple[str, ...] = ("spike", "jump")
    z: float = 4.0  # noise widths
    need: int = 3
    of: int = 5
    window: int = 200  # points of the baseline
    effect: float = 0.02  # nats, or noise widths' share for plain signals: below it a spike costs nothing (knowledge O4)
    floor: float = 0.005  # nats: the smallest noise width believed (H2)
    jump_z: float = 6.0  # noise widths of a single point; 6 + 6 on two signals is an alarm, 8 alone is not yet (knowledge 0.1)
    least: int = 30  # points; below it a baseline means nothing
    most: int = 40  # findings a signal

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the ratio of peak to base for multiplicative signals, the difference otherwise; `strength` is z."""
        steps, y = curves.kept(signal)
        if len(y) < self.least or not np.ptp(y) > 0:
            return ()
        logs = curves.in_log(signal)
        window = min(self.window, max(20, len(y) // 4))
        base, width = curves.medians_before(y, window)
        least = self.floor if logs else max(1e-9 * float(np.abs(y).max()), float(np.finfo(float).tiny))
        floor = max(least, self._quantum(signal, logs), 0.5 * curves.noise(y))
        z = (y - base) / np.maximum(width, floor)
        z[: min(window, max(10, window // 4))] = 0.0
        found: list[Finding] = []
        covered = np.zeros(len(y), bool)
        for a, b in self._incidents(y, z, base):
            covered[max(0, a - 1) : b + 2] = True
            found.append(self._spike(signal, steps, y, z, base, width, a, b, logs))
        found += self._jumps(signal, steps, y, z, base, covered, logs)
        return tuple(sorted(found, key=lambda f: -f.strength)[: self.most])

    def _quantum(self, signal: Signal, logs: bool) -> float:
        if not signal.resolution:
            return 0.0
        good = np.minimum(np.abs(signal.values[np.isfinite(signal.values)]), curves.HUGE)
        level = float(np.median(good)) if logs else 1.0
        return 2.0 * signal.resolution / math.sqrt(12.0) / level if level > 0 else 0.0

    def _incidents(self, y: Array, z: Array, base: Array) -> list[tuple[int, int]]:
        high = z > self.z
        n = len(y)
        count = np.convolve(high, np.ones(self.of), "full")[self.of - 1 :][:n]  # of the next `of` points
        starts = np.flatnonzero(high & (count >= self.need))
        gap = max(10, n // 100)
        out: list[tuple[int, int]] = []
        for s in starts.tolist():
            if out and s <= out[-1][1] + gap:
                out[-1] = (out[-1][0], max(out[-1][1], self._last_high(high, s)))
                continue
            if float(np.median(y[s : s + self.of])) - float(base[s]) > self.effect:
                out.append((s, self._last_high(high, s)))
        return out[: self.most]

    def _last_high(self, high: np.ndarray, start: int) -> int:
        part = np.flatnonzero(high[start : start + self.of])
        return start + int(part[-1]) if len(part) else start

    def _spike(self, signal: Signal, steps: Index, y: Array, z: Array, base: Array, width: Array, a: int, b: int, logs: bool) -> Finding:  # noqa: PLR0917 - the arrays of one look
        level = float(base[a])
        ceiling = level + max(2 * float(width[a]), self.effect)
        after = y[a:]
        medians = curves.running_median(after, 10)[9:] if len(after) >= 10 else np.array([float(np.median(after[-5:]))])
        top = a + int(np.argmax(after[: max(b - a + 1, self.of)]))
        below = np.flatnonzero(medians[top - a :] <= ceiling) if len(medians) > top - a else np.empty(0, int)
        back = top + int(below[0]) if len(below) else -1
        recovered = float(steps[min(back, len(steps) - 1)] - steps[a]) if back >= 0 else math.inf
        peak = float(y[top])
        numbers = {
            "base": _plain(level, logs),
            "peak": _plain(peak, logs),
            "ratio": math.exp(min(peak - level, 700.0)) if logs else peak - level,
            "recovered_after": recovered,
            "width": float(b - a + 1),
            "z": float(z[top]),
        }
        end = back if back >= 0 else len(steps) - 1
        onset = Span(int(steps[max(0, a - 1)]) + (a > 0), int(steps[a]))
        return Finding(
            "spike",
            signal.name,
            Span(int(steps[a]), int(steps[max(end, b)])),
            direction="up",
            size=numbers["ratio"],
            strength=float(min(z[top], 1e9)),
            onset=onset,
            numbers=Frozen(numbers),
        )

    def _jumps(self, signal: Signal, steps: Index, y: Array, z: Array, base: Array, covered: np.ndarray, logs: bool) -> list[Finding]:  # noqa: PLR0917 - the arrays of one look
        far = (z > self.jump_z) & (y - base > self.effect)
        groups = [(a, b) for a, b in curves.runs_of(far & ~covered, 1) if b - a <= 2]
        peaks = [a + int(np.argmax(y[a : b + 1])) for a, b in groups]
        order = sorted(range(len(peaks)), key=lambda k: -float(z[peaks[k]]))
        quiet = z[~covered & ~_around(groups, len(z))]
        found = []
        for place, k in enumerate(order[: self.most]):
            top = peaks[k]
            others = float(z[peaks[order[place + 1]]]) if place + 1 < len(order) else float(np.max(quiet, initial=1.0))
            level, peak = float(base[top]), float(y[top])
            numbers = {
                "base": _plain(level, logs),
                "peak": _plain(peak, logs),
                "ratio": math.exp(min(peak - level, 700.0)) if logs else peak - level,
                "z": float(min(z[top], 1e9)),
                "rank": float(z[top]) / max(others, 1.0),
                "others": float(np.quantile(quiet, 0.999)) if len(quiet) else 1.0,
                "count": float(len(peaks)),
            }
            at = Span(int(steps[groups[k][0]]), int(steps[groups[k][1]]))
            found.append(
                Finding(
                    "jump",
                    signal.name,
                    at,
                    direction="up",
                    size=numbers["ratio"],
                    strength=numbers["z"],
                    onset=Span(at.first_step, at.first_step),
                    numbers=Frozen(numbers),
                )
            )
        return found


def _around(groups: list[tuple[int, int]], n: int) -> np.ndarray:
    """Where the groups are, as flags."""
    inside = np.zeros(n, bool)
    for a, b in groups:
        inside[a : b + 1] = True
    return inside


def _plain(value: float, logs: bool) -> float:
    return math.exp(min(value, 700.0)) if logs else value


DETECTOR = Spike()
