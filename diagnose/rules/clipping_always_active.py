"""Almost every step is clipped, far below the natural norm.

## What it looks for
A gradient norm that stands above the clipping threshold in more than 80 % of the steps, by a large factor.

## Why it matters
The threshold then sets the step, not the gradient: the effective learning rate becomes lr times threshold over norm, and
differences between batches are lost.

## How it decides
The share alone says little: many healthy runs clip most steps at a threshold near the usual norm (up to 4.6 times in labelled
runs). So the median norm must be more than ten times the threshold for *minor*; that with a loss that stands still is *major*.
Between three and ten times it is *info*.

## When it is wrong
Adam divides a constant factor out, so that with Adam the harm is small. A norm that is logged with the loss scale in it (gate
H4) would look like this; it was divided out where the scale is logged.

## What to do
Raise the threshold to about twice the median norm, or use one that adapts. If the norm is rising, look at the learning rate.

## References
Zhang et al. (1905.11881); Gopher (2112.11446); ZClip (2504.02507).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Cause, Diagnosis, Finding, Severity, Span
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import adam, cause, clip_threshold, num, number, percent, primary, related, some, sure, when

RATIO, NORM, LOSS = "clip_ratio", "grad_norm", "loss/train"
FAR, NEAR = 10.0, 3.0  # healthy labelled runs reach 4.6, planted faults begin at 20 (measured)


def judge(case: Case) -> Iterator[Diagnosis]:
    """One diagnosis for the whole run."""
    above = next(iter(case.found("mostly-above", RATIO)), None)
    if above is None:
        return
    times, share = number(above, "median_ratio", default=above.size), number(above, "share", default=1.0)
    if times < NEAR or share < 0.8:
        return
    clip, usual = clip_threshold(case), case.level(NORM)
    stuck = next(iter(case.found("plateau", LOSS)), None)
    severity = Severity.INFO if times < FAR else Severity.MAJOR if stuck and adam(case) is False else Severity.MINOR
    yield Diagnosis(
        "clipping-always-active",
        f"Clipping cuts {percent(share)} of the steps: the usual gradient norm is {num(times)} times the threshold of {num(clip)}.",
        severity,
        confidence=sure(case, RATIO, plain=times >= FAR),
        onset=None,
        evidence=some(
            primary(above, f"The median norm {num(usual)} is {num(times)} times the threshold; {percent(share)} of the steps are cut."),
            related(stuck, "The loss stands still.") if stuck else None,
        ),
        causes=_causes(case, above),
        fixes=(
            fix("loosen-clip", values={"clip": _sized(usual)}),
            fix("raise-lr", values={"lr": _doubled(case)}),
        ),
    )


def _sized(usual: float | None) -> float | None:
    return None if usual is None else float(f"{2 * usual:.2g}")


def _doubled(case: Case) -> float | None:
    peak = case.highest("lr") or case.number("optimizer.lr")
    return None if not peak else float(f"{2 * peak:.2g}")


def _causes(case: Case, above: Finding) -> tuple[Cause, ...]:
    half = Span(case.first_step, case.first_step + case.length // 2)
    early, late = case.level(RATIO, half), case.level(RATIO, Span(half.last_step, case.last_step))
    rising = early is not None and late is not None and late > 2 * early
    scaled = case.setting("precision") == "fp16" and not case.has("loss_scale")
    return ranked(
        (
            cause(
                "clip-too-low",
                "The threshold lies below the natural norm of this model",
                1.0,
                when(early and not rising, 1, "The norm is the same all along."),
            ),
            cause("lr-too-high", "The norm has grown", 0.4, when(rising, 2, f"The ratio rises from {num(early)} to {num(late)}.")),
            cause(
                "clip-before-unscale",
                "Gradients are clipped before they are divided by the loss scale",
                0.2,
                when(scaled, 2, "The precision is fp16 and the loss scale is not logged."),
            ),
            cause(
                "summed-gradients",
                "Gradients are summed over micro-batches or tokens, not averaged",
                0.3,
                would_decide="the gradient accumulation steps",
            ),
        )
    )


RULE = Rule(
    id="clipping-always-active",
    title="Clipping is always active",
    family="gradients",
    severity=Severity.MAJOR,
    status="preview",
    since="0.1",
    needs=(RATIO,),
    wants=(NORM, LOSS),
    uses=("mostly-above", "plateau"),
    judge=judge,
    examples=(
        fires("a threshold at a fortieth of the usual norm", lambda: {NORM: synth.norm(level=40.0)}, settings={"gradient_clipping": 1.0}),
        quiet("a threshold a little below the usual norm", lambda: {NORM: synth.norm(level=1.3)}, settings={"gradient_clipping": 1.0}),
        quiet("a threshold that is rarely reached", lambda: {NORM: synth.norm(level=0.5)}, settings={"gradient_clipping": 1.0}),
    ),
)
