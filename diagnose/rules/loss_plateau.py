"""The loss stops falling long before the run ends.

## What it looks for
A long stretch to the end of the log in which the smoothed loss does not fall, although it stands high; above all near ln(classes),
where the model has learned nothing.

## Why it matters
The rest of the run is wasted, and the reason is often one setting.

## How it decides
The end of a converged run is a plateau as well, so one is a fault only with a reason: the loss stands at ln(C) of the classes
or vocabulary; nothing was ever learned; the learning rate fell to almost nothing before the last quarter of the run; or it is tiny from the
start and the whole run hardly moved the loss. A plateau without any of these is left alone.

## When it is wrong
A task with a high irreducible loss, or a schedule that holds its minimum on purpose, looks the same.

## What to do
Try to overfit one batch: if that fails the model or the labels are at fault. Raise a tiny learning rate, extend a schedule that
ends early, and look at dead layers and label alignment at ln(C).

## References
Karpathy, "A Recipe for Training Neural Networks"; UMLAUT (Schoop et al. 2021); AutoTrainer (Zhang et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Evidence, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, longer_warmup, num, number, percent, primary, related, since, some, sure, when

LOSS = "loss/train"
TRIVIAL = 0.02  # of ln(C): the loss of a guess (knowledge O12)
EARLY = 0.25  # of the run after the end of the schedule: more than any planned cool-down at the minimum
ENDED = 0.05  # of the peak rate: too small to move the loss (knowledge O16)
FITTED = 0.01  # of the first loss: what remains after a fit
LEARNED = 0.1  # share of the first loss that a run which learns has lost by its plateau
ENOUGH = 20  # points
GUESS = 0.3  # nats between the first loss and -ln of the first accuracy, both noisy
FROM_SCRATCH = 4.5  # nats: a first loss that only an untrained language model has (ln 128 = 4.85 for one of bytes)
RIVALS = ("vanishing-gradient", "dead-layer", "warmup-too-short", "loss-divergence", "zero-loss", "gradient-underflow")
TINY = {"adam": 1e-5, "other": 1e-4}  # rates below which a run from scratch hardly moves (knowledge O11, a fifth of usual ones)


def judge(case: Case) -> Iterator[Diagnosis]:
    """A schedule that ended early, else a plateau at a trivial level, else a rate too small to learn with."""
    if case.found("divergence", LOSS) or any(number(f, "to_end") > 0 for f in case.found("nonfinite", LOSS)):
        return
    last = _final_plateau(case)
    ended = _schedule_end(case)
    if ended is not None and not _fitted(case):
        yield _ended(case, ended, last)
        return
    if last is not None:
        level = number(last, "level", default=case.level(LOSS, last.span) or 0.0)
        trivial = _trivial(case, level)
        if trivial or _unlearned(case, level):
            yield _stuck(case, last, level, trivial)
            return
    slow = _slow(case)
    if slow is not None:
        yield slow


def _final_plateau(case: Case) -> Finding | None:
    """The plateau that lasts to the end, when the loss is not a perfect fit."""
    flat = [f for f in case.found("plateau", LOSS, masked=False) if f.span.last_step >= case.last_step - case.length // 10]
    level = case.level(LOSS, flat[-1].span) if flat else None
    return flat[-1] if flat and level is not None and level > 1e-3 else None


def _fitted(case: Case) -> bool:
    """Whether hardly any loss is left: then a rate of zero costs nothing."""
    first, late = case.value_at(LOSS, case.first_step), case.level(LOSS, Span(case.last_step - case.length // 10, case.last_step))
    return first is not None and late is not None and late < FITTED * first


def _ended(case: Case, ended: Finding, last: Finding | None) -> Diagnosis:
    start = ended.onset.first_step
    share = number(ended, "share")
    return Diagnosis(
        "loss-plateau",
        f"The learning rate is almost zero from {since(start)} on, for the last {percent(share)} of the run: nothing is learned there.",
        Severity.MAJOR if share >= 0.4 or last is not None else Severity.MINOR,
        confidence=sure(case, "lr"),
        onset=ended.onset,
        evidence=some(
            primary(
                ended,
                f"The learning rate falls from {num(number(ended, 'peak'))} to {num(number(ended, 'minimum'))} by {since(start)}"
                " and stays there.",
            ),
            related(last, f"The loss stands still from {since(last.onset.first_step)} on.") if last else None,
        ),
        causes=(causes := _causes(case, False, ended)),
        fixes=_fixes(case, causes, ended),
        rivals=RIVALS,
    )


def _stuck(case: Case, last: Finding, level: float, trivial: bool) -> Diagnosis:
    place = "the loss of a guess" if trivial else "close to where it began"
    return Diagnosis(
        "loss-plateau",
        f"The training loss stands still at {num(level)} from {since(last.onset.first_step)} on, {place}.",
        Severity.MAJOR,
        confidence=sure(case, LOSS, plain=trivial),
        onset=last.onset,
        evidence=some(
            primary(
                last,
                f"The loss stays near {num(level)} for {percent((last.span.last_step - last.onset.first_step) / case.length)} of the run.",
            ),
            Evidence(f"ln of the number of classes is {num(float(case.facts['classes_ln']))}.", about=LOSS) if trivial else None,
        ),
        causes=(causes := _causes(case, trivial, None)),
        fixes=_fixes(case, causes, None),
        rivals=RIVALS,
    )


def _slow(case: Case) -> Diagnosis | None:
    """A rate so small that the whole run hardly moved the loss, while the gradient is as large as at the start."""
    first, late = case.value_at(LOSS, case.first_step), case.level(LOSS, Span(case.last_step - case.length // 10, case.last_step))
    rate = case.highest("lr") or case.number("optimizer.lr")
    if not _rate_is_tiny(case) or first is None or late is None or not 0 <= first - late < LEARNED * first:
        return None
    if case.points(LOSS) < ENOUGH or case.first_step > case.length:
        return None  # a piece of a log, from the middle of a run: that it hardly moves there says nothing
    scratch = first > FROM_SCRATCH
    if not scratch and not _trivial(case, first) and not _guesses(case, first):
        return None  # a rate of 1e-6 is usual when a trained model is tuned further
    found = Finding("level", LOSS, case.whole, onset=case.whole, size=first - late)
    return Diagnosis(
        "loss-plateau",
        f"The training loss hardly falls, from {num(first)} to {num(late)} in the whole run, at a learning rate of at most {num(rate)}.",
        Severity.MAJOR if scratch else Severity.MINOR,
        confidence=sure(case, LOSS, plain=scratch),
        onset=None,
        evidence=(primary(found, f"The loss loses {percent((first - late) / first)} in {num(float(case.length))} steps."),),
        causes=(causes := _causes(case, False, None)),
        fixes=_fixes(case, causes, None),
        rivals=RIVALS,
    )


def _trivial(case: Case, level: float) -> bool:
    guess = case.facts.get("classes_ln")
    return isinstance(guess, (int, float)) and guess > 0 and abs(level - guess) <= TRIVIAL * guess


def _guesses(case: Case, first: float) -> bool:
    """Whether accuracy and loss of the first steps are those of a guess, 1/C and ln C."""
    right = case.level("accuracy", Span(case.first_step, case.first_step + case.length // 10))
    return right is not None and 0 < right < 1 and abs(first + math.log(right)) <= GUESS


def _unlearned(case: Case, level: float) -> bool:
    """Whether the loss never got far below its first value."""
    if case.facts.get("resumes"):
        return False  # the first logged loss may be that of a resumed model
    first, lowest = case.value_at(LOSS, case.first_step), case.quantile(LOSS, 0.05)
    return (
        first is not None
        and lowest is not None
        and first > 0
        and first - max(level, 0.0) < LEARNED * first
        and first - lowest < 2 * LEARNED * first
    )


def _schedule_end(case: Case) -> Finding | None:
    """Where the learning rate has fallen to almost nothing, when that is long before the end and no cycle brings it back."""
    ends = case.found("early-minimum", "lr")
    found = [f for f in ends if number(f, "minimum") <= ENDED * number(f, "peak") and number(f, "share") >= EARLY]
    return None if not found or case.facts.get("lr_cyclic") else found[0]


def _rate_is_tiny(case: Case) -> bool:
    peak = case.highest("lr") or case.number("optimizer.lr")
    name = str(case.setting("optimizer.name", "") or "").lower()
    return bool(peak) and float(peak or 1.0) < TINY["adam" if "adam" in name or not name else "other"]


def _causes(case: Case, trivial: bool, ended: Finding | None) -> tuple[Cause, ...]:
    dead = case.found("dead-layer")
    tiny = _rate_is_tiny(case)
    norm, start = case.level("grad_norm"), case.value_at("grad_norm", case.first_step)
    weak = norm is not None and norm < 1e-6
    return ranked(
        (
            cause(
                "lr-decayed-early",
                "The schedule ends long before the run",
                0.6,
                when(ended, 4, "The learning rate is almost zero from there on."),
                when(case.has("lr") and not ended, -3, "The learning rate does not end early."),
            ),
            cause(
                "lr-too-low",
                "The learning rate is far too low",
                0.8,
                when(tiny, 3, f"The peak learning rate is {num(case.highest('lr') or case.number('optimizer.lr'))}."),
                when(ended, -1, "It was enough until the schedule ended."),
                when(not tiny, -1, "The learning rate is of a usual size."),
                when(norm and start and norm > 0.5 * start, 1, "The gradient norm stays as large as at the start."),
            ),
            cause(
                "lr-too-high",
                "The learning rate is so high that the model was wrecked in the first steps",
                0.5,
                when(trivial and not tiny, 1, "The loss is that of a guess."),
            ),
            cause(
                "post-norm",
                "A Post-LN model was wrecked without a warm-up",
                0.2,
                when(case.setting("model.norm_position") == "post", 3, "The model normalises after the residual sum."),
            ),
            cause(
                "label-misaligned",
                "The labels do not belong to the inputs",
                0.4,
                when(trivial, 1, "The loss is that of a guess."),
                would_decide="whether one batch can be overfitted",
            ),
            cause(
                "dead-relu",
                "Units or layers are dead",
                0.3,
                when(dead, 3, "A layer has no gradient."),
                when(weak, 1, f"The gradient norm is {num(norm)}."),
            ),
        )
    )


def _fixes(case: Case, causes: tuple[Cause, ...], ended: Finding | None) -> tuple[Fix, ...]:
    if ended is not None:
        return fix("fix-schedule", values={"total_steps": case.last_step}), fix("extend-schedule", values={"total_steps": case.last_step})
    peak = case.highest("lr") or case.number("optimizer.lr")
    test = fix("check-data")
    first = causes[0].id if causes else ""
    if first == "lr-too-low":
        return fix("raise-lr", values={"lr": float(f"{3 * peak:.2g}") if peak else None}), test
    slower = fix("lower-lr", values={"lr": float(f"{peak / 2:.2g}") if peak else None})
    steps = longer_warmup(case)
    warm = (fix("add-warmup", values={"steps": steps}),) if steps else ()
    if first == "dead-relu":
        return fix("change-activation"), slower, test
    return (slower, *warm, test) if first in ("lr-too-high", "post-norm") else (test, slower, *warm)


RULE = Rule(
    id="loss-plateau",
    title="The training loss stands still",
    family="dynamics",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=("lr", "grad_norm", "accuracy"),
    uses=("plateau", "early-minimum", "divergence", "nonfinite", "dead-layer"),
    judge=judge,
    examples=(
        fires(
            "the loss of a guess from the start",
            lambda: {LOSS: synth.with_plateau(synth.loss(first=2.3), at=0)},
            settings={"optimizer.lr": 0.1},
        ),
        fires(
            "a schedule that ends at two fifths of the run",
            lambda: {LOSS: synth.loss(), "lr": synth.joined(synth.rate(800, least=0.0), synth.constant(0.0, 1200, start=800))},
        ),
        quiet("a run that learned and converged", lambda: {LOSS: synth.with_plateau(synth.loss(), at=1500), "lr": synth.rate()}),
    ),
)
