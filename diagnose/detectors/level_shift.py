"""A lasting change of level: candidates by segmentation of winsorised block medians, the step by exact refinement, and then
verification by effect size, which is what buys precision (knowledge B.4).

numbers: before, after (levels), ratio, delta (nats or units, less what the slope before would have brought), z, slope_before,
slope_after (nats or units per 10 % of the run), persists (points), returns (1 when the old level comes back).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.curves import Array, Index
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class LevelShift:
    """Penalty 3·BIC inflated by (1+φ)/(1-φ), then at least 3 % over at least 50 points (fewer in short runs): 0 of 36 healthy (B.4)."""

    shape: str = "level-shift"
    kinds: tuple[str, ...] = ("level-shift",)
    blocks: int = 1000  # block medians at most: KernelCPD is quadratic when changes are few
    block: int = 5  # points a block, at least: medians of single points are no medians
    penalty: float = 3.0  # times BIC
    effect: float = 0.03  # nats, or the share of the range for plain signals
    persist: int = 50  # points
    z: float = 6.0  # standard errors of the difference of two medians
    noise_share: float = 0.35  # of one point's noise: a shift far inside the noise is left to `drift`
    least: int = 40
    most: int = 12

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is after over before for multiplicative signals, the difference otherwise; `strength` is z."""
        steps, y = curves.kept(signal)
        if len(y) < self.least or not np.ptp(y) > 0:
            return ()
        residual = curves.detrended(y) if curves.in_log(signal) and signal.good == "down" else y - np.median(y)
        size = max(1, min(self.block, len(y) // 30))
        mids, size = curves.blocks(curves.winsorised(residual), self.blocks, size)
        width = max(curves.noise(mids), 1e-9 * float(np.ptp(y)), float(np.finfo(float).tiny))
        phi = curves.autocorrelation(np.diff(mids, prepend=mids[:1]))
        scaled = curves.winsorised(mids / width, 12.0)
        points = curves.segments(scaled, penalty=self.penalty * 2.0 * math.log(max(len(mids), 2)) * (1 + phi) / (1 - phi))
        found = []
        edges = [0, *points, len(mids)]
        for k, c in enumerate(points):
            at = curves.refined(y - self._line(y, c * size, size), c * size, 2 * size + 2)
            lo, hi = edges[k] * size, min(len(y), edges[k + 2] * size)
            finding = self._verified(signal, steps, y, at, max(lo, 0), hi)
            if finding is not None:
                found.append(finding)
        return tuple(sorted(found, key=lambda f: -f.strength)[: self.most])

    def _line(self, y: Array, at: int, size: int) -> Array:
        """The slope before the candidate, carried on: refinement must not be drawn by a trend."""
        a = max(0, at - 10 * size)
        part = y[a:at]
        slope = curves.slope_of(np.arange(len(part), dtype=float), part) if len(part) > 8 else 0.0
        return np.asarray(slope * (np.arange(len(y)) - at), np.float64)

    def _verified(self, signal: Signal, steps: Index, y: Array, at: int, lo: int, hi: int) -> Finding | None:  # noqa: PLR0917 - the arrays of one look
        n = len(y)
        persist = min(self.persist, max(8, n // 10))
        left, right = y[max(lo, at - 4 * persist) : at], y[at : min(hi, at + 4 * persist)]
        if len(left) < max(6, persist // 3) or len(right) < max(6, persist // 2):
            return None
        slope = curves.slope_of(np.arange(len(left), dtype=float), left) if len(left) >= 8 else 0.0
        slope = slope if (slope < 0) == (signal.good == "down") and slope != 0 else 0.0  # only progress is carried on, not noise
        drop = slope * (len(left) + len(right)) / 2
        before, after = float(np.median(left)), float(np.median(right))
        delta = after - before - (drop if after < before else 0.0)
        sigma = max(curves.noise(left), curves.noise(right), 0.5 * signal.resolution if not curves.in_log(signal) else 0.0)
        phi = curves.autocorrelation(left - np.median(left))
        error = 1.253 * sigma * math.sqrt((1 + phi) / (1 - phi)) * math.sqrt(1 / len(left) + 1 / len(right))
        z = abs(delta) / max(error, 1e-12)
        need = self.effect if curves.in_log(signal) else self.effect * float(np.ptp(y))
        if abs(delta) < need or z < self.z or abs(delta) < self.noise_share * sigma:
            return None
        rest = y[at + len(right) :]
        returns = len(rest) >= 3 and abs(float(np.median(rest[-max(5, len(rest) // 4) :])) - before) < 0.35 * abs(delta)
        logs = curves.in_log(signal)
        tenth = 0.1 * n
        numbers = {
            "before": _plain(before, logs),
            "after": _plain(after, logs),
            "ratio": math.exp(min(delta, 700.0)) if logs else math.nan,
            "delta": delta,
            "z": z,
            "slope_before": slope * tenth,
            "slope_after": curves.slope_of(np.arange(len(right), dtype=float), right) * tenth,
            "persists": float(len(right)),
            "returns": float(returns),
        }
        reach = max(1, math.ceil((4 * sigma / abs(delta)) ** 2)) if delta else 1
        onset = Span(int(steps[max(0, at - min(reach, persist))]), int(steps[at]))
        return Finding(
            "level-shift",
            signal.name,
            Span(int(steps[at]), int(steps[min(hi, n) - 1])),
            direction="up" if delta > 0 else "down",
            size=numbers["ratio"] if logs else delta,
            strength=float(min(z, 1e9)),
            onset=onset,
            numbers=Frozen(numbers),
        )


def _plain(value: float, logs: bool) -> float:
    return math.exp(min(value, 700.0)) if logs else value


DETECTOR = LevelShift()
