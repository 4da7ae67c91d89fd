"""Steps in an exact, noise-free series such as a learning rate.

Kind "jump-in-schedule": a change by more than 5 % in one logged step and far above the usual change, after the warm-up ramp
(numbers before, after, ratio). Kind "early-minimum": the series reaches its lowest value long before the end and stays there
(numbers since, share of the run, peak, minimum).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class ExactChange:
    """Exact series have no noise: the thresholds say what is worth a word (knowledge X1, O16)."""

    shape: str = "exact-change"
    kinds: tuple[str, ...] = ("jump-in-schedule", "early-minimum")
    change: float = 0.05  # nats in one step (X1)
    usual: float = 8.0  # times the median change
    early: float = 0.9  # of the run: lr at its minimum before this is early (O16)
    most: int = 30

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        """`size` is after over before; `strength` is |ln size| over the usual change."""
        good = np.isfinite(signal.values) & (signal.values >= 0)
        steps, v = signal.steps[good], signal.values[good]
        if len(v) < 5:
            return ()
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(v > 0, v, np.nan))
        delta = np.diff(logs)
        moves = np.abs(delta[np.isfinite(delta)])
        usual = float(np.median(moves)) if len(moves) else 0.0
        found = []
        with np.errstate(invalid="ignore"):
            hits = np.flatnonzero(np.abs(delta) > max(self.change, self.usual * usual))
        for i in hits[: self.most * 4].tolist():
            ramp = (i == 0 and delta[i] > 0) or (
                i + 1 < len(delta)
                and i < 0.2 * len(v)
                and delta[i] > 0
                and bool((delta[: i + 1][np.isfinite(delta[: i + 1])] >= 0).all())
                and (v[i + 1] < 0.999 * v.max() or v[i + 1] - v[i] <= 1.5 * (v[i] - v[i - 1]))
            )
            if ramp:
                continue  # the first steps of a warm-up double the rate
            ratio = math.exp(float(np.clip(delta[i], -700, 700)))
            at = Span(int(steps[i]) + 1 if steps[i + 1] > steps[i] + 1 else int(steps[i + 1]), int(steps[i + 1]))
            found.append(
                Finding(
                    "jump-in-schedule",
                    signal.name,
                    Span(at.last_step, at.last_step),
                    direction="up" if ratio > 1 else "down",
                    size=ratio,
                    strength=abs(float(delta[i])) / max(usual, 1e-3),
                    onset=at,
                    numbers=Frozen(before=float(v[i]), after=float(v[i + 1]), ratio=ratio),
                )
            )
        return (*found[: self.most], *self._early(signal, steps, v))

    def _early(self, signal: Signal, steps: np.ndarray, v: np.ndarray) -> list[Finding]:
        peak, low = float(v.max()), float(v[-1])
        if not peak > 0 or low > 0.2 * peak or len(v) < 20:
            return []
        flat = np.flatnonzero(np.abs(v - low) > 1e-3 * peak)
        since = int(flat[-1]) + 1 if len(flat) else 0
        share = 1.0 - since / len(v)
        if share < 1.0 - self.early:
            return []
        at = int(steps[min(since, len(steps) - 1)])
        return [
            Finding(
                "early-minimum",
                signal.name,
                Span(at, int(steps[-1])),
                direction="down",
                size=low / peak,
                strength=share,
                onset=Span(at, at),
                numbers=Frozen(since=float(at), share=share, peak=peak, minimum=low),
            )
        ]


DETECTOR = ExactChange()
