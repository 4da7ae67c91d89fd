"""Growth that does not stop: an explosion with its onset and rate, or a slow rise above the running minimum.

Kind "growth": 3 of 5 points above 6 noise widths and at least threefold; onset and rate by a broken stick fitted to the 120 points
before and 10 after the alarm (numbers rate in nats a step, doubling_steps, peak_ratio, base, peak, to_end). Kind "divergence": the
median of 20 points stays above its running minimum by more than 5 % and 4 of its own noise widths until the end (numbers rise in
nats, since, to_end, slope in nats per 10 % of the run, lowest, abrupt: the
largest single step's share of the rise in plain units).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.curves import Array, Index
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Growth:
    """Defaults: growth 0 alarms on 19,000 healthy steps (knowledge G1, B.3), divergence 0 of 74 and 0 of 108 runs once scaled (0.1)."""

    shape: str = "growth"
    kinds: tuple[str, ...] = ("growth", "divergence")
    z: float = 6.0  # noise widths
    need: int = 3
    of: int = 5
    ratio: float = 3.0  # times the base
    window: int = 200
    floor: float = 0.02  # nats, smallest noise width believed for norms (G1)
    before: int = 120  # points of the broken stick (B.3)
    after: int = 10
    rise: float = 0.05  # nats above the running minimum (O5 D-b)
    widths: float = 4.0  # and this many widths of the 20-median's own noise
    most_at_once: float = 0.5  # share of the rise in one step that makes the step the onset
    least: int = 30

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is peak over base for growth, the rise as a ratio for divergence; `strength` in noise widths."""
        steps, y = curves.kept(signal)
        if len(y) < self.least or not np.ptp(y) > 0 or not curves.in_log(signal):
            return ()
        rises = self._divergence(signal, steps, y) if signal.good == "down" else []  # a norm may settle higher without any harm
        return (*self._explosions(signal, steps, y), *rises)

    def _explosions(self, signal: Signal, steps: Index, y: Array) -> list[Finding]:
        window = min(self.window, max(20, len(y) // 4))
        base, width = curves.medians_before(y, window)
        z = (y - base) / np.maximum(np.maximum(width, self.floor), 0.5 * curves.noise(y))
        z[: max(10, window // 4)] = 0.0
        high = z > self.z
        count = np.convolve(high, np.ones(self.of), "full")[self.of - 1 :][: len(y)]
        starts = np.flatnonzero(high & (count >= self.need))
        found: list[Finding] = []
        blocked = -1
        for a in starts.tolist():
            if a <= blocked or len(found) >= 10:
                continue
            stretch = y[a : a + window]
            if float(np.max(stretch)) - float(base[a]) < math.log(self.ratio):
                continue
            found.append(self._explosion(signal, steps, y, float(base[a]), float(z[a : a + self.of].max()), a))
            blocked = a + window
        return found

    def _explosion(self, signal: Signal, steps: Index, y: Array, base: float, z: float, a: int) -> Finding:  # noqa: PLR0917 - the arrays of one look
        lo, hi = max(0, a - self.before), min(len(y), a + self.after)
        at, rate = curves.broken_stick(y[lo:hi])
        onset = min(lo + at + 1, a)
        per = max(1.0, signal.steps_per_point)
        top = a + int(np.argmax(y[a : a + self.window]))
        tail = float(np.median(y[-5:])) - base > math.log(self.ratio) / 2
        numbers = {
            "rate": rate / per,
            "doubling_steps": math.log(2) / rate * per if rate > 0 else math.inf,
            "peak_ratio": math.exp(min(float(y[top]) - base, 700.0)),
            "base": math.exp(min(base, 700.0)),
            "peak": math.exp(min(float(y[top]), 700.0)),
            "to_end": float(tail),
        }
        slack = math.ceil(2 * per)
        span = Span(int(steps[onset]), int(steps[-1] if tail else steps[top]))
        return Finding(
            "growth",
            signal.name,
            span,
            direction="up",
            size=numbers["peak_ratio"],
            strength=float(min(z, 1e9)),
            onset=Span(int(max(steps[0], steps[onset] - slack)), int(steps[onset])),
            numbers=Frozen(numbers),
        )

    def _divergence(self, signal: Signal, steps: Index, y: Array) -> list[Finding]:
        n = len(y)
        size = min(20, max(5, n // 20))
        smooth = curves.running_median(y, size)[size - 1 :]
        if len(smooth) < 10:
            return []
        lowest = np.minimum.accumulate(smooth)
        own = curves.noise(y) / math.sqrt(size) * 1.253  # a median's noise is 1.253 times a mean's
        slow = curves.spread(curves.detrended(smooth)) if n >= 60 else own
        need = max(self.rise, self.widths * own, 2.5 * min(slow, 4 * own)) * (1.0 if n >= 200 else 1.6)
        above = smooth - lowest > need
        if not above[-1] or float(np.median(smooth[-max(3, size // 2) :]) - lowest[-1]) < need:
            return []
        last_low = int(np.flatnonzero(~above)[-1]) if (~above).any() else 0
        stretch = len(smooth) - 1 - last_low
        if stretch < max(10, min(200, n // 10)) and float(smooth[-1] - lowest[-1]) < 4 * need:
            return []
        low = int(np.argmin(smooth))
        plain = np.exp(np.minimum(y, 700.0))
        step, abrupt = self._step(plain, low, size)
        a, b = (max(step - 1, 0), step) if abrupt >= self.most_at_once else self._onset(y, low, size, last_low)
        tail = smooth[low:]
        slope = curves.slope_of(np.arange(len(tail), dtype=float), tail) * 0.1 * n
        numbers = {
            "rise": float(smooth[-1] - lowest[-1]),
            "since": float(steps[b]),
            "to_end": 1.0,
            "slope": slope,
            "lowest": math.exp(min(float(lowest[-1]), 700.0)),
            "last": math.exp(min(float(smooth[-1]), 700.0)),
            "need": need,
            "abrupt": abrupt,
        }
        return [
            Finding(
                "divergence",
                signal.name,
                Span(int(steps[b]), int(steps[-1])),
                direction="up",
                size=math.exp(min(numbers["rise"], 700.0)),
                strength=numbers["rise"] / max(own, 1e-12),
                onset=Span(int(steps[a]), int(steps[b])),
                numbers=Frozen(numbers),
            )
        ]

    def _step(self, plain: Array, low: int, size: int) -> tuple[int, float]:
        """The largest step between two neighbouring medians after the minimum, in plain units, and its share of the whole rise.

        Near zero a logarithm makes mountains of nothing: a loss of 0.002 that wanders to 0.03 and then breaks to 2.3 breaks there.
        """
        half = max(3, size // 2)
        tail = plain[max(0, low - half) :]
        if len(tail) < 2 * half + 1:
            return low, 0.0
        levels = curves.running_median(tail, half)[half - 1 :]
        steps = levels[half:] - levels[:-half]
        rise = float(np.median(plain[-3 * half :])) - float(levels[0])
        k = int(np.argmax(steps))
        share = float(steps[k]) / rise if rise > 0 else 0.0
        first = max(0, low - half) + k
        part = np.minimum(plain[first : first + 2 * half], float(levels[k + half]))  # a burst must not draw the split to itself
        middle = (float(levels[k]) + float(levels[k + half])) / 2
        above = np.flatnonzero(part > middle)
        return first + (int(above[0]) if len(above) else half), share

    def _onset(self, y: Array, low: int, size: int, last_low: int) -> tuple[int, int]:
        """Between the last smooth minimum and the point where the rise shows: the best split of two means near it."""
        first, shown = low, min(len(y) - 1, last_low + size)
        lo, hi = max(0, first - 2 * size), min(len(y), shown + 3 * size)
        at = curves.refined(y, (lo + hi) // 2, (hi - lo) // 2)
        at = int(np.clip(at, lo, shown))
        return min(at, max(first, at - size)), at


DETECTOR = Growth()
