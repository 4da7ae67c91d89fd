"""When the loss rises for good: did the data change, or were the weights damaged? What moved with the loss, for every rule that asks.

Damaged weights raise the evaluation loss as much as the training loss; harder or wrong data leave it behind. New data can be
learned, so that the loss comes back down; wrong labels can't. A corrupt batch shows as a burst of a few steps, far above the level
that the run settles at afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from diagnose.case import Case, Hypothesis
from diagnose.model import Finding, Span
from diagnose.wording import Weighted, cause, when

LOSS, EVAL, NORM, NOISE = "loss/train", "loss/eval", "grad_norm", ("noise_scale", "noise_scale/trace")
HALF = 0.5  # share of a rise within a few points that makes it a step
BURST_LOSS, BURST_NORM = 10.0, 30.0  # times the later level, times any usual norm: a batch that no learning rate explains
BURST_STEPS = 5  # logged points: longer is no burst
STEADY, EXPLODED = 1.5, 3.0  # times the norm at the start of the run (knowledge G1)
STABLE = 0.2  # share of the run before the break that a learning rate has been borne for
SHORT_RATIO, SHORT_ROWS, SHORT_ALONE, SHORT_LEVEL = 1.3, 5, 2.5, 0.5  # ratio, rows, over the next step, nats: none of 2,400 healthy pieces
LARGE_BATCH = 64  # sequences: losses of such batches differ by 1 to 2 % from row to row (BigScience)
TAKEN_BACK = 0.3  # share of a step: label noise of the labelled runs leaves at least 0.7 of it to the end, new sources at most 0.65
TURN = 0.1  # share of the run: how near the lowest evaluation loss lies to the spike that turned it (evaluations are rare)
PART = 0.05  # share of the run that levels are taken over


@dataclass(frozen=True, slots=True)
class Break:
    """What stands beside a lasting rise of the loss; None where it is not logged.

    abrupt: most of the rise within a few points · recovered: share of the step that the run has taken back by its end ·
    eval_share: how much of the rise the evaluation loss has followed when the training loss is half-way up · burst: a few steps
    far above all that comes later · noisier: the noise scale rises too · steady, exploded: the gradient norm afterwards against
    the start of the run · constant: the learning rate has long been what it is there.
    """

    abrupt: bool
    burst: bool
    constant: bool
    early: bool
    recovered: float | None = None
    eval_share: float | None = None
    noisier: Finding | None = None
    steady: bool | None = None
    exploded: bool | None = None

    @property
    def data(self) -> bool:
        """Whether the evaluation loss stays behind: the weights are as good as before."""
        return self.eval_share is not None and self.eval_share < HALF

    @property
    def damage(self) -> bool:
        """Whether the evaluation loss rises as much as the training loss."""
        return self.eval_share is not None and self.eval_share > 1.5 * HALF


def look(case: Case, rise: Finding) -> Break:
    """What moved with a rise of the training loss (a divergence, a level shift, or a growth of the gradient norm)."""
    start, wide = rise.onset.first_step, _wide(case)
    now = Span(rise.onset.last_step, rise.onset.last_step + wide)
    begun, after = case.level(NORM, _first(case)), case.level(NORM, now)
    peak = case.highest(NORM, now)
    return Break(
        abrupt=rise.kind == "level-shift" or rise.numbers.get("abrupt", 0.0) >= HALF,
        burst=_burst(case, rise),
        constant=_constant(case, start),
        early=start - case.first_step <= 0.1 * case.length,
        recovered=_recovered(case, rise),
        eval_share=_eval_share(case, rise),
        noisier=_noisier(case, rise),
        steady=None if after is None or not begun else after <= STEADY * max(begun, case.level(NORM, _before(case, rise)) or 0.0),
        exploded=None if after is None or peak is None or not begun else after >= EXPLODED * begun or peak >= BURST_NORM / EXPLODED * begun,
    )


def in_short_log(case: Case) -> Finding | None:
    """A break of the loss in a log of a few rows that stands alone among them, or that a second signal or a large batch confirms."""
    found = next(iter(case.found("short-break", LOSS, direction="up", masked=False)), None)
    if found is None or found.size < SHORT_RATIO:
        return None
    numbers = found.numbers
    plain = numbers["base"] >= SHORT_LEVEL and numbers["rows"] >= SHORT_ROWS and (numbers["alone"] >= SHORT_ALONE or numbers["alone"] == 0)
    batch = case.number("batch.global") or case.level("batch_size") or 0.0
    calm = batch >= LARGE_BATCH and numbers["base"] >= 1.0  # the noise of a large batch is a few per cent
    return found if plain or calm or _confirmed(case, found) else None


def _confirmed(case: Case, found: Finding) -> bool:
    around = Span(found.onset.first_step, found.span.last_step)
    norm = [f for f in case.found("short-break", NORM, direction="up") if f.size >= EXPLODED and f.onset.overlaps(around)]
    broken = case.found("nonfinite", (LOSS, NORM), within=around) or case.facts.get("loss_field_missing") is not None
    scale, low = case.value_at("loss_scale", found.onset.first_step), case.lowest("loss_scale", around)
    return bool(norm or broken) or (scale is not None and low is not None and 0 < low <= scale / 4)


def left_behind(case: Case, spike: Finding) -> bool:
    """Whether the evaluation loss rose by a quarter of the spike or more and stays there, while the training loss came back."""
    before, base = case.value_at(EVAL, spike.onset.first_step), case.level(LOSS, _before(case, spike))
    peak = case.level(LOSS, Span(spike.onset.first_step, spike.onset.last_step + case.near()))
    end, train = case.level(EVAL, _late(case)), case.level(LOSS, _late(case))
    back = spike.onset.first_step + int(min(spike.numbers.get("recovered_after", 0.0), float(case.length)))
    then = case.value_at(EVAL, back + 1)
    if before is None or base is None or peak is None or end is None or train is None or then is None or peak <= base:
        return False
    turns = any(f.onset.overlaps(spike.onset, max(case.near(), round(TURN * case.length))) for f in case.found("eval-minimum", EVAL))
    rise, part = end - before, (peak - base) / 4
    return train < base + part and rise >= part and (then - before >= part or (turns and then > before))


# -- causes that every lasting rise of the loss shares


def label_noise(seen: Break, prior: float, *more: Weighted | None) -> Hypothesis:
    """Wrong labels from one step on."""
    return cause(
        "label-noise",
        "A share of the labels is wrong from there on",
        prior,
        when(seen.abrupt, 1, "The loss steps up at once."),
        when(not seen.abrupt, -2, "The loss rises slowly."),
        when(seen.data, 2, "The evaluation loss stays behind: the weights are as good as before."),
        when(seen.damage, -1, "The evaluation loss rises as much."),
        when(_kept(seen), 1, "The loss does not come back: this can't be learned."),
        when(_taken_back(seen), -1, "The loss comes back down: what changed can be learned."),
        when(seen.burst, -2, "A few steps stand far above all that comes later."),
        *more,
    )


def noise_growing(seen: Break, prior: float, *more: Weighted | None) -> Hypothesis:
    """Data or labels that become noisier and noisier."""
    return cause(
        "noise-growing",
        "The data or the labels become noisier and noisier",
        prior,
        when(not seen.abrupt, 1, "The loss rises slowly."),
        when(seen.abrupt, -3, "The loss steps up at once."),
        when(seen.data, 2, "The evaluation loss stays behind: the weights are as good as before."),
        when(seen.damage, -1, "The evaluation loss rises as much."),
        when(seen.noisier, 3, "The gradient noise scale rises with it."),
        when(seen.steady, 1, "The gradient norm stays as it was at the start of the run."),
        when(seen.exploded, -2, "The gradient norm grows far beyond any earlier one."),
        when(seen.early, -2, "It begins in the first tenth of the run."),
        when(seen.burst, -3, "A few steps stand far above all that comes later."),
        *more,
        would_decide="" if seen.noisier else "the gradient noise scale",
    )


def data_shift(seen: Break, prior: float, *more: Weighted | None) -> Hypothesis:
    """Other data from one step on."""
    return cause(
        "data-shift",
        "The data come from another source from there on",
        prior,
        when(seen.abrupt, 1, "The loss steps up at once."),
        when(not seen.abrupt, -1, "The loss rises slowly."),
        when(seen.data, 1, "The evaluation loss stays behind: the weights are as good as before."),
        when(_taken_back(seen), 1, "The loss comes back down: what changed can be learned."),
        when(_kept(seen), -1, "The loss does not come back: this can't be learned."),
        when(seen.burst, -2, "A few steps stand far above all that comes later."),
        *more,
        would_decide="the loss per data source",
    )


def spike_not_recovered(seen: Break, prior: float, *more: Weighted | None) -> Hypothesis:
    """One batch that destroys the weights."""
    return cause(
        "spike-not-recovered",
        "One corrupt batch threw the weights away, and the run never returned",
        prior,
        when(seen.burst, 3, "A few steps stand far above all that comes later."),
        when(not seen.abrupt, -2, "The loss rises slowly."),
        when(seen.data, -2, "The evaluation loss stays behind: the weights are as good as before."),
        *more,
        would_decide="the data position: a replay from a checkpoint breaks at the same batch",
    )


def _kept(seen: Break) -> bool:
    return seen.abrupt and seen.recovered is not None and seen.recovered < TAKEN_BACK


def _taken_back(seen: Break) -> bool:
    return seen.abrupt and seen.recovered is not None and seen.recovered >= TAKEN_BACK


# -- what is looked at


def _wide(case: Case) -> int:
    return max(case.near(), round(PART * case.length))


def _first(case: Case) -> Span:
    return Span(case.first_step, case.first_step + _wide(case))


def _before(case: Case, rise: Finding) -> Span:
    return Span(rise.onset.first_step - _wide(case), rise.onset.first_step - 1)


def _late(case: Case) -> Span:
    return Span(case.last_step - 2 * _wide(case), case.last_step)


def _burst(case: Case, rise: Finding) -> bool:
    """Whether a few steps at the onset lie far above what comes later (loss) or ever came before (gradient norm)."""
    per = int(case.facts.get("steps_per_point", 1) or 1)
    close = Span(rise.onset.first_step, rise.onset.last_step + BURST_STEPS * per)
    later = Span(close.last_step + 1, close.last_step + _wide(case))
    loss, settled = case.highest(LOSS, close), case.level(LOSS, later)
    norm, usual = case.highest(NORM, close), case.quantile(NORM, 0.9, Span(case.first_step, rise.onset.first_step - 1))
    rests = case.level(NORM, later)
    by_loss = loss is not None and settled is not None and settled > 0 and loss >= BURST_LOSS * settled
    by_norm = bool(norm and usual and rests is not None and norm >= BURST_NORM * max(usual, rests))
    return by_loss or by_norm


def _recovered(case: Case, rise: Finding) -> float | None:
    """Share of the step that is taken back by the end of the run; None for a slow rise."""
    before = case.level(LOSS, _before(case, rise))
    after = case.level(LOSS, Span(rise.onset.last_step, rise.onset.last_step + _wide(case)))
    end = case.level(LOSS, _late(case))
    if before is None or after is None or end is None or after <= before:
        return None
    return (after - end) / (after - before)


def _eval_share(case: Case, rise: Finding) -> float | None:
    """Rise of the evaluation loss over that of the training loss, when the latter is half-way up; None without evaluations."""
    start, wide = rise.onset.first_step, _wide(case)
    before, eval_before = case.level(LOSS, _before(case, rise)), case.value_at(EVAL, start)
    top = max((case.level(LOSS, Span(a, a + wide)) or 0.0 for a in range(start, case.last_step, wide)), default=0.0)
    if before is None or eval_before is None or top <= before:
        return None
    for a in range(rise.onset.last_step, case.last_step, wide):
        here = Span(a, a + wide)
        train, held = case.level(LOSS, here), case.level(EVAL, here)
        if train is not None and held is not None and train - before >= HALF * (top - before):
            return (held - eval_before) / (train - before)
    return None


def _noisier(case: Case, rise: Finding) -> Finding | None:
    """A rise of the gradient noise scale, or of its trace, that lasts beyond the onset."""
    ups = (*case.found("drift", NOISE, direction="up"), *case.found("level-shift", NOISE, direction="up"))
    return next((f for f in ups if f.span.last_step > rise.onset.last_step and f.span.last_step > case.first_step + case.length // 3), None)


def _constant(case: Case, start: int) -> bool:
    """Whether the learning rate of the onset has been borne for a fifth of the run."""
    rate = case.value_at("lr", start)
    since = case.first_step_where("lr", 0.8 * rate, float("inf")) if rate else None
    return since is not None and start - since >= STABLE * case.length
