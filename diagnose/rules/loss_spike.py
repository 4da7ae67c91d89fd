"""The training loss jumps for several steps and comes back.

## What it looks for
Several steps in a row far above the loss before them, after which the loss returns to its old level. A single high step
counts only when the gradient norm (or a non-finite value) jumps at the same step; then it is minor.

## Why it matters
Each spike costs the steps until recovery, and repeated or slow ones often precede a divergence.

## How it decides
Three of five points more than four noise widths up (none of 74 healthy runs has that), at least 2 % in size, and a recovery
inside the run. What never returns belongs to `loss-divergence`. Spikes that a change of the learning rate, of the batch or
a resume explains are left out. Fast (at most 200 steps) is minor; slow, or three or more, is major.

## When it is wrong
Batches of very different kinds, logged one by one, look like bad batches. A log averaged over many steps hides fast spikes.

## What to do
One fast spike: look at the batch and go on. Repeated or slow ones: go back about 100 steps before the onset and skip some
hundred batches, clip tighter, shorten Adam's memory (β2), then lower the learning rate. Skipping data often only moves the
problem, so its success is uncertain.

## References
PaLM (arXiv 2204.02311, 5.1); BLOOM-176B chronicles; Molybog et al. (2304.09871); Wortsman et al. (2304.13013).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.breaks import in_short_log, left_behind
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import (
    adam,
    calmer_lr,
    cause,
    clip_threshold,
    grouped,
    healthy_clip,
    memory,
    num,
    number,
    primary,
    recovers,
    related,
    since,
    some,
    sure,
    when,
)

LOSS = "loss/train"
SMALLEST = 0.02  # of the loss before: below this a spike costs nothing (knowledge O4)
APART = 2.0  # times the z of the ordinary excursions: in a log full of jumps one more is no event (1.2 in 54 healthy runs)
ALONE, ALONE_APART, ALONE_RATIO = (
    12.0,
    3.0,
    1.5,
)  # z, the same, and ratio of one step that stands alone: no healthy run
ABOVE_START = 3.0  # times the first loss: no batch of a healthy run is that much worse than an untrained model
EACH = 5  # single steps that are told one by one; more are one diagnosis
SLOW = 200  # steps to recovery that divide fast from slow (knowledge O4)


def judge(case: Case) -> Iterator[Diagnosis]:
    """One diagnosis for each incident of persistent spikes (for all of them when there are many); without those, for single steps."""
    short = in_short_log(case)
    if short is not None and short.numbers["returns"]:
        yield _few_rows(case, short)
        return
    spikes = [f for f in case.found("spike", LOSS, masked=False) if _is_spike(case, f)]
    if spikes:
        apart = _incidents(case, spikes)
        for group in apart if len(apart) <= EACH else [spikes]:
            yield _persistent(case, group, len(spikes))
        return
    jumps = [(j, _norm_jump(case, j)) for j in case.found("jump", LOSS, masked=False)]
    jumps = [(j, g) for j, g in jumps if _stands_out(case, j, g)]
    if len(jumps) > EACH:
        yield _single(case, jumps)
    else:
        for pair in jumps:
            yield _single(case, [pair])


def _few_rows(case: Case, short: Finding) -> Diagnosis:
    base, peak, last = (num(number(short, key)) for key in ("base", "peak", "last"))
    return Diagnosis(
        "loss-spike",
        f"The training loss spikes at {since(short.onset.last_step)}, from {base} to {peak}, and is back at {last} at the end of the log.",
        Severity.MINOR,
        confidence=sure(case, LOSS),
        onset=short.onset,
        end_step=short.span.last_step,
        evidence=(primary(short, f"The loss goes from {base} to {peak} within a row and comes back."),),
        causes=_causes(case, short, 1),
        fixes=_fixes(case, short, Severity.MINOR, "bad-batch"),
        rivals=("non-finite-loss", "loss-divergence"),
    )


def _incidents(case: Case, spikes: list[Finding]) -> list[list[Finding]]:
    """Spikes with less than a twentieth of the run between them are one incident."""
    groups: list[list[Finding]] = []
    for spike in spikes:
        if groups and spike.onset.first_step - groups[-1][-1].span.last_step <= max(5 * case.near(), case.length // 20):
            groups[-1].append(spike)
        else:
            groups.append([spike])
    return groups


def _stands_out(case: Case, jump: Finding, norm: Finding | None) -> bool:
    """Whether a single step is an event: far from the ordinary excursions, and told by a second signal or too large to need one."""
    z, others = number(jump, "z"), max(1.0, number(jump, "others"))
    if norm is not None:
        return max(z / others, number(norm, "z") / max(1.0, number(norm, "others", default=number(norm, "z")))) >= APART
    first = case.value_at(LOSS, case.first_step)
    worse = first is not None and first > 0 and number(jump, "peak") >= ABOVE_START * first and z / others >= APART
    return worse or (z >= max(ALONE, ALONE_APART * others) and number(jump, "ratio") >= ALONE_RATIO)


def _is_spike(case: Case, spike: Finding) -> bool:
    early = spike.onset.first_step < (case.warmup_end or 0)
    small = number(spike, "ratio", default=1.0 + SMALLEST) < 1 + SMALLEST and spike.size < SMALLEST
    return spike.direction != "down" and not early and not small and recovers(spike)


def _norm_jump(case: Case, jump: Finding) -> Finding | None:
    slack = case.near(1.0, 0.0)
    for kind in ("jump", "spike", "nonfinite"):
        found = case.together(jump.onset, kind, "grad_norm", slack=slack)
        if found is not None and (kind == "nonfinite" or number(found, "ratio") >= 3.0):  # three times its base (knowledge G1)
            return found
    return None


def _persistent(case: Case, spikes: list[Finding], total: int) -> Diagnosis:
    worst = max(spikes, key=lambda f: f.strength)
    first, many = spikes[0], len(spikes)
    causes = _causes(case, worst, total)
    back = max(number(f, "recovered_after") for f in spikes)
    severity = Severity.MAJOR if total >= 3 or back > SLOW else Severity.MINOR
    base, peak = number(worst, "base"), number(worst, "peak")
    count = "" if many == 1 else f" {many} times"
    summary = (
        f"The training loss spikes{count}, first at {since(first.onset.first_step)}: from {num(base)} to {num(peak)},"
        f" back after {grouped(back)} steps."
    )
    lead = case.leads(worst, "spike", "grad_norm", within_steps=case.near(10, 0.0)) or case.leads(
        worst, "growth", "grad_norm", within_steps=case.near(10, 0.0)
    )
    evidence = some(
        primary(
            worst, f"The loss rises from {num(base)} to {num(peak)} at {since(worst.onset.first_step)}, {num(worst.strength)} noise widths."
        ),
        related(lead, f"The gradient norm had begun to rise at {since(lead.onset.first_step)}.") if lead else None,
        *(related(f, f"Another spike at {since(f.onset.first_step)}, up to {num(number(f, 'peak'))}.") for f in spikes if f is not worst),
    )
    return Diagnosis(
        "loss-spike",
        summary,
        severity,
        confidence=sure(case, LOSS),
        onset=first.onset,
        end_step=spikes[-1].span.last_step,
        evidence=evidence[:6],
        causes=causes,
        fixes=_fixes(case, worst, severity, causes[0].id if causes else ""),
        rivals=("non-finite-loss", "loss-divergence", "warmup-too-short", "learning-rate-jump", "resume-bump"),
    )


def _single(case: Case, jumps: list[tuple[Finding, Finding | None]]) -> Diagnosis:
    loss, norm = max(jumps, key=lambda pair: pair[0].strength)
    first = jumps[0][0]
    places = "one step" if len(jumps) == 1 else f"{len(jumps)} single steps"
    who = "The training loss and the gradient norm jump together" if norm else "The training loss jumps"
    return Diagnosis(
        "loss-spike",
        f"{who} at {places}, first at {since(first.onset.first_step)}.",
        Severity.MINOR,
        confidence=sure(case, LOSS, plain=norm is not None),
        onset=first.onset,
        end_step=jumps[-1][0].span.last_step,
        evidence=some(
            primary(loss, f"The loss is {num(number(loss, 'ratio'))} times its surroundings at {since(loss.onset.first_step)} only."),
            related(norm, f"The gradient norm is {num(number(norm, 'ratio'))} times its surroundings at the same step.") if norm else None,
        ),
        causes=_causes(case, loss, len(jumps)),
        fixes=_fixes(case, loss, Severity.MINOR, "bad-batch"),
        rivals=("non-finite-loss", "loss-divergence", "warmup-too-short", "learning-rate-jump", "resume-bump"),
    )


def _causes(case: Case, spike: Finding, many: int) -> tuple[Cause, ...]:
    beta2, clip, precision = case.number("optimizer.beta2"), clip_threshold(case), case.setting("precision")
    before = Span(spike.onset.first_step - case.near(), spike.span.last_step)
    sudden = case.together(spike.onset, "jump", "grad_norm", slack=case.near(2.0, 0.0))
    slow = number(spike, "recovered_after") > 20
    rate, peak = case.value_at("lr", spike.onset.first_step), case.highest("lr")
    left, left_says = left_behind(case, spike), "The training loss comes back and the evaluation loss does not: they are no longer alike."
    return ranked(
        (
            cause(
                "bad-batch",
                "One or a few batches are corrupt or very unusual",
                1.0,
                when(sudden, 2, "The gradient norm jumps at the same step, without a rise before it."),
                when(not slow, 1, "The loss is back within 20 steps."),
                when(left, -2, left_says),
                would_decide="the data position: a replay from a checkpoint spikes at the same batch",
            ),
            cause(
                "data-shift",
                "The data come from another source from there on, which the model then learns",
                0.2,
                when(left, 3, left_says),
                when(slow, 1, "The loss needs more than 20 steps to return."),
                when(not slow, -2, "The loss is back within 20 steps."),
                would_decide="the loss per data source",
            ),
            cause(
                "beta2-too-large",
                "Adam's second moment lags behind a sudden growth of the gradients",
                0.7,
                when(beta2 is not None and beta2 >= 0.99, 1, f"β2 is {num(beta2)}: Adam remembers {memory(beta2)} steps."),
                when(beta2 is not None and beta2 < 0.99, -2, f"β2 is {num(beta2)}: Adam forgets within {memory(beta2)} steps."),
                when(adam(case) is False, -3, "The optimiser is not of Adam's family."),
                when(slow, 1, "The loss needs more than 20 steps to return."),
                would_decide="sqrt(mean(g²/v)) per tensor: above 2.3 before the spike",
            ),
            cause(
                "lr-too-high",
                "The learning rate is at the edge of what the model bears",
                0.6,
                when(many >= 3, 1, f"{many} spikes in one run."),
                when(rate and peak and rate < 0.5 * peak, -1, "The learning rate had already fallen to less than half of its peak."),
            ),
            cause(
                "no-clipping",
                "Nothing limits the gradient of an unusual batch",
                0.4,
                when(clip == 0, 2, "Clipping is off."),
                when(clip, -2, f"Clipping is on, at {num(clip)}."),
            ),
            cause(
                "fp16-overflow",
                "fp16 overflows inside the spike",
                0.2,
                when(case.found("scale-collapse", "loss_scale", within=before), 2, "The loss scale falls inside the spike."),
                when(precision in ("fp32", "bf16"), -2, f"The precision is {precision}."),
            ),
        )
    )


def _fixes(case: Case, spike: Finding, severity: Severity, first: str) -> tuple[Fix, ...]:
    look = fix("check-data", values={"step": spike.onset.first_step})
    if first == "data-shift":
        return look, fix("mix-data"), fix("shuffle-data")
    if severity is Severity.MINOR:
        return look, fix("clip-gradients", values={"clip": healthy_clip(case, spike.onset)})
    rollback = fix("roll-back-and-skip", values={"step": max(case.first_step, spike.onset.first_step - 100), "batches": 200})
    clip = fix("clip-gradients", values={"clip": healthy_clip(case, spike.onset)})
    calm = fix("lower-beta2", values={"beta2": 0.95}) if (case.number("optimizer.beta2") or 0) >= 0.99 else None
    slower = fix("lower-lr", values={"lr": calmer_lr(case, spike.onset)})
    return tuple(f for f in (rollback, clip, calm, look, slower) if f)


RULE = Rule(
    id="loss-spike",
    title="The training loss spikes and comes back",
    family="dynamics",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=("grad_norm", "lr"),
    uses=("spike", "short-break", "jump", "growth", "nonfinite", "scale-collapse"),
    judge=judge,
    examples=(
        fires("twice the loss, back after some forty steps", lambda: {LOSS: synth.with_spike(synth.loss(), at=1200, ratio=1.8, width=80)}),
        quiet("heavy-tailed noise without a spike", lambda: {LOSS: synth.loss(width=0.03), "grad_norm": synth.norm()}),
        quiet(
            "a single high loss that the gradient norm does not confirm",
            lambda: {LOSS: synth.with_jump(synth.loss(), at=1200, ratio=1.5), "grad_norm": synth.norm()},
        ),
    ),
)
