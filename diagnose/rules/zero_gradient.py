"""The gradient norm is exactly zero in every row.

## What it looks for
A logged gradient norm of exactly 0 throughout, while the loss does not fall.

## Why it matters
Nothing is trained: the run only burns time.

## How it decides
Some programs print 0 for a norm that they do not compute (Megatron with DeepSpeed does), so a zero counts only where the loss shows
that nothing moves: constant, zero, or no lower at the end than at the start. In reinforcement learning a zero loss is usual in the
first update, so there it is minor.

## When it is wrong
A norm that is not computed, in a run too short for its loss to fall.

## What to do
Look for parameters without gradients: frozen inputs under gradient checkpointing, an optimiser built before unfreezing, labels that
are all masked, weights that were never loaded.

## References
transformers enable_input_require_grads; PyTorch `torch.utils.checkpoint` (use_reentrant).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.breaks import in_short_log
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Evidence, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, num, sure, when

LOSS, NORM = "loss/train", "grad_norm"
OWN = 2  # rows of a loss of zero that zero-loss does not yet tell
FALLS = 0.05  # of the first loss: a run that gets that much lower is trained
ENOUGH = 20  # rows after which a loss that is not higher than at the start may be trained very slowly


def judge(case: Case) -> Iterator[Diagnosis]:
    """A norm of zero that the loss confirms."""
    if NORM not in case.facts.get("always_zero", ()) or not case.points(LOSS):
        return
    first, last = case.value_at(LOSS, case.first_step), case.value_at(LOSS, case.last_step)
    if first is None or last is None:
        return
    low, high = case.lowest(LOSS), case.highest(LOSS)
    constant = low == high
    if case.found("divergence", LOSS) or in_short_log(case) is not None:
        return  # the loss goes somewhere, and so do the weights
    if constant and low == 0 and case.points(LOSS) > OWN:
        return  # zero-loss owns it
    learns = case.has("reward*|rewards/*|kl")
    if not constant and low != 0 and last < first * (1 - FALLS):
        return  # it is trained: the program does not compute the norm
    if not constant and case.points(LOSS) > ENOUGH and last <= first:
        return
    found = Evidence(
        f"The gradient norm is exactly 0 in every row, and the loss {_stands(constant, low, high)}.",
        span=case.whole,
        role="primary",
        about=LOSS,
    )
    yield Diagnosis(
        "zero-gradient",
        f"The gradient is exactly zero: nothing is trained, and the loss {_stands(constant, low, high)}.",
        Severity.MINOR if learns else Severity.MAJOR,
        confidence=sure(case, LOSS, plain=constant),
        onset=Span(case.first_step, case.first_step),
        evidence=(found,),
        causes=ranked(
            (
                cause(
                    "no-gradient-path",
                    "No parameter is reached: frozen inputs under checkpointing, a detached graph",
                    1.0,
                    when(not constant, 1, "The loss differs from batch to batch and does not fall."),
                ),
                cause("masked-labels", "No label counts", 0.6, when(low == 0, 2, "The loss is exactly 0 in some rows.")),
                cause(
                    "weights-not-loaded",
                    "The weights were never loaded or are all alike",
                    0.4,
                    when(constant and low, 2, "The loss is the same in every row."),
                ),
                cause(
                    "first-update", "The first update of a policy has no gradient", 0.3, when(learns, 3, "It is reinforcement learning.")
                ),
                cause(
                    "rate-still-zero",
                    "The rate is zero and the norm is that of skipped steps",
                    0.2,
                    when(case.highest("lr") == 0, 2, "The learning rate is 0."),
                ),
            )
        ),
        fixes=(fix("unfreeze-layers"), fix("check-data"), fix("log-more")),
    )


def _stands(constant: bool, low: float | None, high: float | None) -> str:
    return f"stands at {num(low)}" if constant else f"moves between {num(low)} and {num(high)} without falling"


RULE = Rule(
    id="zero-gradient",
    title="The gradient is exactly zero",
    family="gradients",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(LOSS,),
    wants=(NORM,),
    uses=("divergence", "short-break"),
    judge=judge,
    examples=(
        fires("a norm of zero, and a loss that stands", lambda: {LOSS: synth.constant(11.93, 300), NORM: synth.constant(0.0, 300)}),
        quiet(
            "a norm that the program does not compute, and a loss that falls", lambda: {LOSS: synth.loss(), NORM: synth.constant(0.0, 2000)}
        ),
    ),
)
