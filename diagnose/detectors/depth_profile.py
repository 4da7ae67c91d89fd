"""Gradient norms by depth: a slope from output to input, layers that are far too small, and layers that are dead.

Kind "depth-profile" (on `grad_norm/layer`): numbers lambda_total (nats from the last to the first layer; negative when norms shrink
toward the input), first, last, lowest (median norms), layers, below_1e7_from (layers counted from the output until norms fall below
1e-7; 0 when they don't). Kind "dead-layer": one layer whose norm is exactly zero or constant to the digit for at least `still`
points while others move (numbers zero, share, layers, from_start, alive_below: layers nearer to the input that still move).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnose import curves
from diagnose.model import Finding, Frozen, Signal, Span


@dataclass(frozen=True, slots=True)
class DepthProfile:
    """Alarm at a thousandfold from end to end, or below SageMaker's 1e-7 (knowledge G3, B.8)."""

    shape: str = "depth-profile"
    kinds: tuple[str, ...] = ("depth-profile", "dead-layer")
    fold: float = 1000.0
    tiny: float = 1e-7
    still: int = 20  # points
    layers: int = 4

    def detect_group(self, signals: Sequence[Signal]) -> tuple[Finding, ...]:
        """Layers in depth order, input first. `size` is the last layer's norm over the first's; `strength` its logarithm."""
        dead = [f for s in signals for f in self._dead(s, signals)]
        living = [s for s in signals if self._level(s) > 0 and not any(f.signal == s.name and f.numbers["from_start"] for f in dead)]
        if len(living) < self.layers:
            return tuple(dead)
        logs = np.array([math.log(self._level(s)) for s in living])
        depth = np.arange(len(logs), dtype=float)
        total = -curves.slope_of(depth, logs) * (len(logs) - 1)
        levels = np.exp(logs)
        small = [len(levels) - i for i in range(len(levels)) if levels[i] < self.tiny]
        if abs(total) < math.log(self.fold) and not small:
            return tuple(dead)
        lowest = living[int(np.argmin(levels))]
        numbers = {
            "lambda_total": float(total),
            "first": float(levels[0]),
            "last": float(levels[-1]),
            "lowest": float(levels.min()),
            "layers": float(len(levels)),
            "below_1e7_from": float(min(small)) if small else 0.0,
            "below_1e7": float(len(small)),
        }
        span = Span(int(lowest.steps[0]), int(lowest.steps[-1]))
        profile = Finding(
            "depth-profile",
            "grad_norm/layer",
            span,
            direction="down" if total < 0 else "up",
            size=math.exp(float(np.clip(-total, -700, 700))),
            strength=abs(float(total)),
            onset=self._onset(lowest),
            numbers=Frozen(numbers),
        )
        return (profile, *dead)

    def _level(self, signal: Signal) -> float:
        good = np.clip(signal.values[np.isfinite(signal.values)], -curves.HUGE, curves.HUGE)
        settled = good[len(good) // 4 :]
        return float(np.median(settled)) if len(settled) else 0.0

    def _onset(self, signal: Signal) -> Span:
        below = np.flatnonzero(signal.values < self.tiny)
        first = int(signal.steps[0])
        return Span(first, int(signal.steps[below[0]]) if len(below) else first)

    def _dead(self, signal: Signal, others: Sequence[Signal]) -> list[Finding]:
        v = signal.values
        if len(v) < self.still or len(others) < 2:
            return []
        same = np.r_[False, (v[1:] == v[:-1])] | (v == 0) | (np.abs(v) < 1e-12)
        runs = [(a, b) for a, b in curves.runs_of(same) if b - a + 1 >= self.still]
        moving = [s for s in others if s is not signal and len(s) > 2 and _moves(s)] if runs else []
        if not runs or not moving:
            return []
        a, b = max(runs, key=lambda r: r[1] - r[0])
        numbers = {
            "zero": float(_middle(v[a : b + 1]) < 1e-12),
            "share": (b - a + 1) / len(v),
            "layers": float(len(others)),
            "from_start": float(a <= 1),
            "alive_below": float(self._alive_below(signal, others, Span(int(signal.steps[a]), int(signal.steps[b])))),
        }
        onset = Span(int(signal.steps[max(a - 1, 0)]), int(signal.steps[a]))
        return [
            Finding(
                "dead-layer",
                signal.name,
                Span(int(signal.steps[a]), int(signal.steps[b])),
                direction="down",
                size=numbers["share"],
                strength=float(b - a + 1),
                onset=onset,
                numbers=Frozen(numbers),
            )
        ]

    def _alive_below(self, signal: Signal, others: Sequence[Signal], span: Span) -> int:
        """How many layers nearer to the input move in that span: a gradient that reaches them has passed this layer."""
        count = 0
        for other in others:
            if other is signal:
                break
            inside = (other.steps >= span.first_step) & (other.steps <= span.last_step)
            part = other.values[inside]
            part = part[np.isfinite(part)]
            count += int(len(part) > 1 and _middle(part) > 1e-12 and float(part.max()) > float(part.min()))
        return count


def _middle(values: curves.Array) -> float:
    """The median size; of values so large that two of them can't be added, `HUGE`."""
    return float(np.median(np.minimum(np.abs(values), curves.HUGE)))


def _moves(signal: Signal) -> bool:
    good = signal.values[np.isfinite(signal.values)]
    return len(good) > 1 and float(good.max()) > float(good.min())


DETECTOR = DepthProfile()
