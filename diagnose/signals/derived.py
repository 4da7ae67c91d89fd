"""Signals that follow from others: clip ratio, step times, skipped steps, noise scale."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diagnose import metrics
from diagnose.model import Event, Floats, Setting, Signal, Steps
from diagnose.signals.stitching import common
from diagnose.table import frozen


def _add(named: dict[str, Signal], name: str, steps: Steps, values: Floats, *, source: str, unit: str = "") -> None:
    entry = metrics.metric(name)
    named[name] = Signal(
        name, source, unit or entry.unit, steps=frozen(np.asarray(steps, np.int64)), values=frozen(np.asarray(values, np.float64)),
        good=entry.good, multiplicative=entry.multiplicative,
    )  # fmt: skip


def derive(named: dict[str, Signal], found: Mapping[str, Setting], events: Sequence[Event], facts: dict[str, Any]) -> None:
    """Adds every signal that follows from those that are logged; a logged one is never replaced."""
    _derive_times(named)
    _derive_skips(named, events)
    norm, clip = named.get("grad_norm"), number_of(found, "gradient_clipping")
    if norm is not None and clip and clip > 0:
        _add(named, "clip_ratio", norm.steps, norm.values / clip, source=f"{norm.logged_as} / {clip:g}")
    _derive_noise_scale(named, found, facts)


def number_of(found: Mapping[str, Setting], name: str) -> float | None:
    """A canonical setting as a finite number, or None."""
    setting = found.get(name)
    value = None if setting is None else setting.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def _derive_times(named: dict[str, Signal]) -> None:
    milli = named.get("time/step_ms")
    if milli is not None and "time/step" not in named:
        _add(named, "time/step", milli.steps, milli.values / 1000.0, source=milli.logged_as)
    if any(n in named for n in ("time/step", "throughput/samples", "throughput/tokens")):
        return
    main = named.get("loss/train") or named.get("grad_norm") or named.get("lr")
    if main is None or main.times is None or len(main) < 30:
        return
    gap, width = np.diff(main.times), np.diff(main.steps).astype(float)
    good = np.isfinite(gap) & (gap > 0)
    if good.mean() > 0.95 and float(np.median(gap[good])) > 1e-4:
        # not `time/step`: between two time stamps lie evaluations, logging and whatever else the machine did
        _add(
            named,
            "time/between_logs",
            main.steps[1:][good],
            gap[good] / width[good],
            source="wall clock of the log's time stamps",
            unit="s",
        )


def _derive_skips(named: dict[str, Signal], events: Sequence[Event]) -> None:
    total = named.get("steps/skipped_total")
    if total is not None and "steps/skipped" not in named and len(total) > 1:
        if total.values[np.isfinite(total.values)].max(initial=0) > 1 or (np.diff(total.values) >= 0).all():
            grown = np.diff(total.values, prepend=0.0)
            grown = np.where(grown < 0, np.where(np.isfinite(total.values), total.values, 0.0), grown)
        else:
            grown = total.values  # a 0/1 flag a row
        _add(named, "steps/skipped", total.steps, np.nan_to_num(grown), source=total.logged_as)
    main = named.get("loss/train") or named.get("lr") or named.get("grad_norm") or named.get("loss_scale")
    said = sorted({e.step for e in events if e.kind == "overflow" and e.step is not None})
    if "steps/skipped" not in named and said and main is not None and len(main):
        steps = np.union1d(main.steps, np.array(said, np.int64))
        _add(named, "steps/skipped", steps, np.isin(steps, said).astype(float), source="overflow lines")
    skipped = named.get("steps/skipped")
    if skipped is not None and len(skipped) >= 10:
        per = np.diff(skipped.steps, prepend=skipped.steps[0] - max(1, int(skipped.steps_per_point))).astype(float)
        window = max(5, min(50, len(skipped) // 10))
        kernel = np.ones(window)
        share = np.convolve(skipped.values, kernel)[: len(skipped)] / np.maximum(np.convolve(per, kernel)[: len(skipped)], 1.0)
        _add(named, "overflow_rate", skipped.steps, np.clip(share, 0.0, 1.0), source=skipped.logged_as)


def scale_window(scale: Signal | None, skipped: Signal | None) -> float | None:
    """Steps between a change of the loss scale and the doubling after it, as logged; None for fewer than three doublings.

    A scaler that doubles too early finds the edge again at once: what it skips then is its own probing (knowledge P1). A console
    that prints the scale at overflows only shows the doubling as the same scale again, some steps later.
    """
    if scale is None:
        return None
    good = np.isfinite(scale.values) & (scale.values > 0)
    steps, logs = scale.steps[good], np.log2(scale.values[good])
    moves = np.diff(logs)
    if skipped is not None and len(steps) and np.isin(steps, skipped.steps[skipped.values > 0]).all():
        waits = np.diff(steps)[(moves >= 0) & (np.diff(steps) > 5)]
        return float(np.median(waits)) if len(waits) >= 3 else None
    changed = np.flatnonzero(moves != 0)
    gaps = [(steps[b + 1] - steps[a + 1]) / max(1.0, float(moves[b])) for a, b in itertools.pairwise(changed.tolist()) if moves[b] > 0]
    return float(np.median(gaps)) if len(gaps) >= 3 else None


def _derive_noise_scale(named: dict[str, Signal], found: Mapping[str, Setting], facts: dict[str, Any]) -> None:
    """Unbiased pair (McCandlish 1812.06162): |G|² = (Bb·gb - Bs·gs)/(Bb - Bs), tr Σ = (gs - gb)/(1/Bs - 1/Bb); each averaged
    by an EMA of .99 of its own, then divided: averaging ratios is biased (knowledge B.6, N5)."""
    small, big = named.get("grad_sq/small"), named.get("grad_sq/big")
    if small is None or big is None:
        return
    _derive_gap(named, small, big)
    b_big = number_of(found, "gns.big") or number_of(found, "batch.global")
    b_small = number_of(found, "gns.small") or number_of(found, "batch.micro")
    if not b_big or not b_small or b_small >= b_big:
        facts["noise_scale_blind"] = "the two batch sizes behind the squared norms are not in the configuration"
        return
    i, j = common(small, big)
    s, b = small.values[i], big.values[j]
    good = np.isfinite(s) & np.isfinite(b)
    steps, s, b = small.steps[i][good], s[good], b[good]
    if len(steps) < 10:
        return
    square = (b_big * b - b_small * s) / (b_big - b_small)
    trace = (s - b) / (1.0 / b_small - 1.0 / b_big)
    alpha = 0.99 if len(steps) >= 300 else 0.95
    num, den = ema(trace, alpha), ema(square, alpha)
    facts["noise_scale_negative_share"] = float(np.mean(square < 0))
    facts["noise_scale_batch"] = b_big
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(den > 0, num / den, np.nan)
    if "noise_scale" not in named or len(named["noise_scale"]) < len(steps):
        _add(named, "noise_scale", steps, ratio, source=f"{small.logged_as}, {big.logged_as}")
    _add(named, "noise_scale/trace", steps, num, source=f"{small.logged_as}, {big.logged_as}")
    _add(named, "noise_scale/g2", steps, den, source=f"{small.logged_as}, {big.logged_as}")


def _derive_gap(named: dict[str, Signal], small: Signal, big: Signal) -> None:
    """The share of the small batch's squared norm that the big one does not have: 0 when both hold the same samples."""
    i, j = common(small, big)
    s, b = small.values[i], big.values[j]
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.where(s > 0, (s - b) / s, np.nan)
    _add(named, "noise_scale/gap", small.steps[i], gap, source=f"1 - {big.logged_as} / {small.logged_as}")


def ema(values: Floats, alpha: float) -> Floats:
    """Exponential moving average, bias-corrected: out[t] = Σ α^k x[t-k] / Σ α^k. Needs finite values."""
    out = np.empty(len(values))
    total = weight = 0.0
    for i, value in enumerate(values.tolist()):
        total = alpha * total + value
        weight = alpha * weight + 1.0
        out[i] = total / weight
    return out
