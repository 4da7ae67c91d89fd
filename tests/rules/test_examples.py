"""Every rule's examples, through all detectors: they are its tests, the pictures on its page and what `diagnose explain` draws."""

from __future__ import annotations

import pytest

from diagnose import registry, synth
from diagnose.engine import judge_signals
from diagnose.parts import Rule
from diagnose.testing import check_rule, of

RULES: tuple[Rule, ...] = tuple(registry.rules())


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_fires_on_its_examples_and_not_on_the_near_misses(rule: Rule) -> None:
    check_rule(rule)


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_with_everything_logged_is_not_judged_worse_than_a_remark(seed: int) -> None:
    signals = {
        "loss/train": synth.loss(seed=seed),
        "grad_norm": synth.norm(seed=seed + 1),
        "lr": synth.rate(),
        "time/step": synth.step_time(seed=seed + 2),
        "loss/eval": synth.evals(20, seed=seed + 3),
        "loss_scale": synth.loss_scale(),
        "noise_scale": synth.noise_scale(2000, seed=seed + 4),
        **synth.layers(12, 2000, seed=seed + 5),
    }
    _, outcomes = judge_signals({name: of(curve, name=name) for name, curve in signals.items()}, settings={"gradient_clipping": 1.0})
    assert [(o.rule, o.error) for o in outcomes if o.error] == []
    assert [d.summary for o in outcomes for d in o.diagnoses if d.severity.rank > 0] == []
