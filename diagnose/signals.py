"""The run table -> signals: attempts stitched, gates passed, derived signals made, known events marked.

Gates (knowledge 0.2): H1 order, H2 quantisation, H3 stale repeats, H4 loss-scaled norms, H5 always zero, H6 the NaN filter,
H7 the missing loss field. Masks (knowledge 0.3): X1 learning rate, X2 cyclic rate, X3 batch size, X4 sequence length,
X5 resume, X10 first steps, X12 skipped steps. What a gate changed is said in the facts, never silently.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose import metrics
from diagnose import settings as catalogue
from diagnose.model import Event, Floats, Frozen, Mask, Setting, Signal, Span, Steps
from diagnose.table import Run, Series, frozen


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """What detectors and rules look at: signals by canonical name, masks, settings by canonical name, facts."""

    by_name: Mapping[str, Signal]
    masks: tuple[Mask, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=Frozen)
    events: tuple[Event, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=Frozen)


def build(run: Run) -> Signals:
    """All of the above from one run table."""
    found = catalogue.canonical(run.settings)
    facts: dict[str, Any] = dict(run.facts)
    named = _stitched(run, facts)
    _gates(named, facts)
    _derive(named, found, run.events, facts)
    _extent(named, facts)
    _schedule_facts(named, found, facts)
    masks = _masks(named, found, run.events, facts)
    settled = _settled_from(named, facts)
    ready = {name: replace(s, settled_from=settled) for name, s in sorted(named.items())}
    return Signals(Frozen(ready), tuple(masks), Frozen(found), run.events, Frozen(facts))


# -- H1: one effective series a metric


def stitch(steps: Steps, attempts: NDArray[np.int16]) -> NDArray[np.int64]:
    """Indices of the effective points, steps strictly rising: the last writer of a step wins, and an attempt that goes back
    to step s supersedes everything at or after s written before it (the rule of TensorBoard's data server).

    `steps` and `attempts` are sorted by (attempt, step). One low point among points that simply go on is a stray (a tag logged
    without a step among tags with steps), not a restart.
    """
    keep = np.ones(len(steps), bool)
    starts = np.flatnonzero(np.diff(attempts, prepend=attempts[:1] - 1)) if len(steps) else np.empty(0, np.int64)
    ends = np.append(starts[1:], len(steps))
    for a, b in zip(starts[1:], ends[1:], strict=True):
        if not _stray(steps, a, b):
            keep[:a] &= steps[:a] < steps[a]
    index = np.flatnonzero(keep)
    order = index[np.argsort(steps[index], kind="stable")]
    if not len(order):
        return order
    last = np.append(steps[order][1:] != steps[order][:-1], True)
    return np.asarray(order[last], np.int64)


def _stray(steps: Steps, a: int, b: int) -> bool:
    """Whether the attempt's first point is followed by points that go on where the earlier attempts ended."""
    top = int(steps[:a].max())
    if b - a < 2 or a < 3 or int(steps[a + 1]) <= top:
        return False
    usual = max(1.0, float(np.median(np.diff(steps[max(0, a - 64) : a]))))
    return int(steps[a + 1]) - int(steps[a]) > 2.5 * usual and int(steps[a + 1]) - top <= 2.5 * usual


def _stitched(run: Run, facts: dict[str, Any]) -> dict[str, Signal]:
    groups: dict[str, dict[tuple[str, int | None, str], list[Series]]] = {}
    readers = [s.reader for s in run.sources]
    for series in run.series:
        reader = readers[series.source] if series.source < len(readers) else ""
        groups.setdefault(series.metric, {}).setdefault((series.logged_as, series.rank, reader), []).append(series)
    named = {}
    attempts: dict[str, int] = {}
    for name, candidates in groups.items():
        best = max(candidates.values(), key=_worth)
        steps = np.concatenate([s.steps for s in best])
        values = np.concatenate([s.values for s in best])
        tries = np.concatenate([s.attempts for s in best])
        times = np.concatenate([s.times if s.times is not None else np.full(len(s), np.nan) for s in best])
        index = stitch(steps, tries)
        attempts[name] = int(tries.max()) + 1 if len(tries) else 0
        if name in ("loss/train", "lr", "grad_norm"):
            facts.setdefault("resumes", _resumes(steps, tries, values) if attempts[name] > 1 else ())
        entry = metrics.metric(name)
        unit = entry.unit
        named[name] = Signal(
            name, best[0].logged_as, unit, steps=frozen(steps[index]), values=frozen(values[index]),
            times=frozen(times[index]) if np.isfinite(times[index]).any() else None, rank=best[0].rank, good=entry.good,
            multiplicative=entry.multiplicative, resolution=resolution(values[index]),
        )  # fmt: skip
    main = next((n for n in ("loss/train", "grad_norm", "lr") if n in attempts), None)
    facts["attempts"] = attempts.get(main, 1) if main else max(attempts.values(), default=1)
    return named


def _worth(series: Sequence[Series]) -> tuple[float, ...]:
    """More points first, then the less rounded source, then the lower rank and the shorter tag."""
    values = np.concatenate([s.values for s in series])
    rank = series[0].rank or 0
    return (len(values), -resolution(values), -rank, -len(series[0].logged_as))


def _resumes(steps: Steps, attempts: NDArray[np.int16], values: Floats) -> tuple[tuple[int, int], ...]:
    """(last step before, first step after) of every restart, in order."""
    cuts = np.flatnonzero(np.diff(attempts)) + 1
    return tuple((int(steps[c - 1]), int(steps[c])) for c in cuts[:64])


def resolution(values: Floats) -> float:
    """The smallest difference that the log can show: 10^-k when all values are multiples of it (k <= 5), else 0 (gate H2)."""
    good = values[np.isfinite(values)]
    if len(good) < 3:
        return 0.0
    sample = good if len(good) <= 4096 else good[:: len(good) // 4096]
    for k in range(6):
        if np.all(np.abs(sample - np.round(sample, k)) <= 1e-9 * np.maximum(1.0, np.abs(sample))):
            return float(10.0**-k)
    return 0.0


# -- H3 to H7


def _gates(named: dict[str, Signal], facts: dict[str, Any]) -> None:
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


def common(a: Signal, b: Signal) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices into a and b of the steps that both have."""
    _, i, j = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    return i, j


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


# -- derived signals


def _add(named: dict[str, Signal], name: str, steps: Steps, values: Floats, *, source: str, unit: str = "") -> None:
    entry = metrics.metric(name)
    named[name] = Signal(
        name, source, unit or entry.unit, steps=frozen(np.asarray(steps, np.int64)), values=frozen(np.asarray(values, np.float64)),
        good=entry.good, multiplicative=entry.multiplicative,
    )  # fmt: skip


def _derive(named: dict[str, Signal], found: Mapping[str, Setting], events: Sequence[Event], facts: dict[str, Any]) -> None:
    _derive_times(named)
    _derive_skips(named, events)
    norm, clip = named.get("grad_norm"), _number(found, "gradient_clipping")
    if norm is not None and clip and clip > 0:
        _add(named, "clip_ratio", norm.steps, norm.values / clip, source=f"{norm.logged_as} / {clip:g}")
    _derive_noise_scale(named, found, facts)


def _number(found: Mapping[str, Setting], name: str) -> float | None:
    setting = found.get(name)
    value = None if setting is None else setting.value
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
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


def _scale_window(scale: Signal | None, skipped: Signal | None) -> float | None:
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
    b_big = _number(found, "gns.big") or _number(found, "batch.global")
    b_small = _number(found, "gns.small") or _number(found, "batch.micro")
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


# -- extent, schedule, masks


def _extent(named: Mapping[str, Signal], facts: dict[str, Any]) -> None:
    main = next((named[n] for n in ("loss/train", "grad_norm", "lr") if n in named and len(named[n]) > 1), None)
    main = main or max(named.values(), key=len, default=None)
    filled = [s for n, s in named.items() if len(s) and " by " not in n and not n.startswith("system/")] or (
        [main] if main is not None and len(main) else []
    )
    facts["first_step"] = int(min((s.steps[0] for s in ([main] if main is not None and len(main) else filled)), default=0))
    facts["last_step"] = int(max((s.steps[-1] for s in filled), default=0))
    facts["steps_per_point"] = main.steps_per_point if main is not None else 1.0
    facts["main_points"] = len(main) if main is not None else 0


def _schedule_facts(named: Mapping[str, Signal], found: Mapping[str, Setting], facts: dict[str, Any]) -> None:
    lr = named.get("lr")
    warm = None
    if lr is not None and len(lr) >= 5:
        v = lr.values
        top = np.nanmax(v) if np.isfinite(v).any() else math.nan
        falls = np.flatnonzero(~(np.diff(v) > 0))  # the ramp ends where the rate first stops rising
        peak = int(falls[0]) if len(falls) else len(v) - 1
        rising = peak >= 1 and math.isfinite(v[0]) and v[0] < 0.6 * v[peak]
        warm = int(lr.steps[peak]) if rising else int(lr.steps[0])
        facts["lr_peak"] = float(top) if math.isfinite(top) else None
        facts["lr_constant"] = bool(np.nanmax(v) <= 1.0001 * np.nanmin(v)) if np.isfinite(v).any() else False
        facts["warmed_up"] = rising
    elif _number(found, "schedule.warmup_steps") is not None:
        warm = facts["first_step"] + int(_number(found, "schedule.warmup_steps") or 0)
    facts["warmup_end"] = warm
    facts["scale_window_seen"] = _scale_window(named.get("loss_scale"), named.get("steps/skipped"))
    vocab = _number(found, "model.vocab")
    if vocab and vocab > 1:
        facts["classes_ln"] = math.log(vocab)


def _settled_from(named: Mapping[str, Signal], facts: Mapping[str, Any]) -> int:
    """The end of the start-up transient: max(200 steps, 1 % of the run) (X10), but at most a tenth of a short run."""
    first, last = facts["first_step"], facts["last_step"]
    length = max(1, last - first)
    return int(first + min(max(200, 0.01 * length), 0.1 * length))


def _guard(facts: Mapping[str, Any]) -> int:
    """50 steps or 2 % of the run (knowledge 0.3), never less than 3 logged points, never more than a tenth of the run."""
    length = max(1, facts["last_step"] - facts["first_step"])
    return math.ceil(float(max(min(max(50.0, 0.02 * length), 0.05 * length), 3 * facts["steps_per_point"])))


def _masks(named: Mapping[str, Signal], found: Mapping[str, Setting], events: Sequence[Event], facts: dict[str, Any]) -> list[Mask]:
    guard = _guard(facts)
    masks = [Mask("X10", "the first steps of a run move a lot", Span(facts["first_step"], _settled_from(named, facts)))]
    masks += _lr_masks(named.get("lr"), found, facts, guard)
    for kind, name, words in (("X3", "batch_size", "the batch size"), ("X4", "sequence_length", "the sequence length")):
        signal = named.get(name)
        if signal is None or len(signal) < 2:
            continue
        at = np.flatnonzero(np.diff(signal.values) != 0)
        if len(at) > 0.2 * len(signal) and len(at) > 20:
            continue  # a value that always moves is no event
        for i in at[:200].tolist():
            says = f"{words} goes from {signal.values[i]:g} to {signal.values[i + 1]:g} at {int(signal.steps[i + 1])}"
            masks.append(Mask(kind, says, Span(int(signal.steps[i]), int(signal.steps[i + 1]) + 2 * guard)))
    spots = [after for _, after in facts.get("resumes", ())]
    spots += [e.step for e in events if e.kind in ("resume", "restart") and e.step is not None]
    masks += [Mask("X5", f"the run resumes at {s}", Span(s - 1, s + guard)) for s in sorted(set(spots))]
    skipped = named.get("steps/skipped")
    if skipped is not None:
        rows = skipped.steps[skipped.values > 0]
        masks += [Mask("X12", f"the optimizer skips step {int(s)}", Span(int(s), int(s))) for s in rows[:200]]
    return masks


def _lr_masks(lr: Signal | None, found: Mapping[str, Setting], facts: dict[str, Any], guard: int) -> list[Mask]:
    if lr is None or len(lr) < 5:
        return []
    masks: list[Mask] = []
    v, steps = lr.values, lr.steps
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.diff(np.log(np.where(v > 0, v, np.nan)))
    after = np.asarray(steps[1:] > (facts.get("warmup_end") or facts["first_step"]))
    typical = float(np.nanmedian(np.abs(change))) if np.isfinite(change).any() else 0.0
    drops = np.flatnonzero((change < -max(0.05, 8 * typical)) & after)
    rises = np.flatnonzero((change > max(math.log(1.5), 8 * typical)) & after)
    kind = str(found["schedule.kind"].value).lower() if "schedule.kind" in found else ""
    planned = any(w in kind for w in ("cycl", "restart", "onecycle", "warm_restarts", "triangular"))
    turns = _turns(v)
    cyclic = planned or len(rises) >= 3 or turns >= 4
    facts["lr_cyclic"] = bool(cyclic)
    facts["lr_rises"] = tuple(int(steps[i + 1]) for i in rises[:64])
    masks += (
        Mask(
            "X1",
            f"the learning rate falls from {v[i]:.3g} to {v[i + 1]:.3g} at {steps[i + 1]}",
            Span(int(steps[i]), int(steps[i + 1]) + guard),
        )
        for i in drops[:100].tolist()
    )
    if cyclic:
        masks.append(Mask("X2", "the learning rate is cyclic", Span(int(steps[0]), int(steps[-1]))))
    return masks


def _turns(values: Floats) -> int:
    """How often a smooth series turns from falling to rising and back by more than a third of its range."""
    good = values[np.isfinite(values)]
    if len(good) < 8 or not np.ptp(good) > 0:
        return 0
    unit = (good - good.min()) / np.ptp(good)
    high, turns = bool(unit[0] > 0.5), 0
    for value in unit.tolist():
        if high and value < 0.33:
            high, turns = False, turns + 1
        elif not high and value > 0.67:
            high, turns = True, turns + 1
    return turns
