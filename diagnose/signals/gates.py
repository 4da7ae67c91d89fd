"""H3 to H7: what must be put right before any detector looks; what a gate changed is said in the facts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from diagnose.model import Signal
from diagnose.signals.stitching import common
from diagnose.table import frozen


def pass_gates(named: dict[str, Signal], facts: dict[str, Any]) -> None:
    """All gates in order, on the signals in place; the facts say what each of them changed."""
    silent = [n for n, s in named.items() if _always_zero(n, s)]
    for name in silent:
        del named[name]
    if silent:
        facts["always_zero"] = tuple(silent)
    _unscale(named, facts)
    _drop_stale(named, facts)
    _hidden(named, facts)


def _always_zero(name: str, signal: Signal) -> bool:
    gated = name in (
        "grad_norm",
        "loss_scale",
        "param_norm",
        "lr",
        "noise_scale",
        "time/step",
        "throughput/samples",
        "throughput/tokens",
        "mfu",
    )
    good = signal.values[np.isfinite(signal.values)]
    empty = len(good) > 0 and (not good.any() or (name in ("loss_scale", "mfu") and bool((good <= 0).all())))
    if name == "lr":  # a rate of 0 in a whole run is a fault, not a placeholder
        return False
    return gated and empty and len(signal) >= 2


def _unscale(named: dict[str, Signal], facts: dict[str, Any]) -> None:
    """H4: a norm that follows every change of the loss scale (within 15 % in 3 changes, or correlation > .8) is divided by it."""
    norm, scale = named.get("grad_norm"), named.get("loss_scale")
    if norm is None or scale is None:
        return
    i, j = common(norm, scale)
    g, s = norm.values[i], scale.values[j]
    good = np.isfinite(g) & np.isfinite(s) & (g > 0) & (s > 0)
    i, g, s = i[good], np.log(g[good]), np.log(s[good])
    if len(g) < 4:
        return
    if not np.ptp(s) > math.log(1.9):
        if _carries_scale(float(np.median(g)), float(np.median(s))):
            facts["grad_norm_scale_assumed"] = True
            _divide(named, norm, scale, facts)
        return
    change = np.abs(np.diff(s)) > math.log(1.5)
    follows = np.abs(np.diff(g) - np.diff(s)) <= np.maximum(0.15 * np.abs(np.diff(s)), 0.15)
    hits, moves = int((follows & change).sum()), int(change.sum())
    correlation = float(np.corrcoef(g, s)[0, 1]) if np.ptp(g) > 0 else 0.0
    slope = float(np.polyfit(s, g, 1)[0])
    if (hits >= 3 and hits >= 0.6 * moves) or (correlation > 0.8 and 0.7 < slope < 1.3 and moves >= 2):
        _divide(named, norm, scale, facts)


def _carries_scale(norm: float, scale: float) -> bool:
    """Whether a norm (ln) under one unchanging scale (ln) can only be that of the scaled loss: huge by itself, ordinary when divided.

    At Megatron's first scale of 2^32 a logged norm of 1e10 is 2.3 (knowledge H4).
    """
    return scale >= math.log(2.0**12) and norm >= math.log(1e4) and math.log(1e-3) <= norm - scale <= math.log(1e3)


def _divide(named: dict[str, Signal], norm: Signal, scale: Signal, facts: dict[str, Any]) -> None:
    filled = np.interp(norm.steps, scale.steps, scale.values)
    at = np.clip(np.searchsorted(scale.steps, norm.steps, side="right") - 1, 0, len(scale) - 1)
    divisor = np.where(np.isfinite(scale.values[at]) & (scale.values[at] > 0), scale.values[at], np.maximum(filled, 1.0))
    first = float(norm.values[np.isfinite(norm.values)][0]) if np.isfinite(norm.values).any() else math.nan
    facts["grad_norm_was_scaled"] = True
    facts["grad_norm_scaled_first"] = first
    facts["grad_norm_scaled_highest"] = float(np.max(norm.values[np.isfinite(norm.values)]))
    named["grad_norm"] = replace(norm, values=frozen(norm.values / divisor), resolution=0.0)


def _drop_stale(named: dict[str, Signal], facts: dict[str, Any]) -> None:
    """H3: a norm repeated to the last digit while the loss changes is the previous step's, not a measurement."""
    norm, loss = named.get("grad_norm"), named.get("loss/train")
    if norm is None or loss is None or len(norm) < 4:
        return
    level = np.nanmedian(np.abs(norm.values)) if np.isfinite(norm.values).any() else 0.0
    if norm.resolution > 1e-4 * level:
        return  # with few digits, equal neighbours are chance
    same = np.zeros(len(norm), bool)
    same[1:] = (norm.values[1:] == norm.values[:-1]) & np.isfinite(norm.values[1:])
    if 0 < same.sum() < 0.5 * len(norm):
        facts["stale_grad_norm"] = tuple(int(x) for x in norm.steps[same][:200])
        named["grad_norm"] = replace(norm, steps=frozen(norm.steps[~same]), values=frozen(norm.values[~same]),
                                     times=None if norm.times is None else frozen(norm.times[~same]))  # fmt: skip


def _hidden(named: dict[str, Signal], facts: dict[str, Any]) -> None:
    """H6 (loss 0.0 beside a NaN norm is a filtered NaN) and H7 (the loss field goes missing while other fields go on)."""
    norm, loss, lr = named.get("grad_norm"), named.get("loss/train"), named.get("lr")
    if norm is not None and loss is not None:
        i, j = common(loss, norm)
        hidden = (loss.values[i] == 0.0) & ~np.isfinite(norm.values[j])
        if hidden.sum() >= 2:
            facts["loss_hidden_nonfinite"] = int(loss.steps[i[np.argmax(hidden)]])
            values = loss.values.copy()
            values[i[hidden]] = np.nan
            named["loss/train"] = loss = replace(loss, values=frozen(values))
    other = max((s for s in (norm, lr) if s is not None), key=lambda s: int(s.steps[-1]) if len(s) else -1, default=None)
    if loss is None or other is None or len(loss) < 2 or len(other) < 3:
        return
    before = other.steps[other.steps <= loss.steps[-1]]
    covered = np.isin(before, loss.steps).mean() if len(before) else 0.0
    after = other.steps[other.steps > loss.steps[-1]]
    if covered > 0.9 and len(after) >= 2:
        facts["loss_field_missing"] = int(after[0])
