"""A layer gets no gradient.

## What it looks for
A per-layer gradient norm that is exactly zero for many steps, or falls to nothing at some step, while other layers have one.

## Why it matters
The layer does not learn. It is one of the faults that a loss curve hides best.

## How it decides
Exactly zero from the first step on means detached, frozen, or not in the optimiser. A norm that dies later, in several layers
or with a high share of dead units, means dying ReLUs. All layers at once are no dead layer: see `vanishing-gradient`.

## When it is wrong
Frozen layers and adapters (LoRA) have zero norms on purpose; so have experts of a mixture that no token chose.

## What to do
List the parameters without a gradient; look for `requires_grad`, `detach`, `no_grad` and the optimiser's parameter groups. For
dying ReLUs lower the learning rate and use a leaky activation or GELU.

## References
Lu et al., Dying ReLU (1903.06733); TrainCheck (OSDI 2025); AutoTrainer (Zhang et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Finding, Fix, Severity
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import calmer_lr, cause, num, number, primary, related, since, some, sure, when

PREFIX = "grad_norm/layer/"


def judge(case: Case) -> Iterator[Diagnosis]:
    """All dead layers in one diagnosis."""
    dead = case.found("dead-layer")
    layers = {f.signal for f in dead}
    known = len(case.family(PREFIX))
    if not dead or (known and len(layers) >= known > 1):
        return
    first = dead[0]
    start = first.onset.first_step <= case.first_step + case.near()
    names = ", ".join(sorted(n.removeprefix(PREFIX) for n in layers)[:3]) + (", ..." if len(layers) > 3 else "")
    unit = next(iter(case.found("level-shift", "activation/dead", direction="up")), None)
    causes = _causes(case, first, start, len(layers))
    yield Diagnosis(
        "dead-layer",
        f"{'Layer' if len(layers) == 1 else f'{len(layers)} layers:'} {names} {'gets' if len(layers) == 1 else 'get'} no gradient"
        + (" from the start." if start else f" from {since(first.onset.first_step)} on."),
        Severity.MAJOR,
        confidence=sure(case, first.signal if case.has(first.signal) else "loss/train"),
        onset=first.onset,
        evidence=some(
            primary(
                first,
                f"The gradient norm of {names} is {num(first.size) if first.size else 'zero'} from {since(first.onset.first_step)} on;"
                " other layers have one.",
            ),
            related(unit, "The share of dead units rises.") if unit else None,
        ),
        causes=causes,
        fixes=_fixes(case, first, causes),
        rivals=("zero-loss",),
    )


def _causes(case: Case, first: Finding, start: bool, many: int) -> tuple[Cause, ...]:
    activation = str(case.setting("model.activation", "") or "").lower()
    dying = case.highest("activation/dead")
    passed = number(first, "alive_below") > 0
    broke = any(case.together(first.onset, kind, "loss/train", slack=2 * case.near()) for kind in ("divergence", "level-shift", "spike"))
    return ranked(
        (
            cause(
                "frozen-layer",
                "The layer is frozen, detached, or missing in the optimiser",
                1.0,
                when(start, 2, "It never had a gradient."),
                when(not start, -1, "It had a gradient before."),
                when(many == 1, 1, "It is a single layer."),
                when(passed, 2, "The layers nearer to the input still get a gradient, which passes through it."),
                would_decide="the list of parameters with `requires_grad` and their optimiser groups",
            ),
            cause(
                "dead-relu",
                "Its ReLU units are negative for every input",
                0.6,
                when(not start, 1, "It died during the run."),
                when(passed, -2, "The layers nearer to the input still get a gradient, which passes through it."),
                when(broke, 1, "The loss breaks at the same place."),
                when("relu" in activation and activation != "leaky_relu", 1, f"The activation is {activation}."),
                when(activation and "relu" not in activation, -3, f"The activation is {activation}."),
                when(dying is not None and dying > 0.5, 3, f"{num(dying)} of the units are dead."),
                would_decide="" if dying is not None else "the share of units that are zero for a whole batch",
            ),
            cause(
                "fp16-underflow",
                "Its gradients round to zero in fp16",
                0.2,
                when(case.setting("precision") == "fp16", 2, "The precision is fp16."),
                when(case.setting("precision") in ("fp32", "bf16"), -3, f"The precision is {case.setting('precision')}."),
            ),
        )
    )


def _fixes(case: Case, first: Finding, causes: tuple[Cause, ...]) -> tuple[Fix, ...]:
    thaw = fix("unfreeze-layers")
    relu = (fix("change-activation"), fix("lower-lr", values={"lr": calmer_lr(case, first.onset)}), fix("init-scale"))
    return (*relu, thaw) if causes and causes[0].id == "dead-relu" else (thaw, *relu[:1])


RULE = Rule(
    id="dead-layer",
    title="A layer gets no gradient",
    family="gradients",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(f"{PREFIX}*",),
    wants=("activation/dead",),
    uses=("dead-layer", "level-shift", "divergence", "spike"),
    judge=judge,
    examples=(
        fires(
            "one layer of twelve has no gradient",
            lambda: {**synth.layers(12, 400), f"{PREFIX}3": synth.constant(0.0, 400), "loss/train": synth.loss(400)},
        ),
        quiet("every layer has one", lambda: {**synth.layers(12, 400), "loss/train": synth.loss(400)}),
    ),
)
