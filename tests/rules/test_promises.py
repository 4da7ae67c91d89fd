"""What every rule promises, whatever the detectors found: it never raises, and each diagnosis keeps its contract."""

from __future__ import annotations

import random

import numpy as np
import pytest

from diagnose.case import Case
from diagnose.model import Event, Finding, Mask, Setting, Signal, Span
from diagnose.parts import Rule
from diagnose.registry import CONSTANTS, _load
from diagnose.testing import broken_promises

RULES: tuple[Rule, ...] = tuple(_load("rules").found)
ON = {
    "loss/train": ("spike", "jump", "divergence", "level-shift", "nonfinite", "period", "alternation", "plateau", "drift", "growth"),
    "grad_norm": ("spike", "jump", "growth", "nonfinite", "level-shift", "period", "alternation", "drift"),
    "lr": ("jump-in-schedule",),
    "loss_scale": ("scale-collapse", "scale-floor"),
    "time/step": ("level-shift", "stalls"),
    "throughput/samples": ("level-shift", "stalls"),
    "noise_scale": ("drift", "level-shift", "collapse"),
    "loss/eval": ("eval-minimum", "nonfinite"),
    "clip_ratio": ("mostly-above",),
    "grad_norm/layer/block.0": ("dead-layer", "depth-profile"),
    "overflow_rate": ("level-shift",),
}  # fmt: skip
KEYS = (
    "nan", "posinf", "neginf", "share", "longest", "to_end", "base", "peak", "ratio", "recovered_after", "width", "z", "rate",
    "doubling_steps", "peak_ratio", "rise", "slope", "before", "after", "delta", "slope_before", "slope_after", "period_steps", "amplitude",
    "p", "total", "lambda_total", "first", "last", "layers", "below_1e7_from", "level", "median_ratio", "calibration", "minimum",
)  # fmt: skip
SETTINGS = {
    "optimizer.name": ("adamw", "sgd", None), "optimizer.lr": (1e-3, 0, None), "optimizer.beta2": (0.999, 0.95, 1.0, "auto"),
    "schedule.warmup_steps": (0, 500), "gradient_clipping": (0, 1.0, None, "off"), "precision": ("fp16", "bf16", "fp32"),
    "model.norm_position": ("pre", "post"), "model.activation": ("relu", "sigmoid", 3), "zero.stage": (0, 2), "loss_scale.window": (100, 0),
    "batch.global": (32,), "batch.micro": (4,), "optimizer.momentum": (0.99,), "model.kind": ("lstm",),
}  # fmt: skip


def random_case(seed: int) -> Case:
    """A run of 400 steps with arbitrary findings, settings, masks and facts."""
    dice = random.Random(seed)
    noise = np.random.default_rng(seed)
    steps = np.arange(0, 400, dice.choice((1, 1, 10)), dtype=np.int64)
    signals = {n: Signal(n, n, "", steps=steps, values=noise.lognormal(0, 1, len(steps))) for n in ON if dice.random() < 0.8}
    values = (0.0, 1.0, -1.0, 0.5, 3.0, 20.0, 1e-9, 1e9, float("nan"), float("inf"))
    findings = []
    for i in range(dice.randrange(0, 25)):
        signal = dice.choice(list(signals) or ["loss/train"])
        start = dice.randrange(0, 390)
        findings.append(Finding(
            dice.choice(ON[signal]), signal, Span(start, dice.randrange(start, 400)), direction=dice.choice(("up", "down", "none")),
            size=dice.choice(values), strength=dice.choice((0.0, 9.0, 50.0)), onset=Span(start, start), id=f"f{i}",
            numbers={k: dice.choice(values) for k in KEYS if dice.random() < 0.7},
        ))  # fmt: skip
    chosen = {k: Setting(k, dice.choice(v)) for k, v in SETTINGS.items() if dice.random() < 0.6}
    masks = tuple(Mask(f"X{dice.randrange(1, 6)}", "something happened", Span(s, s + 30)) for s in dice.sample(range(400), 2))
    facts = {"first_step": 0, "last_step": 399, "steps_per_point": float(steps[1] - steps[0]), "warmup_end": dice.choice((None, 0, 40))}
    facts |= dice.choice(
        ({}, {"loss_hidden_nonfinite": 30}, {"loss_field_missing": 50}, {"resumes": ((200, 0),), "attempts": 2}, {"classes_ln": 1.0})
    )
    events = (Event("overflow", "OVERFLOW!", step=200), Event("checkpoint", "saved", step=100), Event("checkpoint", "saved", step=300))
    return Case("random", signals=signals, findings=tuple(findings), settings=chosen, masks=masks, facts=facts, events=events)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_survives_any_findings_and_keeps_the_contract(rule: Rule) -> None:
    for seed in range(60):
        case = random_case(seed)
        for diagnosis in rule.judge(case):
            assert broken_promises(rule, diagnosis) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_says_nothing_about_a_run_without_findings(rule: Rule) -> None:
    assert list(rule.judge(Case())) == []


def test_each_file_is_named_after_its_rule() -> None:
    import importlib
    import pkgutil

    import diagnose.rules as package

    for module in pkgutil.iter_modules(package.__path__):
        rule = getattr(importlib.import_module(f"diagnose.rules.{module.name}"), CONSTANTS["rules"])
        assert rule.id == module.name.replace("_", "-")


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_the_page_has_its_sections(rule: Rule) -> None:
    for heading in ("What it looks for", "Why it matters", "How it decides", "When it is wrong", "What to do", "References"):
        assert f"## {heading}\n" in rule.page
