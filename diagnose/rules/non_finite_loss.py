"""The loss becomes NaN or infinite, openly or behind a logging filter.

## What it looks for
NaN or infinity in the training loss; a loss that a filter writes as 0.0 while the gradient norm is NaN (Hugging Face's
`logging_nan_inf_filter`, on by default); a loss column that goes missing while other columns go on (Megatron leaves it out
when every iteration of an interval was skipped).

## Why it matters
After a non-finite update every later step is wasted, and each later checkpoint is corrupt.

## How it decides
One non-finite loss that the next steps do not show again is minor. Three or more in a row, or NaN to the end, are critical.
An infinite gradient norm alone is normal in fp16 (the step is skipped) and is not counted. The cause is ranked by what went
first: gradient growth, loss-scale collapse, a single step without a precursor.

## When it is wrong
Some programs log NaN for "not measured"; then every other value of that column is fine and the rows alternate.

## What to do
Go back to the last checkpoint before the first non-finite value and replay with anomaly detection. With a precursor lower the
learning rate, lengthen the warm-up and clip at 1.0; in fp16 use dynamic loss scaling or bf16; without one look at that batch
and its label mask.

## References
transformers `logging_nan_inf_filter`; bigscience Megatron-DeepSpeed 396; OPT-175B logbook; BigScience tr8 chronicles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Confidence, Diagnosis, Evidence, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import (
    calmer_lr,
    cause,
    clip_threshold,
    grouped,
    longer_warmup,
    neutral_settings,
    num,
    number,
    percent,
    primary,
    related,
    since,
    some,
    sure,
    warmup_floor,
    when,
)

LOSS, NORM = "loss/train", "grad_norm"
ROSE = 1.5  # times the loss of the untrained model: damage that came before the NaN
RUN = 3  # consecutive non-finite values that are more than a skipped step (knowledge G8)


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first non-finite loss, seen or hidden."""
    bad = case.found("nonfinite", LOSS)
    hidden = _hidden(case)
    if bad and (hidden is None or bad[0].onset.first_step <= hidden[0].first_step):
        yield _seen(case, bad)
    elif not case.has(LOSS):
        yield from _without_loss(case)
    elif hidden is not None:
        onset, says = hidden
        yield _diagnosis(
            case,
            onset,
            f"The loss is non-finite from {since(onset.first_step)} on, which the log hides.",
            Severity.CRITICAL,
            Evidence(says, span=onset, role="primary", about=LOSS),
        )


def _without_loss(case: Case) -> Iterator[Diagnosis]:
    """A norm that is NaN to the end in rows that have no loss: what averages the loss leaves NaN out, and the column with it."""
    bad = next((f for f in case.found("nonfinite", NORM) if number(f, "to_end") > 0), None)
    if bad is None or number(bad, "longest") < RUN:
        return
    summary = f"The gradient norm is NaN from {since(bad.onset.first_step)} on, and no row has a loss: it is NaN too."
    says = f"The gradient norm is not finite from {since(bad.onset.first_step)} to the end of the log, and no loss is logged."
    yield _diagnosis(case, bad.onset, summary, Severity.CRITICAL, primary(bad, says))


def _hidden(case: Case) -> tuple[Span, str] | None:
    filtered, missing = case.facts.get("loss_hidden_nonfinite"), case.facts.get("loss_field_missing")
    if filtered is not None:
        return Span(
            int(filtered), int(filtered)
        ), f"The loss is written as 0 from {since(int(filtered))} on while the gradient norm is NaN."
    if missing is not None:
        return Span(int(missing), int(missing)), f"The loss column ends at {since(int(missing))} while the other columns go on."
    return None


def _seen(case: Case, bad: tuple[Finding, ...]) -> Diagnosis:
    first = bad[0]
    lasting = any(number(f, "longest") >= RUN or number(f, "to_end") > 0 for f in bad)
    ends = any(number(f, "to_end") > 0 for f in bad)
    rows = sum(number(f, "nan") + number(f, "posinf") + number(f, "neginf") for f in bad)
    share = number(first, "share")
    what = "NaN" if number(first, "nan") >= number(first, "posinf") + number(first, "neginf") else "infinite"
    tail = "to the end of the log" if ends else f"in {grouped(max(rows, 1))} logged points"
    summary = f"The training loss is {what} from {since(first.onset.first_step)} {'on, ' if ends else ''}{tail}."
    says = f"The first non-finite loss stands at {since(first.onset.first_step)}; {percent(share)} of all points are non-finite."
    return _diagnosis(case, first.onset, summary, Severity.CRITICAL if lasting else Severity.MINOR, primary(first, says))


def _diagnosis(case: Case, onset: Span, summary: str, severity: Severity, main: Evidence) -> Diagnosis:
    before = Span(onset.first_step - max(200, 2 * case.near()), onset.first_step)
    grow = _growth(case, before)
    norm = next(iter(case.found("nonfinite", "grad_norm", within=before)), None)
    return Diagnosis(
        "non-finite-loss",
        summary,
        severity,
        onset=onset,
        confidence=Confidence.HIGH if severity is Severity.CRITICAL else sure(case, LOSS),  # a NaN in the log is no estimate
        evidence=some(
            main,
            grow,
            related(norm, f"The gradient norm is non-finite at {since(norm.onset.first_step)}.") if norm else None,
            _unscaled(case),
            neutral_settings(case),
        ),
        causes=_causes(case, onset, before, grow is not None),
        fixes=_fixes(case, onset, grow is not None),
    )


def _growth(case: Case, before: Span) -> Evidence | None:
    """The gradient norm's warning: a finding, or in a log too short for one, ten times its usual size."""
    found = next(iter(case.found("growth", NORM, within=before) + case.found("spike", NORM, within=before)), None)
    if found is not None:
        return related(found, f"The gradient norm had been growing since {since(found.onset.first_step)}.")
    peak, usual = case.highest(NORM, before), case.quantile(NORM, 0.25, before)
    if peak is None or not usual or peak < 10 * usual:
        return None
    return Evidence(f"The gradient norm rises from about {num(usual)} to {num(peak)} before it.", span=before, about=NORM)


def _unscaled(case: Case) -> Evidence | None:
    """What gate H4 made of a norm that carried the loss scale."""
    if not case.facts.get("grad_norm_was_scaled"):
        return None
    logged = case.facts.get("grad_norm_scaled_highest")
    top = f" (up to {num(float(logged))})" if isinstance(logged, (int, float)) else ""
    sure_of_it = "most likely carries" if case.facts.get("grad_norm_scale_assumed") else "carries"
    return Evidence(
        f"The logged gradient norm{top} {sure_of_it} the loss scale; divided by it, it reaches {num(case.highest(NORM))}.", about=NORM
    )


def _causes(case: Case, onset: Span, before: Span, grows: bool) -> tuple[Cause, ...]:
    precision, clip = case.setting("precision"), clip_threshold(case)
    scale = case.found("scale-collapse", "loss_scale", within=before) + case.found("scale-floor", "loss_scale", within=before)
    overflow = case.said("overflow", within=before)
    peak, usual = case.highest(LOSS, before), case.value_at(LOSS, case.first_step)
    rose = peak is not None and usual is not None and 0 < ROSE * usual <= peak
    calm = case.has(NORM) and not grows and not rose
    early = onset.first_step - case.first_step <= 3 * warmup_floor(case)
    again = not any(number(f, "to_end") > 0 for f in case.found("nonfinite", LOSS)) and not case.facts.get("loss_field_missing")
    growing, silent = "The gradient norm grows before the first non-finite loss.", "The gradient norm gives no warning."
    return ranked(
        (
            cause(
                "lr-too-high",
                "The updates became too large before the loss broke",
                1.0,
                when(grows, 2, growing),
                when(calm, -2, silent),
                when(rose, 2, f"The loss had risen to {num(peak)} before it broke."),
                when(early and case.number("schedule.warmup_steps") == 0, 1, "It breaks in the first steps, without a warm-up."),
                would_decide="" if case.has(NORM) else "the gradient norm before clipping",
            ),
            cause(
                "fp16-overflow",
                "fp16 overflows in the forward or backward pass",
                0.7,
                when(scale, 2, "The loss scale collapses before it."),
                when(overflow, 1, f"{len(overflow)} overflow messages stand before it."),
                when(precision == "fp16", 1, "The precision is fp16."),
                when(case.setting("loss_scale.dynamic") is False, 1, "The loss scale is static."),
                when(precision in ("fp32", "bf16"), -3, f"The precision is {precision}."),
            ),
            cause(
                "numeric-fault",
                "One operation fails on some inputs: a logarithm or a division of zero, a batch without a label, a corrupt sample",
                0.8,
                when(calm, 2, silent),
                when(grows, -2, growing),
                when(precision == "fp16" and scale, -1, "The loss scale collapses before it."),
                when(again, 1, "The loss is finite again afterwards: the weights are unharmed."),
                would_decide="a replay of that batch with anomaly detection, which names the operation",
            ),
            cause(
                "masked-labels",
                "A batch without any label gives 0/0",
                0.4,
                when(calm, 2, silent),
                when(grows, -2, growing),
                would_decide="the number of labels that count, per batch",
            ),
            cause(
                "bad-batch",
                "A corrupt batch",
                0.4,
                when(calm, 2, silent),
                when(grows, -1, growing),
                would_decide="a look at that batch",
            ),
            cause(
                "no-clipping",
                "Nothing limits the gradient",
                0.4,
                when(clip == 0, 2, "Clipping is off."),
                when(clip, -2, f"Clipping is on, at {num(clip)}."),
                when(calm, -1, silent),
            ),
        )
    )


def _fixes(case: Case, onset: Span, grows: bool) -> tuple[Fix, ...]:
    find = fix("locate-nan", values={"step": onset.first_step})
    slower = fix("lower-lr", values={"lr": calmer_lr(case, onset)})
    clip = fix("clip-gradients", values={"clip": 1.0})
    half = (fix("dynamic-loss-scale"), fix("bf16")) if case.setting("precision") == "fp16" else ()
    if grows or half:
        steps = longer_warmup(case)
        warm = (fix("add-warmup", values={"steps": steps}),) if steps else ()
        return slower, clip, *warm, *half, find
    back = fix("roll-back-and-skip", values={"step": max(case.first_step, onset.first_step - 100), "batches": 200})
    return find, fix("guard-empty-labels"), fix("check-data", values={"step": onset.first_step}), back


RULE = Rule(
    id="non-finite-loss",
    title="The training loss is NaN or infinite",
    family="dynamics",
    severity=Severity.CRITICAL,
    status="preview",
    since="0.1",
    needs=(f"{LOSS}|{NORM}",),
    wants=("grad_norm", "loss_scale"),
    uses=("nonfinite", "growth", "spike", "scale-collapse", "scale-floor"),
    judge=judge,
    examples=(
        fires(
            "NaN to the end after a growing gradient",
            lambda: {
                LOSS: synth.with_nonfinite(synth.loss(), at=1400),
                "grad_norm": synth.with_explosion(synth.norm(), at=1370, rate=0.3, to=math.nan),
            },
        ),
        fires(
            "a filter writes 0 where the loss is NaN",
            lambda: {
                LOSS: synth.with_nonfinite(synth.loss(), at=1400, value=0.0),
                "grad_norm": synth.with_nonfinite(synth.norm(), at=1400),
            },
        ),
        quiet(
            "an infinite gradient norm that fp16 skips",
            lambda: {LOSS: synth.loss(), "grad_norm": synth.with_nonfinite(synth.norm(), at=700, points=1, value=math.inf)},
        ),
    ),
)
