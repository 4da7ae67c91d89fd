"""How rules say numbers, rest a sentence on a finding, and size what they suggest.

Knows sentences and arithmetic of a few numbers; knows no rule. Points are never touched here, the case does that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from diagnose.case import Case, Hypothesis, because
from diagnose.model import Confidence, Evidence, Finding, Severity, Span

THIN = "\u202f"  # thin space between groups of three digits


def num(value: float | None) -> str:
    """A number with three significant digits, in powers of ten when it is very large or small; `unknown` for None."""
    if value is None:
        return "unknown"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    size = abs(value)
    if size == 0 or 1e-3 <= size < 1e3:
        return f"{value:.3g}"
    if 1e3 <= size < 1e6:
        return grouped(value)
    mantissa, power = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def grouped(count: float) -> str:
    """A whole number in groups of three digits; four digits stay together, as in a year or a step 1700."""
    if not math.isfinite(count):
        return num(count)
    whole = round(count)
    return str(whole) if abs(whole) < 10_000 else f"{whole:,}".replace(",", THIN)


def percent(share: float) -> str:
    """A share as per cent, with one digit below ten."""
    value = 100 * share
    if not math.isfinite(value):
        return num(value)
    return f"{value:.0f} %" if abs(value) >= 10 or value == 0 else f"{value:.2g} %"


def at(span: Span | None) -> str:
    """`step 400`, or `steps 400 to 420` when the place is an interval."""
    if span is None:
        return "the whole run"
    if span.first_step == span.last_step:
        return f"step {grouped(span.first_step)}"
    return f"steps {grouped(span.first_step)} to {grouped(span.last_step)}"


def since(step: int) -> str:
    """`step 14 200`."""
    return f"step {grouped(step)}"


def primary(finding: Finding, says: str) -> Evidence:
    """The sentence that a diagnosis stands on, resting on a finding."""
    return Evidence(says, span=finding.span, role="primary", about=finding.id or finding.signal)


def related(finding: Finding, says: str) -> Evidence:
    """A sentence beside the primary one, resting on a finding."""
    return Evidence(says, span=finding.span, role="related", about=finding.id or finding.signal)


def against(says: str, about: str = "") -> Evidence:
    """A sentence that speaks against the diagnosis, or takes credit from something."""
    return Evidence(says, role="against", about=about)


def some(*pieces: Evidence | None) -> tuple[Evidence, ...]:
    """Those pieces of evidence that there are."""
    return tuple(p for p in pieces if p is not None)


def sure(case: Case, metric: str, *, at_most: Confidence = Confidence.MEDIUM, plain: bool = True) -> Confidence:
    """How sure a diagnosis on this metric can be: low below 60 points, medium below 200, then `at_most`.

    `plain=False` (a borderline effect, a masked place) takes one step off. The point counts are those at which the
    rolling windows of the detectors are a third full and full (200 points, knowledge 0.1).
    """
    points = case.points(metric)
    level = 0 if points < 60 else 1 if points < 200 else 2
    level = min(level, at_most.rank) - (0 if plain else 1)
    return list(Confidence)[max(0, level)]


def worst(*levels: Severity) -> Severity:
    """The most severe of several."""
    return max(levels, key=lambda s: s.rank)


def strongest(findings: Iterable[Finding]) -> Finding | None:
    """The finding that stands out most, or None."""
    return max(findings, key=lambda f: f.strength, default=None)


def number(finding: Finding, *keys: str, default: float = 0.0) -> float:
    """The first of these measured numbers that the finding carries, else `default`."""
    return next((float(finding.numbers[k]) for k in keys if k in finding.numbers), default)


def recovers(spike: Finding) -> bool:
    """Whether an excursion came back inside the run."""
    back = number(spike, "recovered_after", default=math.inf)
    return 0 <= back < math.inf


# -- causes

Weighted = tuple[float, Evidence]


def when(test: object, weight: float, says: str) -> Weighted | None:
    """The weighted evidence when the test holds, else None."""
    return because(weight, says) if test else None


def cause(id: str, title: str, prior: float, *pieces: Weighted | None, would_decide: str = "") -> Hypothesis:
    """A hypothesis from those pieces of evidence that there are."""
    return Hypothesis(id, title, prior, tuple(p for p in pieces if p is not None), would_decide)


def memory(beta: float | None) -> str:
    """Over how many steps an average with this β remembers, for a sentence."""
    return grouped(1 / (1 - beta)) if beta is not None and 0 <= beta < 1 else "unknown"


# -- sizes of what is suggested


def calmer_lr(case: Case, onset: Span) -> float | None:
    """The last stable learning rate when it was clearly lower shortly before, else half of the one at the onset."""
    here = case.value_at("lr", onset.first_step) if case.has("lr") else case.number("optimizer.lr")
    if not here:
        return None
    if case.has("lr"):
        before = case.value_at("lr", max(case.first_step, onset.first_step - 2 * case.near()))
        if before and before < 0.7 * here and before > 0.05 * here:  # a warm-up's first steps are no working rate
            return _round(before)
    return _round(here / 2)


def healthy_clip(case: Case, onset: Span) -> float:
    """A clipping threshold just above the norms before the onset (their 90 % quantile); 1.0 when there are too few."""
    before = Span(case.first_step, onset.first_step - 1)
    norm = case.quantile("grad_norm", 0.9, before)
    return _round(norm) if norm and norm > 0 and onset.first_step - case.first_step >= 20 else 1.0


def warmup_floor(case: Case) -> int:
    """Steps of warm-up that Adam's variance needs, 2/(1-β2), but no more than a tenth of the run and no less than 20."""
    beta2 = case.number("optimizer.beta2")
    memory = 2 / (1 - beta2) if beta2 is not None and 0 <= beta2 < 1 else 2000.0
    planned = case.number("schedule.total_steps") or float(case.length)
    return int(max(20, min(memory, 0.1 * planned)))


def longer_warmup(case: Case) -> int | None:
    """Steps of warm-up to propose; None where the run already has as many, or where the optimiser keeps no second moment."""
    has = case.number("schedule.warmup_steps")
    if has is None and case.warmup_end is not None:
        has = float(case.warmup_end - case.first_step)
    floor = warmup_floor(case)
    return None if (has is not None and has >= floor) or adam(case) is False else floor


def adam(case: Case) -> bool | None:
    """Whether the optimiser is of Adam's family; None when it is not known."""
    name = str(case.setting("optimizer.name", "") or "").lower()
    return None if not name else ("adam" in name or "lamb" in name or "lion" in name)


def clip_threshold(case: Case) -> float | None:
    """The clipping threshold; 0.0 when clipping is known to be off, None when nothing says."""
    value = case.setting("gradient_clipping", "?")
    if value == "?":
        return None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else 0.0


def neutral_settings(case: Case) -> Evidence | None:
    """The note that the ZeRO stage changes memory, not numbers; None when no stage is set."""
    stage = case.setting("zero.stage")
    if stage is None:
        return None
    return against(
        f"ZeRO stage {stage} and contiguous_gradients lay out memory and leave every number as it is: no cause, no cure.", "zero.stage"
    )


def _round(value: float) -> float:
    return float(f"{value:.2g}")
