"""The gradient noise scale rises while the loss does not fall.

## What it looks for
A rise of the gradient noise scale (GNS, the batch size at which noise and signal of the gradient are equal) by more than a
factor of two while the loss rises at a constant learning rate; a GNS many times the batch size to the end of the run.

## Why it matters
A rising noise scale that convergence does not explain means noisier data or labels; a batch far below it wastes steps.

## How it decides
GNS rises in healthy runs: as |G|² falls, and up to seven times where the learning rate decays. So the rise alone is *info* at
most, and counts (*minor*) only where the loss rises with it and the learning rate stands still. The trace of the covariance
against |G|² tells noise from convergence. A GNS far above the batch size is *info* by itself.

## When it is wrong
A per-step ratio is biased and very noisy; averages over fewer than 100 steps of both parts mislead. Mixed units (tokens and
sequences) shift it by the sequence length.

## What to do
Check the data and labels from the onset on. If they are right, raise the batch (by accumulation) towards the noise scale.
Where it is not logged: log the squared gradient norm of one micro-batch and of the whole batch, every step.

## References
McCandlish et al. (1812.06162); Merrill et al. (2505.23971); Gray et al. (2411.00999).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Confidence, Diagnosis, Finding, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import calmer_lr, cause, num, number, primary, related, since, some, sure, when

GNS, LOSS = "noise_scale", "loss/train"
TWICE = 0.69  # ln 2 over the run: label noise doubled it in the labelled runs (knowledge N1)
FAR = 20.0  # times the batch: above it more than 95 % of each step is noise


def judge(case: Case) -> Iterator[Diagnosis]:
    """A rise that the loss confirms; else a batch far below the noise scale."""
    rise = next(
        (f for f in (*case.found("drift", GNS, direction="up"), *case.found("level-shift", GNS, direction="up")) if _rises(f)), None
    )
    if rise is not None and (up := _loss_rises(case, rise)) is not None:
        yield _drift(case, rise, up)
        return
    far = _far_above_batch(case)
    if far is not None:
        yield far


def _rises(rise: Finding) -> bool:
    if rise.kind == "level-shift":
        return number(rise, "ratio", default=1.0) >= 2.0
    return number(rise, "total", default=rise.size) >= TWICE


def _loss_rises(case: Case, rise: Finding) -> Finding | None:
    ups = (
        *case.found("divergence", LOSS, masked=False),
        *case.found("level-shift", LOSS, direction="up", masked=False),
        *case.found("drift", LOSS, direction="up"),
    )
    late = next((f for f in ups if f.span.overlaps(rise.span) and f.span.last_step > _early(case).last_step), None)
    if late is None:
        return None
    before, after = case.value_at("lr", late.onset.first_step), case.value_at("lr", case.last_step)
    falls = before is not None and after is not None and after < 0.5 * before
    return None if falls and late.kind == "drift" else late


def _drift(case: Case, rise: Finding, up: Finding) -> Diagnosis:
    before, after = case.level(GNS, _early(case)), case.level(GNS, _late(case))
    trace = next((f for f in case.found("drift", "noise_scale/trace", direction="up")), None)
    signal = next((f for f in case.found("drift", "noise_scale/g2", direction="down")), None)
    onset = next((f.onset for f in (up, rise) if f.kind != "drift"), rise.onset)  # a drift knows no onset
    return Diagnosis(
        "noise-scale-drift",
        f"The gradient noise scale rises from {num(before)} to {num(after)} while the loss rises too,"
        f" from about {since(up.onset.first_step)} on.",
        Severity.MINOR,
        confidence=sure(case, GNS, plain=trace is not None),
        onset=onset,
        evidence=some(
            primary(rise, f"The noise scale goes from {num(before)} in the first third to {num(after)} in the last."),
            related(up, f"The loss rises from {since(up.onset.first_step)} on."),
            related(trace, "The variance of the gradient (its trace) rises.") if trace else None,
            related(signal, "The squared gradient norm falls, which convergence does as well.") if signal else None,
        ),
        causes=_causes(case, trace, signal),
        fixes=(
            fix("check-data", values={"step": onset.first_step}),
            fix("larger-batch", values={"batch": round(after) if after and after > 0 else None}),
            fix("lower-lr", values={"lr": calmer_lr(case, onset)}),
        ),
        rivals=("duplicated-data",),
    )


def _early(case: Case) -> Span:
    return Span(case.first_step, case.first_step + case.length // 3)


def _late(case: Case) -> Span:
    return Span(case.last_step - case.length // 3, case.last_step)


def _causes(case: Case, trace: Finding | None, signal: Finding | None) -> tuple[Cause, ...]:
    parts = case.has("noise_scale/trace")
    return ranked(
        (
            cause(
                "noise-growing",
                "The labels or the data become noisier and noisier",
                1.0,
                when(trace, 2, "The variance of the gradient rises."),
                when(signal and not trace, -1, "Only the squared gradient norm moves."),
                would_decide="" if parts else "the trace of the gradient covariance and |G|², apart",
            ),
            cause("lr-too-high", "The run becomes unstable", 0.5, when(case.found("growth", "grad_norm"), 1, "The gradient norm grows.")),
            cause(
                "batch-below-critical",
                "The batch is too small for this stage of the training",
                0.4,
                when(signal, 1, "The squared gradient norm falls."),
            ),
        )
    )


def _far_above_batch(case: Case) -> Diagnosis | None:
    level = case.level(GNS, _late(case))
    batch = case.number("batch.global") or case.level("batch_size", _late(case))
    if not level or not batch or level < FAR * batch or case.share_of(GNS, -1e300, 0.0, _late(case)) > 0.1:
        return None  # many negative estimates: the estimator is too noisy to judge (knowledge N5)
    found = Finding("level", GNS, _late(case), onset=case.whole, size=level / batch)
    return Diagnosis(
        "noise-scale-drift",
        f"The batch of {num(batch)} is far below the gradient noise scale of {num(level)}: most of each step is noise.",
        Severity.MINOR,
        confidence=sure(case, GNS, at_most=Confidence.LOW),
        onset=None,
        evidence=(
            primary(found, f"In the last third the noise scale is {num(level)}, {num(level / batch)} times the batch of {num(batch)}."),
        ),
        causes=ranked((cause("batch-below-critical", "The batch is far below the critical one", 1.0),)),
        fixes=(
            fix("larger-batch", values={"batch": round(min(level / 2, 8 * batch))}),
            fix("lower-lr", values={"lr": calmer_lr(case, case.whole)}),
        ),
        rivals=("duplicated-data",),
    )


RULE = Rule(
    id="noise-scale-drift",
    title="The gradient noise scale drifts up",
    family="noise-scale",
    severity=Severity.MINOR,
    status="preview",
    since="0.1",
    needs=(GNS,),
    wants=(LOSS, "noise_scale/g2", "noise_scale/trace", "lr"),
    uses=("drift", "level-shift", "divergence", "growth"),
    judge=judge,
    examples=(
        fires(
            "fourfold, while the loss rises",
            lambda: {
                GNS: synth.with_drift(synth.noise_scale(), at=300, total=2.0),
                LOSS: synth.with_divergence(synth.loss(1000), at=500, rise=0.4, over=400),
            },
        ),
        quiet(
            "twofold while the loss falls, as in any run that converges",
            lambda: {GNS: synth.with_drift(synth.noise_scale(), at=0, total=0.8), LOSS: synth.loss(1000)},
        ),
    ),
)
