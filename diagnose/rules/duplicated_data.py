"""All ranks read the same data.

## What it looks for
A gradient noise scale of about zero, or of either sign around zero: the gradient of one micro-batch equals that of the whole batch.

## Why it matters
The batch is as large as one micro-batch in effect, and the rest of the machines computes the same thing again. The loss shows
nothing.

## How it decides
In a run that trains, the noise scale is positive and of the order of the batch. It counts as collapsed when its median from some
step on is below a tenth of a micro-batch (or a hundredth of its earlier level), for at least a tenth of the run.

## When it is wrong
Per-step estimates scatter around zero when the micro-batches are almost as large as the batch.

## What to do
Shard the sampler by rank (DistributedSampler, `set_epoch`) and give each rank its own seed.

## References
McCandlish et al. (1812.06162), appendix A; torch.utils.data.distributed.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Finding, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, number, percent, primary, since, sure

GNS, GAP = "noise_scale", "noise_scale/gap"
EQUAL = 1e-3  # of the squared norm: what different micro-batches never agree to (float32 sums agree to 1e-6)


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first collapse of the noise scale."""
    fell = next((f for f in case.found("collapse", GNS) if _counts(case, f)), None) or _equal(case)
    if fell is None:
        return
    level, before = case.level(GNS, fell.span), number(fell, "before")
    start = fell.onset.first_step
    whole = start <= case.first_step + case.near()
    yield Diagnosis(
        "duplicated-data",
        f"The gradient noise scale is about zero {'in the whole run' if whole else f'from {since(start)} on'}:"
        " the micro-batches of a step are the same.",
        Severity.MAJOR,
        confidence=sure(case, GNS),
        onset=None if whole else fell.onset,
        evidence=(
            primary(
                fell,
                f"The median noise scale is {num(level)} over {percent((fell.span.last_step - start) / case.length)} of the run"
                + (f", after {num(before)} before." if before > 0 and not whole else "."),
            ),
        ),
        causes=ranked(
            (
                cause(
                    "same-data-on-all-ranks",
                    "Every rank reads the same samples",
                    1.0,
                    would_decide="the indices of the samples of each rank",
                ),
                cause(
                    "estimator-invalid",
                    "The two gradient norms are not of a part and the whole",
                    0.2,
                    would_decide="the two batch sizes of the estimate",
                ),
            )
        ),
        fixes=(fix("shard-sampler"), fix("check-data", values={"step": start})),
    )


def _equal(case: Case) -> Finding | None:
    """The last tenth of the run or more in which both squared norms agree to a thousandth, from its first step on."""
    late = Span(case.last_step - case.length // 10, case.last_step)
    if case.share_of(GAP, -EQUAL, EQUAL, late) < 0.9:
        return None
    if case.share_of(GAP, -EQUAL, EQUAL) >= 0.9:
        return Finding("level", GAP, case.whole, onset=Span(case.first_step, case.first_step))
    start = case.first_step_where(GAP, -EQUAL, EQUAL) or late.first_step
    start = start if case.share_of(GAP, -EQUAL, EQUAL, Span(start, case.last_step)) >= 0.9 else late.first_step
    return Finding("level", GAP, Span(start, case.last_step), onset=Span(start, start))


def _counts(case: Case, fell: Finding) -> bool:
    micro = case.number("batch.micro") or 1.0
    level = case.level(GNS, fell.span)
    before = number(fell, "before")
    lasts = fell.span.last_step - fell.onset.first_step >= case.length / 10
    return level is not None and lasts and (level < 0.1 * micro or (before > 0 and level < before / 100))


RULE = Rule(
    id="duplicated-data",
    title="All ranks read the same data",
    family="noise-scale",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(f"{GNS}|{GAP}",),
    uses=("collapse",),
    judge=judge,
    examples=(
        fires(
            "a noise scale that is nothing from the start",
            lambda: {"grad_sq/small": synth.norm(1000), "grad_sq/big": synth.norm(1000), "loss/train": synth.loss(1000)},
            settings={"gns.small": 4, "gns.big": 32},
        ),
        quiet(
            "a noise scale of some batches", lambda: {GNS: synth.noise_scale(), "loss/train": synth.loss(1000)}, settings={"batch.micro": 4}
        ),
    ),
)
