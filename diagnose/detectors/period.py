"""Oscillation: a line in the spectrum over an AR(1) null, a pattern that returns, or values that alternate from step to step.

Kind "period": p < 1e-4, at least 5 periods, the same period (±5 %) in two windows, amplitude at least .35 noise widths and .5 %
(numbers period_steps, amplitude in noise widths, p, share); or an autocorrelation that stands alone at a lag and returns at twice
the lag (number repeats: how much of the variance the pattern explains), as when the same batches come in the same order. Kind
"alternation": an autocorrelation below -1/2 at the first lag in some window, or |A| > 5 (numbers A, amplitude, correlation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.curves import Array, Index
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class Period:
    """0 of 74 healthy runs at p < 1e-6 and 1e-3 (knowledge B.5)."""

    shape: str = "period"
    kinds: tuple[str, ...] = ("period", "alternation")
    p: float = 1e-4
    periods: int = 5
    amplitude: float = 0.35  # noise widths
    effect: float = 0.005  # nats
    agree: float = 0.05  # of the period, between windows
    alike: float = 0.5  # correlation of the two halves' folds: the same shape at the same phase is a period too
    alternating: float = 5.0  # |A|; healthy runs stay within 1.4 (O9)
    opposed: float = -0.5  # autocorrelation at the first lag; windows of 54 healthy runs stay above -0.24
    repeating: float = 0.15  # autocorrelation above those of the neighbouring lags; healthy runs stay below 0.13 ...
    repeating_z: float = 6.0  # ... and below 4 of its standard errors, 1/√n
    harmonics: int = 40  # multiples of the strongest line that are tried as the period
    least: int = 64
    longest: int = 1 << 17  # points looked at: the last ones; a longer run has its period there too

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is the amplitude as a ratio to the level (multiplicative) or in units; `strength` is -log10 p, or |A|."""
        steps, y = curves.kept(signal)
        if len(y) < self.least or not np.ptp(y) > 0:
            return ()
        spacing = np.diff(steps)
        if float(np.mean(spacing == np.median(spacing))) < 0.95:
            return ()
        skip = min(len(y) // 10, 200)
        steps, y = steps[skip:][-self.longest :], y[skip:][-self.longest :]
        residual = curves.winsorised(curves.detrended(y))
        for look in (self._opposed, self._repeats, self._alternation, self._period):
            found = look(signal, steps, residual)
            if found:
                return tuple(found)
        return ()

    def _opposed(self, signal: Signal, steps: Index, r: Array) -> list[Finding]:
        """Values that change sides from point to point, also where the phase slips (a period near two)."""
        window = min(len(r), 200)
        starts = range(0, len(r) - window + 1, max(1, window // 4))
        scores = [float(curves.autocorrelations(r[s : s + window] - np.median(r[s : s + window]), 2)[1]) for s in starts]
        strong = [s for s, a in zip(starts, scores, strict=True) if a <= self.opposed]
        if not strong:
            return []
        first, last = strong[0], min(len(r), strong[-1] + window)
        part = r[first:last]
        swing = float(np.median(np.abs(np.diff(part)))) / 2
        if swing < 0.4 * self.effect:
            return []
        begin = int(signal.steps[0]) if first == 0 else int(steps[first])  # what was skipped at the start may swing too
        return [
            Finding(
                "alternation",
                signal.name,
                Span(int(steps[first]), int(steps[last - 1])),
                size=math.expm1(min(swing, 50.0)) if curves.in_log(signal) else swing,
                strength=-min(scores) * math.sqrt(window),
                onset=Span(begin, int(steps[min(len(steps) - 1, first + window // 4)])),
                numbers=Frozen(
                    A=curves.alternation(part),
                    amplitude=swing / max(curves.spread(part), 1e-12),
                    period_steps=2.0 * signal.steps_per_point,
                    correlation=min(scores),
                ),
            )
        ]

    def _repeats(self, signal: Signal, steps: Index, r: Array) -> list[Finding]:
        """The same pattern again and again: an autocorrelation that neighbouring lags do not share."""
        n = len(r)
        longest = n // self.periods
        if longest < 4:
            return []
        lags = curves.autocorrelations(r, 2 * longest + 2)
        alone = lags[1:-1] - np.maximum(np.maximum(lags[:-2], lags[2:]), 0.0)  # alone[k] is lag k + 1
        near = alone[2:longest]
        top = 3 + int(np.argmax(near))
        if alone[top - 1] < max(self.repeating, self.repeating_z / math.sqrt(n)) or lags[2 * top] < 0.5 * alone[top - 1]:
            return []
        good = [k for k in range(3, top) if lags[k] >= 0.9 * lags[top] and alone[k - 1] >= 0.5 * alone[top - 1]]
        lag = min(good, default=top)
        fold = curves.folded(r, float(lag))
        amplitude, width = float(np.std(fold)) * math.sqrt(2.0), curves.spread(r - fold)
        if amplitude < self.effect:
            return []
        per = signal.steps_per_point
        return [
            Finding(
                "period",
                signal.name,
                Span(int(steps[0]), int(steps[-1])),
                size=math.expm1(min(amplitude, 50.0)) if curves.in_log(signal) else amplitude,
                strength=float(alone[top - 1]) * math.sqrt(n),
                onset=Span(int(signal.steps[0]), int(steps[min(n - 1, lag)])),
                numbers=Frozen(period_steps=lag * per, amplitude=amplitude / max(width, 1e-12), repeats=float(lags[lag]), periods=n / lag),
            )
        ]

    def _alternation(self, signal: Signal, steps: Index, r: Array) -> list[Finding]:
        window = 512 if len(r) >= 512 else len(r)
        starts = range(0, max(1, len(r) - window + 1), max(1, window // 2))
        scores = [curves.alternation(curves.winsorised(r[s : s + window] - np.median(r[s : s + window]))) for s in starts]
        strong = [(s, a) for s, a in zip(starts, scores, strict=True) if a > self.alternating]
        width = curves.spread(r)
        if not strong:
            return []
        first, best = strong[0][0], max(a for _, a in strong)
        swing = abs(float(np.mean(r[first::2]) - np.mean(r[first + 1 :: 2]))) / 2
        if swing < 0.4 * self.effect or swing < 0.25 * width:
            return []
        per = signal.steps_per_point
        onset = Span(int(steps[first]), int(steps[min(len(steps) - 1, first + window // 2)]))
        return [
            Finding(
                "alternation",
                signal.name,
                Span(int(steps[first]), int(steps[-1])),
                size=math.expm1(min(swing, 50.0)) if curves.in_log(signal) else swing,
                strength=best,
                onset=onset,
                numbers=Frozen(A=best, amplitude=swing / max(width, 1e-12), period_steps=2.0 * per),
            )
        ]

    def _period(self, signal: Signal, steps: Index, r: Array) -> list[Finding]:
        n = len(r)
        period, p, _ = curves.peak_over_ar1(r)
        if p > self.p or period < 2.5 or n / period < self.periods:
            return []
        halves = [curves.peak_over_ar1(part)[0] for part in (r[: n // 2], r[n // 2 :])]
        base = self._fundamental(r, period)
        fold = curves.folded(r, base)
        width = curves.spread(r - fold)
        amplitude = float(np.ptp(fold)) / 2
        tolerance = max(self.agree, period / n)
        steady = all(h > 0 and (abs(h / period - 1) <= tolerance or abs(2 * h / period - 1) <= tolerance) for h in halves)
        if not steady and _likeness(r, base) < self.alike:
            return []
        if amplitude < self.amplitude * width or amplitude < self.effect:
            return []
        per = signal.steps_per_point
        numbers = {
            "period_steps": base * per,
            "line_steps": period * per,
            "amplitude": amplitude / max(width, 1e-12),
            "p": p,
            "periods": n / base,
        }
        first = Span(int(signal.steps[0]), int(steps[min(n - 1, int(base))]))  # what was skipped at the start may swing too
        return [
            Finding(
                "period",
                signal.name,
                Span(int(steps[0]), int(steps[-1])),
                size=math.expm1(min(amplitude, 50.0)) if curves.in_log(signal) else amplitude,
                strength=min(-math.log10(max(p, 1e-300)), 300.0),
                onset=first,
                numbers=Frozen(numbers),
            )
        ]

    def _fundamental(self, r: Array, period: float) -> float:
        """The strongest line may be a harmonic: the shortest multiple of its period whose fold explains nearly as much as any does."""
        n, total = len(r), float(np.var(r))
        explained: dict[int, float] = {}
        for k in range(1, self.harmonics + 1):
            longer = period * k
            if n / longer < self.periods or round(longer) > n // 4:
                break
            chance = round(longer) / n  # what a fold of so many bins explains of white noise
            explained[k] = (1.0 - float(np.var(r - curves.folded(r, longer))) / total - chance) / (1 - chance)
        if not explained:
            return period
        best = max(explained.values())
        if not best > max(0.0, 1.25 * explained[1]) + 0.02:
            return period
        return period * min(k for k, share in explained.items() if share >= 0.95 * best)


def _likeness(r: Array, period: float) -> float:
    """Correlation between the folds of the first and the second half, phases kept."""
    bins = max(4, min(32, round(period)))
    phase = (np.arange(len(r)) / period % 1.0 * bins).astype(int) % bins
    half = len(r) // 2
    folds = []
    for part in (slice(0, half), slice(half, None)):
        counts = np.bincount(phase[part], minlength=bins)
        folds.append(np.bincount(phase[part], weights=r[part], minlength=bins) / np.maximum(counts, 1))
    a, b = folds[0] - folds[0].mean(), folds[1] - folds[1].mean()
    power = math.sqrt(float(np.dot(a, a)) * float(np.dot(b, b)))
    return float(np.dot(a, b)) / power if power > 0 else 0.0


DETECTOR = Period()
