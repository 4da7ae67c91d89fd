"""The loss swings with a fixed period that no schedule explains.

## What it looks for
A line in the spectrum of the training loss above its own noise, or an alternation from step to step (period two).

## Why it matters
Period two and growing rings mean that the step size is at the edge of stability. A period of the data means that batches
come in a fixed order, so that the optimiser chases the last ones.

## How it decides
The spectrum is compared with an AR(1) null, so that slow noise is no period. Periods of the learning rate are explained by
it (mask X2). Alternation present from the first step on and independent of the learning rate points to two loaders or two
ranks that log in turn.

## When it is wrong
With fewer than three periods in the log a trend looks like a swing. Length-grouped samplers give harmless periods.

## What to do
Period two: lower the learning rate. Ringing with a high momentum: lower momentum or β1. A period of the data: shuffle, and
set the epoch of the sampler.

## References
Cohen et al. (2103.00065, 2207.14484); Liu and Ma, Epochal Sawtooth Phenomenon (2410.10056).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Finding, Fix, Severity
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import calmer_lr, cause, num, number, percent, primary, related, some, strongest, sure, when

LOSS, NORM = "loss/train", "grad_norm"
LEAST = 0.005  # amplitude as a share of the loss below which a swing costs nothing
CLEAR = 1.0  # noise widths that a pattern of the gradient norm must have by itself
LARGE = 0.05  # amplitude from which it is more than minor


def judge(case: Case) -> Iterator[Diagnosis]:
    """The alternation if there is one, else the strongest period."""
    swings = [f for f in case.found("alternation", LOSS, masked=False) if not case.masks_at(f.span, "X2")]
    periods = [f for f in case.found("period", LOSS, masked=False) if not case.masks_at(f.span, "X2") and _share(case, f) >= LEAST]
    swing = strongest(swings) or strongest(periods)
    if swing is None:
        yield from _in_the_norm(case)
        return
    period = 2 * case.signals[LOSS].steps_per_point if swing.kind == "alternation" else number(swing, "period_steps")
    share = _share(case, swing)
    causes = _causes(case, swing, period)
    beside = strongest(case.found("alternation" if swing.kind == "alternation" else "period", NORM))
    yield Diagnosis(
        "loss-oscillation",
        f"The training loss oscillates with a period of {num(period)} steps and an amplitude of {percent(share)}.",
        Severity.MAJOR if share >= LARGE else Severity.MINOR,
        confidence=sure(case, LOSS, plain=share >= LEAST * 2),
        onset=swing.onset,
        period_steps=period,
        evidence=some(
            primary(
                swing,
                f"The loss repeats every {num(period)} steps with an amplitude of {num(number(swing, 'amplitude'))} noise widths.",
            ),
            related(beside, "The gradient norm swings too.") if beside else None,
        ),
        causes=causes,
        fixes=_fixes(case, swing, causes),
        rivals=("loss-divergence", "non-finite-loss", "overfitting"),
    )


def _in_the_norm(case: Case) -> Iterator[Diagnosis]:
    """A pattern that returns in the gradient norm and that the noise of the loss hides."""
    found = [f for f in case.found("period", NORM, masked=False) if not case.masks_at(f.span, "X2")]
    swing = strongest(f for f in found if number(f, "amplitude") >= CLEAR)
    if swing is None:
        return
    period = number(swing, "period_steps")
    causes = _causes(case, swing, period)
    yield Diagnosis(
        "loss-oscillation",
        f"The gradient norm repeats every {num(period)} steps; the loss is too noisy to show it.",
        Severity.MINOR,
        confidence=sure(case, NORM, plain=False),
        onset=swing.onset,
        period_steps=period,
        evidence=(primary(swing, f"The gradient norm repeats with an amplitude of {num(number(swing, 'amplitude'))} noise widths."),),
        causes=causes,
        fixes=_fixes(case, swing, causes),
        rivals=("loss-divergence", "non-finite-loss", "overfitting", "gradient-explosion", "loss-spike"),
    )


def _share(case: Case, swing: Finding) -> float:
    """The amplitude as a share of the level; findings on a log axis carry it as it is."""
    level = case.level(LOSS, swing.span)
    return swing.size if case.signals[LOSS].multiplicative or not level else swing.size / abs(level)


def _causes(case: Case, swing: Finding, period: float) -> tuple[Cause, ...]:
    two = swing.kind == "alternation" or period <= 2.2 * case.signals[LOSS].steps_per_point
    beta = case.number("optimizer.momentum") or case.number("optimizer.beta1")
    rings = beta is not None and 0.9 < beta < 1 and 6.28 * (1 / (1 - beta)) ** 0.5 * 0.7 <= period <= 20 / (1 - beta)
    start = swing.onset.first_step - case.first_step <= case.near()
    epoch = case.facts.get("steps_per_epoch")
    matches = isinstance(epoch, (int, float)) and epoch > 0 and abs(period / epoch - round(period / epoch)) < 0.03 and period >= 0.9 * epoch
    again = number(swing, "repeats") > 0
    return ranked(
        (
            cause(
                "period-two",
                "The step is too long across a sharp valley: the loss bounces between its sides",
                1.0,
                when(two, 4, "The period is two logged points."),
                when(not two, -4, f"The period is {num(period)} steps, not two."),
                when(two and not start, 1, "It begins in the middle of the run."),
            ),
            cause(
                "momentum-ringing",
                "High momentum is under-damped and rings",
                0.8,
                when(rings, 2, f"The period fits a momentum of {num(beta)}."),
                when(two, -3, "Ringing has a longer period."),
                when(again, -2, "The pattern is uneven; ringing is smooth."),
                when(beta is not None and beta >= 0.97, 2, f"The momentum is {num(beta)}."),
                when(beta is not None and beta <= 0.9, -1, f"The momentum is only {num(beta)}."),
            ),
            cause(
                "data-order",
                "Batches come in a fixed order, or a hard shard returns",
                1.0,
                when(matches, 3, f"The period is a multiple of the epoch ({num(float(epoch)) if matches and epoch else ''} steps)."),
                when(start, 1, "It is there from the first step on."),
                when(again, 2, "The same uneven pattern returns point for point, as when the same batches come again."),
                when(two, -2, "The period is two logged points."),
                when(beta is not None and beta >= 0.97 and rings, -1, "The period fits the momentum as well."),
                would_decide="" if epoch else "the epoch, or the source of each batch",
            ),
            cause("lr-too-high", "The learning rate is too high", 0.4, when(not start, 1, "It begins in the middle of the run.")),
        )
    )


def _fixes(case: Case, swing: Finding, causes: tuple[Cause, ...]) -> tuple[Fix, ...]:
    slower = fix("lower-lr", values={"lr": calmer_lr(case, swing.onset)})
    shuffle = fix("shuffle-data")
    softer = fix("lower-momentum", values={"momentum": 0.9})
    best = causes[0].id if causes else ""
    if best == "data-order":
        return shuffle, slower
    return (softer, slower, shuffle) if best == "momentum-ringing" else (slower, shuffle)


RULE = Rule(
    id="loss-oscillation",
    title="The training loss oscillates",
    family="dynamics",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=(NORM, "lr"),
    uses=("period", "alternation"),
    judge=judge,
    examples=(
        fires("a swing of 8 % every sixty steps", lambda: {LOSS: synth.with_period(synth.loss(), period=60.0, amplitude=0.08)}),
        fires("by turns higher and lower from the middle on", lambda: {LOSS: synth.with_alternation(synth.loss(), amplitude=0.03, at=800)}),
        quiet("noise alone", lambda: {LOSS: synth.loss(width=0.04)}),
    ),
)
