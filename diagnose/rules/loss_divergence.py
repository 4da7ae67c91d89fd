"""The training loss rises and does not come back.

## What it looks for
A rise of the smoothed loss above its own earlier minimum that lasts to the end of the log, or a spike that never recovers.

## Why it matters
The run is lost from that step on, and a resume from a late checkpoint carries the damage along.

## How it decides
The rise must be larger than 5 % and than the run's own noise, and last. A step to a new level whose slope still falls is a
`loss-level-shift`, a loss that becomes NaN soon after is a `non-finite-loss`. Rises within a change of batch, sequence length
or a cyclic learning rate are left out. Causes are ranked by what moved with it: learning rate, gradient norm, loss scale, noise
scale; and by whether the evaluation loss follows, which tells damaged weights from other data or labels.

## When it is wrong
A curriculum that makes the data harder looks like a slow divergence when neither its steps nor the sequence length are logged.

## What to do
Go back to a checkpoint well before the visible onset and change one thing: learning rate, warm-up, clipping, β2. Do not
replay unchanged.

## References
BigScience tr8 and tr8b chronicles; OPT-175B logbook; Wortsman et al. (2309.14322); GLM-130B training log.
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.breaks import Break, data_shift, in_short_log, label_noise, look, noise_growing, spike_not_recovered
from diagnose.case import Case, Hypothesis, ranked
from diagnose.model import Cause, Diagnosis, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import (
    Weighted,
    adam,
    calmer_lr,
    cause,
    clip_threshold,
    healthy_clip,
    longer_warmup,
    memory,
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

LOSS = "loss/train"
LEAST = 0.05  # rise above the running minimum that no healthy run of 74 had for 200 steps (knowledge O5)


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first lasting rise of the loss, unless a more specific rule owns it."""
    rise = next((f for f in case.found("divergence", LOSS, masked=False) if _counts(case, f)), None) or _in_few_rows(case)
    if rise is None or _becomes_nan(case, rise) or _is_step(case, rise):
        return
    size = number(rise, "rise", default=rise.size - 1)
    lead = case.leads(rise, "growth", "grad_norm", within_steps=2 * case.near()) or case.leads(
        rise, "spike", "grad_norm", within_steps=2 * case.near()
    )
    severity = Severity.CRITICAL if size >= 2 * LEAST else Severity.MAJOR
    seen = look(case, rise)
    causes = _causes(case, rise, lead, seen)
    yield Diagnosis(
        "loss-divergence",
        f"The training loss diverges from {since(rise.onset.first_step)} on: {_height(case, rise, size)}, and it does not come back.",
        severity,
        confidence=sure(case, LOSS, plain=size >= 2 * LEAST),
        onset=rise.onset,
        evidence=some(
            primary(
                rise,
                f"The smoothed loss stays above its earlier minimum from {since(rise.onset.first_step)} to the end"
                f" ({_height(case, rise, size)}).",
            ),
            related(lead, f"The gradient norm had begun to grow at {since(lead.onset.first_step)}.") if lead else None,
            neutral_settings(case),
        ),
        causes=causes,
        fixes=_fixes(case, rise, causes),
        rivals=("non-finite-loss", "warmup-too-short", "learning-rate-jump"),
    )


def _height(case: Case, rise: Finding, size: float) -> str:
    low, last = case.lowest(LOSS, Span(case.first_step, rise.onset.last_step)), case.value_at(LOSS, case.last_step)
    return f"{percent(size)} above the minimum" if low is None or last is None else f"from {num(low)} to {num(last)}"


def _in_few_rows(case: Case) -> Finding | None:
    found = in_short_log(case)
    return found if found is not None and not found.numbers["returns"] else None


def _counts(case: Case, rise: Finding) -> bool:
    lasts = rise.numbers.get("to_end", 1.0) > 0
    return lasts and number(rise, "rise", default=rise.size) >= LEAST


def _becomes_nan(case: Case, rise: Finding) -> bool:
    late = rise.onset.first_step + max(200, 2 * case.near())
    return any(f.onset.first_step <= late and f.numbers.get("to_end", 0.0) > 0 for f in case.found("nonfinite", LOSS))


def _is_step(case: Case, rise: Finding) -> bool:
    step = case.together(rise.onset, "level-shift", LOSS, slack=2 * case.near())
    if step is None or step.direction != "up":
        return False
    return number(step, "slope_after", default=1.0) <= 0 and not case.together(rise.onset, "growth", "grad_norm", slack=2 * case.near())


def _causes(case: Case, rise: Finding, lead: Finding | None, seen: Break) -> tuple[Cause, ...]:
    return ranked((*_by_dynamics(case, rise, lead, seen), *_by_data(case, rise, lead, seen)))


def _by_dynamics(case: Case, rise: Finding, lead: Finding | None, seen: Break) -> Iterator[Hypothesis]:
    beta2, clip, precision = case.number("optimizer.beta2"), clip_threshold(case), case.setting("precision")
    start, near = rise.onset.first_step, 2 * case.near()
    around = Span(start - near, rise.onset.last_step + case.near())
    early = start - case.first_step <= 3 * max(case.warmup_end or 0, warmup_floor(case))
    rate, peak = case.value_at("lr", start), case.highest("lr")
    yield cause(
        "lr-too-high",
        "The learning rate is higher than this model and batch bear",
        1.0,
        when(rate and peak and rate >= 0.8 * peak and not seen.constant, 1, "The rise begins near the peak of the learning rate."),
        when(rate and peak and rate < 0.3 * peak, -1, "The learning rate had already fallen below a third of its peak."),
        when(lead and not seen.burst, 1, "The gradient norm grows before the loss."),
        when(seen.constant, -1, "The run had borne this learning rate for a fifth of its length."),
        *_spared(seen, -2),
        when(seen.burst, -2, "It starts with a burst of a few steps, not with a growth."),
        when(seen.steady, -1, "The gradient norm stays as it was at the start of the run."),
    )
    jumped = case.found("jump-in-schedule", "lr", direction="up", within=around)
    yield cause(
        "lr-jump", "The learning rate was raised abruptly", 0.2, when(jumped, 6, "The learning rate jumps up just before the rise.")
    )
    yield cause(
        "warmup-missing",
        "The warm-up is missing or too short",
        0.5,
        when(case.number("schedule.warmup_steps") == 0, 2, "The configuration sets no warm-up."),
        when(early, 1, "The rise begins in the first steps of the run."),
        when(not early, -2, "The run had long left its first steps."),
    )
    yield cause(
        "post-norm",
        "Post-norm residual blocks are unstable without a long warm-up",
        0.2,
        when(case.setting("model.norm_position") == "post", 3, "The model normalises after the residual sum."),
        when(case.setting("model.norm_position") == "pre", -3, "The model normalises before each block."),
    )
    yield cause(
        "no-clipping",
        "Nothing limits the gradient",
        0.4,
        when(clip == 0, 2, "Clipping is off."),
        when(clip, -2, f"Clipping is on, at {num(clip)}."),
        *_spared(seen, -2),
    )
    yield cause(
        "beta2-too-large",
        "Adam's second moment lags behind growing gradients",
        0.3,
        when(beta2 is not None and beta2 >= 0.99, 1, f"β2 is {num(beta2)}: Adam remembers {memory(beta2)} steps."),
        when((beta2 is not None and beta2 < 0.99) or adam(case) is False, -2, "Adam's memory is short, or the optimiser is another one."),
        *_spared(seen, -2),
    )
    yield cause(
        "fp16-overflow",
        "fp16 runs out of range",
        0.2,
        when(case.found("scale-collapse", "loss_scale", within=around), 3, "The loss scale collapses about there."),
        when(precision in ("fp32", "bf16"), -2, f"The precision is {precision}."),
        when(precision == "fp16", 1, "The precision is fp16."),
    )


def _by_data(case: Case, rise: Finding, lead: Finding | None, seen: Break) -> Iterator[Hypothesis]:
    clip, jump = clip_threshold(case), _single_step(case, rise)
    yield spike_not_recovered(
        seen,
        0.4,
        when(jump and not seen.burst, 1, "A jump at a single step precedes the rise."),
        when(clip == 0, 1, "Clipping is off, so that one batch can do it."),
    )
    yield label_noise(seen, 0.4)
    yield noise_growing(seen, 0.2)
    yield data_shift(seen, 0.4, when(lead and not seen.abrupt, -1, "The gradient norm grows first."))


def _spared(seen: Break, weight: float) -> tuple[Weighted | None, ...]:
    return (when(seen.data, weight, "The evaluation loss stays behind: the weights are as good as before."),)


def _single_step(case: Case, rise: Finding) -> Finding | None:
    return case.together(rise.onset, "jump", "grad_norm", slack=case.near()) or case.together(rise.onset, "spike", LOSS, slack=case.near())


def _fixes(case: Case, rise: Finding, causes: tuple[Cause, ...]) -> tuple[Fix, ...]:
    start = rise.onset.first_step
    back = fix("roll-back-and-skip", values={"step": max(case.first_step, start - max(100, 2 * case.near())), "batches": 200})
    slower = fix("lower-lr", values={"lr": calmer_lr(case, rise.onset)})
    steps = longer_warmup(case)
    warm = (fix("add-warmup", values={"steps": steps}),) if steps else ()
    clip = fix("clip-gradients", values={"clip": healthy_clip(case, rise.onset)})
    early = start - case.first_step <= 2 * warmup_floor(case)
    data = fix("check-data", values={"step": start})
    first = causes[0].id if causes else ""
    if first in ("label-noise", "data-shift", "noise-growing"):
        return data, back, fix("larger-batch") if first == "noise-growing" else slower
    if first == "spike-not-recovered":
        return back, clip, data, slower
    return (slower, *warm, clip) if early else (back, slower, clip, data)


RULE = Rule(
    id="loss-divergence",
    title="The training loss diverges",
    family="dynamics",
    severity=Severity.CRITICAL,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=("grad_norm", "lr", "loss_scale"),
    judge=judge,
    uses=("divergence", "short-break", "growth", "spike", "jump", "level-shift", "nonfinite", "jump-in-schedule", "scale-collapse"),
    examples=(
        fires(
            "a rise over three hundred steps that stays",
            lambda: {
                LOSS: synth.with_divergence(synth.loss(), at=1200, rise=0.8, over=500),
                "grad_norm": synth.with_explosion(synth.norm(), at=1190, rate=0.02, most=30.0),
            },
        ),
        quiet("a spike that comes back", lambda: {LOSS: synth.with_spike(synth.loss(), at=1200, ratio=1.8, width=80)}),
        quiet("a flat end", lambda: {LOSS: synth.with_plateau(synth.loss(), at=1500)}),
    ),
)
