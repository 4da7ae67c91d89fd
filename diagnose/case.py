"""One run as a rule sees it: what was found, what was logged, what was set, what was said.

A rule asks and compares; whatever must be computed from points is computed here or in a detector.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diagnose.model import Cause, Event, Evidence, Finding, Frozen, Mask, Setting, Signal, Span

HALF_DECADE = math.log(10) / 2  # evidence weights are half-decades of odds (knowledge B.10)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A cause before ranking: its prior odds and the weighted evidence for (+) and against (-) it.

    Weights are half-decades of odds: ±1 weak, ±2 strong. A weight of 0 is not evidence and is left out.
    """

    id: str
    title: str
    prior: float = 1.0
    evidence: tuple[tuple[float, Evidence], ...] = ()
    would_decide: str = ""


def because(weight: float, says: str, **more: Any) -> tuple[float, Evidence]:
    """One weighted piece of evidence for a hypothesis; negative weights speak against it."""
    return weight, Evidence(says, role="against" if weight < 0 else "related", **more)


def ranked(hypotheses: Iterable[Hypothesis], *, keep: int = 4, at_least: float = 0.03) -> tuple[Cause, ...]:
    """Causes by posterior share: log prior plus additive evidence, softmax (knowledge B.10)."""
    pool = list(hypotheses)
    if not pool:
        return ()
    scores = [math.log(h.prior) + HALF_DECADE * sum(w for w, _ in h.evidence) for h in pool]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = sum(weights)
    order = sorted(zip(weights, pool, strict=True), key=lambda pair: (-pair[0], pair[1].id))
    chosen = [(w / total, h) for w, h in order if w / total >= at_least][:keep]
    return tuple(
        Cause(h.id, h.title, share=round(share, 3), because=tuple(e for w, e in h.evidence if w), would_decide=h.would_decide)
        for share, h in chosen
    )


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A run as a rule sees it. Steps are in the run's step unit; signals are stitched and unscaled."""

    name: str = ""
    step_unit: str = "step"
    signals: Mapping[str, Signal] = field(default_factory=Frozen, kw_only=True)
    findings: tuple[Finding, ...] = field(default=(), kw_only=True)
    events: tuple[Event, ...] = field(default=(), kw_only=True)
    settings: Mapping[str, Setting] = field(default_factory=Frozen, kw_only=True)
    masks: tuple[Mask, ...] = field(default=(), kw_only=True)
    facts: Mapping[str, Any] = field(default_factory=Frozen, kw_only=True)

    # -- extent

    @property
    def first_step(self) -> int:
        """The first logged step of the main signal (training loss, else the longest)."""
        return int(self.facts.get("first_step", 0))

    @property
    def last_step(self) -> int:
        """The last logged step of the run."""
        return int(self.facts.get("last_step", 0))

    @property
    def length(self) -> int:
        """Steps from first to last, at least 1."""
        return max(1, self.last_step - self.first_step)

    @property
    def whole(self) -> Span:
        """The whole run."""
        return Span(self.first_step, self.last_step)

    @property
    def framework(self) -> str:
        """The framework that wrote the log where that is evident, else an empty string."""
        return str(self.facts.get("framework", ""))

    def near(self, points: float = 5.0, share: float = 0.02) -> int:
        """How many steps still count as "the same place": `points` logged points or `share` of the run, whichever is more."""
        return math.ceil(max(points * float(self.facts.get("steps_per_point", 1.0)), share * self.length))

    # -- what was logged

    def has(self, metric: str) -> bool:
        """Whether the metric is logged; `a|b` for either, a trailing `*` for any of a family."""
        return any(self._has_one(m) for m in metric.split("|"))

    def _has_one(self, metric: str) -> bool:
        if metric.endswith("*"):
            return any(name.startswith(metric[:-1]) for name in self.signals)
        return metric in self.signals

    def family(self, prefix: str) -> tuple[str, ...]:
        """The names of the logged metrics that start with `prefix`, in order."""
        return tuple(name for name in self.signals if name.startswith(prefix))

    def points(self, metric: str) -> int:
        """How many points of the metric there are (0 when it is not logged)."""
        return len(self.signals[metric]) if metric in self.signals else 0

    def value_at(self, metric: str, step: int) -> float | None:
        """The last finite value at or before `step`; the first finite one when all come later; None when there is none."""
        signal = self.signals.get(metric)
        if signal is None:
            return None
        good = np.isfinite(signal.values)
        if not good.any():
            return None
        steps, values = signal.steps[good], signal.values[good]
        return float(values[max(0, int(np.searchsorted(steps, step, side="right")) - 1)])

    def level(self, metric: str, span: Span | None = None) -> float | None:
        """The median of the finite values within `span` (the whole run when None); None when there is none."""
        values = self._within(metric, span)
        return float(np.median(values)) if len(values) else None

    def highest(self, metric: str, span: Span | None = None) -> float | None:
        """The largest finite value within `span`, or None."""
        values = self._within(metric, span)
        return float(values.max()) if len(values) else None

    def lowest(self, metric: str, span: Span | None = None) -> float | None:
        """The smallest finite value within `span`, or None."""
        values = self._within(metric, span)
        return float(values.min()) if len(values) else None

    def quantile(self, metric: str, q: float, span: Span | None = None) -> float | None:
        """The q-quantile of the finite values within `span`, or None."""
        values = self._within(metric, span)
        return float(np.quantile(values, q)) if len(values) else None

    def share_of(self, metric: str, low: float, high: float, span: Span | None = None) -> float:
        """The share of finite values within `span` that lie in [low, high]; 0.0 when there is none."""
        values = self._within(metric, span)
        return float(np.mean((values >= low) & (values <= high))) if len(values) else 0.0

    def first_step_where(self, metric: str, low: float, high: float, span: Span | None = None) -> int | None:
        """The first step within `span` at which the value lies in [low, high], or None."""
        signal = self.signals.get(metric)
        if signal is None:
            return None
        hit = (signal.values >= low) & (signal.values <= high)
        if span is not None:
            hit &= (signal.steps >= span.first_step) & (signal.steps <= span.last_step)
        return int(signal.steps[int(np.argmax(hit))]) if hit.any() else None

    def _within(self, metric: str, span: Span | None) -> np.ndarray[Any, np.dtype[np.float64]]:
        signal = self.signals.get(metric)
        if signal is None:
            return np.empty(0)
        keep = np.isfinite(signal.values)
        if span is not None:
            keep &= (signal.steps >= span.first_step) & (signal.steps <= span.last_step)
        return signal.values[keep]

    # -- what was found

    def found(
        self,
        kind: str,
        on: str | tuple[str, ...] | None = None,
        *,
        at_least: float = 0.0,
        direction: str | None = None,
        within: Span | None = None,
        ending_before: Span | None = None,
        starting_after: int | None = None,
        masked: bool = True,
    ) -> tuple[Finding, ...]:
        """Findings of a kind, earliest onset first. `masked=False` leaves out those that a known event explains.

        at_least: smallest strength, in noise widths · within: onset inside the span · ending_before: onset before that span's.
        """
        names = (on,) if isinstance(on, str) else on
        hits = [
            f
            for f in self.findings
            if f.kind == kind
            and (names is None or any(_fits(f.signal, n) for n in names))
            and f.strength >= at_least
            and (direction is None or f.direction == direction)
            and (within is None or f.onset.overlaps(within))
            and (ending_before is None or f.onset.first_step < ending_before.first_step)
            and (starting_after is None or f.onset.last_step > starting_after)
            and (masked or not f.masks)
        ]
        return tuple(sorted(hits, key=lambda f: (f.onset.first_step, f.signal)))

    def leads(self, finding: Finding, kind: str, on: str | tuple[str, ...], *, within_steps: int) -> Finding | None:
        """The nearest finding of `kind` on another signal that began at most `within_steps` before `finding`, or None."""
        start = finding.onset.first_step
        hits = [f for f in self.found(kind, on) if 0 <= start - f.onset.first_step <= within_steps and f is not finding]
        return hits[-1] if hits else None

    def together(self, span: Span, kind: str, on: str | tuple[str, ...], *, slack: int) -> Finding | None:
        """The first finding of `kind` whose onset lies within `slack` steps of `span`, or None."""
        hits = [f for f in self.found(kind, on) if f.onset.overlaps(span, slack)]
        return hits[0] if hits else None

    # -- what was set and said

    def setting(self, name: str, default: Any = None) -> Any:
        """The value of a canonical setting, or `default` when it was not found in any configuration."""
        found = self.settings.get(name)
        return default if found is None else found.value

    def number(self, name: str) -> float | None:
        """The value of a canonical setting as a finite number, or None."""
        value = self.setting(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return float(value) if abs(value) <= sys.float_info.max else None  # a whole number may be too large for a float

    def where(self, name: str) -> str:
        """Where a canonical setting was read, or an empty string."""
        found = self.settings.get(name)
        return "" if found is None else found.where

    def said(self, kind: str, *, within: Span | None = None) -> tuple[Event, ...]:
        """Events of a kind in the order of the log; with `within`, only those with a step inside it."""
        return tuple(
            e
            for e in self.events
            if e.kind == kind and (within is None or (e.step is not None and within.first_step <= e.step <= within.last_step))
        )

    def masks_at(self, span: Span, *kinds: str) -> tuple[Mask, ...]:
        """Known events (of these kinds, or any) whose guarded span touches `span`."""
        return tuple(m for m in self.masks if (not kinds or m.kind in kinds) and m.span.overlaps(span))

    @property
    def warmup_end(self) -> int | None:
        """The last step of the learning-rate warm-up, from the logged rate or the configuration; None when unknown."""
        value = self.facts.get("warmup_end")
        return None if value is None else int(value)


def _fits(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
