"""The extent of the run, its schedule, and the known events that explain shapes (masks X1 to X12)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diagnose.model import Event, Floats, Mask, Setting, Signal, Span
from diagnose.signals.derived import number_of, scale_window


def extent(named: Mapping[str, Signal], facts: dict[str, Any]) -> None:
    """First and last step, and steps a point, of the main signal, into the facts."""
    main = next((named[n] for n in ("loss/train", "grad_norm", "lr") if n in named and len(named[n]) > 1), None)
    main = main or max(named.values(), key=len, default=None)
    filled = [s for n, s in named.items() if len(s) and " by " not in n and not n.startswith("system/")] or (
        [main] if main is not None and len(main) else []
    )
    facts["first_step"] = int(min((s.steps[0] for s in ([main] if main is not None and len(main) else filled)), default=0))
    facts["last_step"] = int(max((s.steps[-1] for s in filled), default=0))
    facts["steps_per_point"] = main.steps_per_point if main is not None else 1.0
    facts["main_points"] = len(main) if main is not None else 0


def schedule_facts(named: Mapping[str, Signal], found: Mapping[str, Setting], facts: dict[str, Any]) -> None:
    """Peak and end of warm-up of the learning rate, the scaler's window, the classes of the loss, into the facts."""
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
    elif number_of(found, "schedule.warmup_steps") is not None:
        warm = facts["first_step"] + int(number_of(found, "schedule.warmup_steps") or 0)
    facts["warmup_end"] = warm
    facts["scale_window_seen"] = scale_window(named.get("loss_scale"), named.get("steps/skipped"))
    vocab = number_of(found, "model.vocab")
    if vocab and vocab > 1:
        facts["classes_ln"] = math.log(vocab)


def settled_from(named: Mapping[str, Signal], facts: Mapping[str, Any]) -> int:
    """The end of the start-up transient: max(200 steps, 1 % of the run) (X10), but at most a tenth of a short run."""
    first, last = facts["first_step"], facts["last_step"]
    length = max(1, last - first)
    return int(first + min(max(200, 0.01 * length), 0.1 * length))


def _guard(facts: Mapping[str, Any]) -> int:
    """50 steps or 2 % of the run (knowledge 0.3), never less than 3 logged points, never more than a tenth of the run."""
    length = max(1, facts["last_step"] - facts["first_step"])
    return math.ceil(float(max(min(max(50.0, 0.02 * length), 0.05 * length), 3 * facts["steps_per_point"])))


def masks_of(named: Mapping[str, Signal], found: Mapping[str, Setting], events: Sequence[Event], facts: dict[str, Any]) -> list[Mask]:
    """The known events of the run, each with the span in which it explains shapes."""
    guard = _guard(facts)
    masks = [Mask("X10", "the first steps of a run move a lot", Span(facts["first_step"], settled_from(named, facts)))]
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
