"""Gradients fade from layer to layer, or altogether.

## What it looks for
Per-layer gradient norms that fall by depth by more than a factor of 1000 from one end to the other, or below 1e-7 in a
block; without per-layer norms, a global norm that falls below 1e-7 and stays there while the loss stands high.

## Why it matters
The layers near the input do not learn: the model trains as if it were shallower, or not at all.

## How it decides
The profile is a mean over many steps after the warm-up. With Adam, which divides each layer's scale out, a steep profile is
harmless while the loss falls, so that it is *major* only together with a plateau or with norms below 1e-7, else *info*.
A layer of exact zeros is a `dead-layer`. A loss of zero or a perfect fit ends gradients without a fault.

## When it is wrong
Layers of very different width have different norms by nature; fully frozen early layers look like vanishing ones.

## What to do
Move the normalisation in front of the blocks (Pre-LN) or use DeepNorm, add residual paths, repair the initialisation, replace
saturating activations. Gradients that are too small are not cured by limiting them from above.

## References
Xiong et al. (2002.04745); Liu et al. (2004.08249); DeepNet (2203.00555); Glorot and Bengio 2010; OLMo 2 (2501.00656).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Confidence, Diagnosis, Finding, Fix, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, number, percent, primary, related, since, some, sure, warmup_floor, when

LAYERS, NORM, LOSS = "grad_norm/layer/*", "grad_norm", "loss/train"
TINY = 1e-7  # the level that SageMaker Debugger calls vanishing (knowledge G3)
STEEP = -6.9  # ln(1/1000) from end to end (knowledge G3)


def judge(case: Case) -> Iterator[Diagnosis]:
    """A steep depth profile first; without per-layer norms a global norm that has gone."""
    profile = next((f for f in case.found("depth-profile") if _is_steep(f)), None)
    stuck = next(iter(case.found("plateau", LOSS)), None)
    if profile is not None:
        yield _by_depth(case, profile, stuck)
        return
    gone = _gone(case)
    if gone is not None:
        yield gone


def _is_steep(profile: Finding) -> bool:
    return number(profile, "lambda_total") <= STEEP or number(profile, "below_1e7_from") > 0


def _by_depth(case: Case, profile: Finding, stuck: Finding | None) -> Diagnosis:
    first, last, layers = number(profile, "first"), number(profile, "last"), number(profile, "layers")
    below = number(profile, "below_1e7_from")
    tiny = below > 0
    severity = Severity.MAJOR if tiny or stuck is not None else Severity.INFO
    deep = f", and below {num(TINY)} from layer {num(below)} on, counted from the output" if tiny else ""
    return Diagnosis(
        "vanishing-gradient",
        f"The gradients vanish by depth: from {num(max(first, last))} to {num(min(first, last))} over {num(layers)} layers{deep}.",
        severity,
        confidence=sure(case, (case.family(LAYERS[:-1]) or (NORM,))[0]),
        evidence=some(
            primary(
                profile, f"The mean gradient norm is {num(last)} at one end of {num(layers)} layers and {num(first)} at the other{deep}."
            ),
            related(stuck, f"The loss stands still near {num(number(stuck, 'level'))} since {since(stuck.onset.first_step)}.")
            if stuck
            else None,
        ),
        causes=_causes(case, profile),
        fixes=_fixes(case),
        rivals=("zero-loss", "non-finite-loss"),
    )


def _gone(case: Case) -> Diagnosis | None:
    """The global norm below TINY in its last quarter, while the loss still stands well above zero."""
    late = Span(case.last_step - case.length // 4, case.last_step)
    level, loss = case.level(NORM, late), case.level(LOSS, late)
    if level is None or level >= TINY or not loss or loss < 1e-3 or case.share_of(NORM, -1.0, TINY, late) < 0.9:
        return None
    if not case.highest(NORM) or case.share_of(NORM, 0.0, 0.0) > 0.9 or case.level("lr", late) == 0:
        return None  # constant zero is "not logged" (gate H5); no rate, no gradient step
    start = case.first_step_where(NORM, -1.0, TINY) or case.first_step
    found = Finding("level", NORM, late, onset=Span(start, start), size=level)
    return Diagnosis(
        "vanishing-gradient",
        f"The gradient norm has vanished: {num(level)} at the end, while the loss is still {num(loss)}.",
        Severity.MAJOR,
        confidence=sure(case, NORM, at_most=Confidence.MEDIUM),
        onset=found.onset,
        evidence=(primary(found, f"The gradient norm is below {num(TINY)} in the last quarter of the run (median {num(level)})."),),
        causes=_causes(case, found),
        fixes=_fixes(case),
        rivals=("zero-loss", "non-finite-loss"),
    )


def _causes(case: Case, found: Finding) -> tuple[Cause, ...]:
    place, activation = case.setting("model.norm_position"), str(case.setting("model.activation", "") or "").lower()
    layers = max(number(found, "layers"), 1.0)
    slope = abs(number(found, "lambda_total")) / layers
    precision, scale = case.setting("precision"), case.setting("loss_scale.dynamic")
    warmup = case.number("schedule.warmup_steps")
    saturating = activation in ("sigmoid", "tanh", "softsign", "hardtanh")
    return ranked(
        (
            cause(
                "post-norm",
                "Normalisation after the residual sum damps the gradient at every layer",
                1.0,
                when(place == "post", 3, "The model normalises after the residual sum."),
                when(place == "pre", -4, "The model normalises before each block."),
                when(place == "post" and warmup == 0, 1, "There is no warm-up, which Post-LN needs."),
                would_decide="" if place else "the placement of normalisation (pre or post)",
            ),
            cause(
                "saturating-activation",
                "Saturating activations shrink the gradient at every layer",
                0.7,
                when(saturating, 3, f"The activation is {activation}."),
                when(activation and not saturating, -2, f"The activation is {activation}."),
            ),
            cause(
                "missing-residual",
                "The blocks have no residual path",
                0.6,
                when(slope > 0.3, 1, f"The norm falls by {percent(1 - 2.718**-slope)} a layer."),
            ),
            cause("init-scale", "The initial weights are too small", 0.5, would_decide="the parameter norm per layer at step 0"),
            cause(
                "fp16-underflow",
                "Small gradients round to zero in fp16",
                0.3,
                when(precision == "fp16", 2, "The precision is fp16."),
                when(precision == "fp16" and scale is False, 1, "The loss scale is static."),
                when(precision in ("fp32", "bf16"), -3, f"The precision is {precision}."),
            ),
        )
    )


def _fixes(case: Case) -> tuple[Fix, ...]:
    place = case.setting("model.norm_position")
    activation = str(case.setting("model.activation", "") or "").lower()
    norm = None if place == "pre" else fix("pre-norm")
    warm = fix("add-warmup", values={"steps": warmup_floor(case)}) if place == "post" else None
    half = fix("bf16") if case.setting("precision") == "fp16" else None
    act = fix("change-activation") if activation in ("", "sigmoid", "tanh", "softsign", "hardtanh") else None
    return tuple(f for f in (norm, fix("residual-path"), fix("init-scale"), act, warm, half) if f is not None)


RULE = Rule(
    id="vanishing-gradient",
    title="Gradients vanish by depth or altogether",
    family="gradients",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(f"{LAYERS}|{NORM}",),
    wants=(LAYERS, LOSS),
    uses=("depth-profile", "plateau"),
    judge=judge,
    examples=(
        fires(
            "an e-fold a layer over sixteen layers, and a loss that stands still",
            lambda: {**synth.layers(16, 600, per_layer=1.2), LOSS: synth.with_plateau(synth.loss(600), at=0)},
            settings={"model.norm_position": "post"},
        ),
        quiet("layers of the same size", lambda: {**synth.layers(16, 600), LOSS: synth.loss(600)}),
        quiet("a tenth lost over all layers", lambda: {**synth.layers(16, 600, per_layer=0.15), LOSS: synth.loss(600)}),
    ),
)
