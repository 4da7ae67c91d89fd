"""The first steps at a high learning rate damage the run.

## What it looks for
An incident (a lasting rise of the loss, a spike, non-finite values, or a plateau that begins at once) within the first steps,
in a run whose warm-up is shorter than Adam's second moment needs.

## Why it matters
Early updates with an unsettled variance estimate can push a model, above all a Post-LN one, where it never recovers.

## How it decides
The warm-up must be known (from the logged learning rate or the configuration) and shorter than 2/(1-β2) steps or a tenth of
the run, whichever is less, and the incident must begin within three times that. Without an incident there is no diagnosis: many
runs live without a warm-up. A plateau counts only for Post-LN or when the loss first rose.

## When it is wrong
When the loss breaks at any rate, the learning rate itself is too high and a warm-up only delays it.

## What to do
Warm up linearly over at least 2/(1-β2) steps; in Post-LN models move the normalisation; then lower the peak.

## References
Ma and Yarats (1910.04209); RAdam (1908.03265); Goyal et al. (1706.02677); Xiong et al. (2002.04745).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Evidence, Finding, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import adam, calmer_lr, cause, grouped, memory, num, number, primary, recovers, since, some, sure, warmup_floor, when

LOSS = "loss/train"


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first incident of the first steps, when the warm-up is known to be short."""
    warmup, floor = _warmup(case), warmup_floor(case)
    if warmup is None or warmup >= floor or adam(case) is False:
        return
    window = Span(case.first_step, case.first_step + 3 * max(int(warmup), floor // 2))  # 3·max(warm-up, 1/(1-β2)), knowledge O2
    incident = _incident(case, window)
    if incident is None:
        return
    bad = incident.kind in ("nonfinite", "divergence")
    length = "no warm-up" if warmup <= 1 else f"a warm-up of {grouped(warmup)} steps"
    yield Diagnosis(
        "warmup-too-short",
        f"The run breaks at {since(incident.onset.first_step)} with {length}; Adam needs about {grouped(floor)}.",
        Severity.CRITICAL if bad else Severity.MAJOR,
        confidence=sure(case, LOSS, plain=case.setting("schedule.warmup_steps") is not None),
        onset=incident.onset,
        evidence=some(
            primary(
                incident, f"A {incident.kind} of the {_name(incident)} begins at {since(incident.onset.first_step)}, in the first steps."
            ),
            Evidence(f"There is {length}.", about="schedule.warmup_steps" if case.setting("schedule.warmup_steps") is not None else "lr"),
        ),
        causes=_causes(case, incident),
        fixes=tuple(
            f
            for f in (
                fix("add-warmup", values={"steps": floor}),
                fix("pre-norm") if case.setting("model.norm_position") == "post" else None,
                fix("lower-lr", values={"lr": calmer_lr(case, incident.onset)}),
            )
            if f is not None
        ),
        rivals=("learning-rate-jump",),
    )


def _name(incident: Finding) -> str:
    return "gradient norm" if incident.signal == "grad_norm" else "loss"


def _warmup(case: Case) -> float | None:
    """Steps of warm-up: as configured, else as logged; None when nothing tells."""
    told = case.number("schedule.warmup_steps")
    if told is not None:
        return told
    if case.warmup_end is not None:
        return float(case.warmup_end - case.first_step)
    first, peak = case.value_at("lr", case.first_step), case.highest("lr")
    return 0.0 if first and peak and first > 0.5 * peak else None  # already near the peak at the first logged step


def _incident(case: Case, window: Span) -> Finding | None:
    hits = [f for kind in ("nonfinite", "divergence") for f in case.found(kind, LOSS, within=window)]
    hits += [f for f in case.found("spike", LOSS, within=window) if not recovers(f) and f.direction != "down"]
    hits += [f for f in case.found("growth", "grad_norm", within=window) if number(f, "peak_ratio") >= 10]
    if case.setting("model.norm_position") == "post":
        hits += case.found("plateau", LOSS, within=window)
    return min(hits, key=lambda f: f.onset.first_step, default=None)


def _causes(case: Case, incident: Finding) -> tuple[Cause, ...]:
    beta2, norm = case.number("optimizer.beta2"), case.setting("model.norm_position")
    first = case.value_at("grad_norm", case.first_step)
    return ranked(
        (
            cause(
                "warmup-missing",
                "Adam's second moment was not settled when the learning rate was high",
                1.0,
                when(beta2 is not None and beta2 >= 0.99, 1, f"β2 is {num(beta2)}: Adam remembers {memory(beta2)} steps."),
                when(beta2 is not None and beta2 < 0.99, -1, f"β2 is {num(beta2)}: Adam forgets within {memory(beta2)} steps."),
                when(norm == "post", 1, "Post-LN needs a warm-up most."),
            ),
            cause("lr-too-high", "The peak learning rate is too high at any warm-up", 0.7, would_decide="a run with a warm-up"),
            cause(
                "post-norm",
                "Normalisation after the residual sum makes the first gradients large",
                0.3,
                when(norm == "post", 1, "The model normalises after the residual sum."),
                when(norm == "pre", -3, "The model normalises before each block."),
            ),
            cause(
                "init-scale",
                "The initial weights are too large",
                0.2,
                when(first is not None and first > 100, 2, f"The first gradient norm is {num(first)}."),
            ),
        )
    )


RULE = Rule(
    id="warmup-too-short",
    title="The warm-up is missing or too short",
    family="dynamics",
    severity=Severity.CRITICAL,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=("lr", "grad_norm"),
    uses=("nonfinite", "divergence", "spike", "growth", "plateau"),
    judge=judge,
    examples=(
        fires(
            "no warm-up, and the loss leaves at step 60 for good",
            lambda: {LOSS: synth.with_divergence(synth.loss(1500), at=60, rise=0.8, over=60), "lr": synth.rate(1500, warmup=1)},
            settings={"optimizer.name": "adamw", "optimizer.beta2": 0.999, "schedule.warmup_steps": 0},
        ),
        quiet(
            "no warm-up, and no incident",
            lambda: {LOSS: synth.loss(1500), "lr": synth.rate(1500, warmup=1)},
            settings={"optimizer.name": "adamw", "schedule.warmup_steps": 0},
        ),
    ),
)
