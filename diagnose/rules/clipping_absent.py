"""Nothing limits the gradients in a run that needed it.

## What it looks for
Gradient clipping that is off (or a threshold that the norm never comes near) in a run in which the gradient norm broke out.

## Why it matters
One unusual batch can then undo thousands of steps.

## How it decides
Absence counts only when the configuration says so, or the threshold is more than five times every logged norm. Without an
incident it is no fault and nothing is said; with one it is *minor*, since the incident has a diagnosis of its own.

## When it is wrong
Optimisers with a limit of their own (Adafactor, StableAdamW, LARS) need no clipping.

## What to do
Clip at about the upper norms before the incident; 1.0 is a common start.

## References
Pascanu et al. (1211.5063); Gopher (2112.11446); ZClip (2504.02507).
"""

from __future__ import annotations

from collections.abc import Iterator

from diagnose import synth
from diagnose.case import Case, ranked
from diagnose.model import Diagnosis, Evidence, Finding, Severity
from diagnose.parts import Rule, fires, quiet
from diagnose.remedies import fix
from diagnose.wording import cause, clip_threshold, healthy_clip, num, number, related, since, sure

NORM = "grad_norm"
OUTBREAK = 10.0  # times its base: a norm that clipping would have cut (knowledge G1)
OWN_LIMIT = ("adafactor", "stableadamw", "stable_adamw", "lars", "lamb")


def judge(case: Case) -> Iterator[Diagnosis]:
    """The first outbreak of the gradient norm, when clipping is known to be off."""
    clip, highest = clip_threshold(case), case.highest(NORM)
    if str(case.setting("optimizer.name", "") or "").lower() in OWN_LIMIT or clip is None:
        return
    if clip > 0 and (highest is None or highest > clip / 5):  # five times every norm: as good as none (knowledge G7)
        return
    outbreak = next((f for f in _outbreaks(case) if not case.masks_at(f.onset, "X3", "X5")), None)
    if outbreak is None:
        return
    value = healthy_clip(case, outbreak.onset)
    how = "off" if clip == 0 else f"at {num(clip)}, which no norm reached"
    yield Diagnosis(
        "clipping-absent",
        f"Gradient clipping is {how}, and the gradient norm breaks out at {since(outbreak.onset.first_step)}.",
        Severity.MINOR,
        confidence=sure(case, NORM),
        onset=outbreak.onset,
        evidence=(
            Evidence(f"Clipping is {how}.", role="primary", about="gradient_clipping"),
            related(
                outbreak, f"The norm rises to {num(number(outbreak, 'peak_ratio', 'ratio', default=outbreak.size))} times its usual size."
            ),
        ),
        causes=ranked((cause("no-clipping", "Nothing limits the gradient", 1.0),)),
        fixes=(fix("clip-gradients", values={"clip": value}),),
        rivals=("gradient-explosion", "loss-spike", "loss-divergence", "non-finite-loss", "warmup-too-short"),
    )


def _outbreaks(case: Case) -> list[Finding]:
    grown = [f for f in case.found("growth", NORM, direction="up") if number(f, "peak_ratio") >= OUTBREAK]
    spikes = [f for f in case.found("spike", NORM) if number(f, "ratio") >= OUTBREAK]
    broken = list(case.found("nonfinite", "loss/train"))
    return sorted(grown + spikes + (broken if grown or spikes else []), key=lambda f: f.onset.first_step)


RULE = Rule(
    id="clipping-absent",
    title="Gradients are not clipped",
    family="gradients",
    severity=Severity.MINOR,
    status="preview",
    since="0.1",
    needs=(NORM,),
    wants=("loss/train",),
    uses=("growth", "spike", "nonfinite"),
    judge=judge,
    examples=(
        fires(
            "clipping is off and the norm breaks out",
            lambda: {NORM: synth.with_spike(synth.norm(), at=1200, ratio=40.0, width=60)},
            settings={"gradient_clipping": 0},
        ),
        quiet("clipping is off and nothing happens", lambda: {NORM: synth.norm()}, settings={"gradient_clipping": 0}),
        quiet(
            "the norm breaks out and is clipped",
            lambda: {NORM: synth.with_spike(synth.norm(), at=1200, ratio=40.0, width=60)},
            settings={"gradient_clipping": 1.0},
        ),
    ),
)
