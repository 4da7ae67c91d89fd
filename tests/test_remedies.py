"""Fixes: every entry renders, spelled snippets agree with the changes, and nothing is credited that does not help."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from diagnose import remedies
from diagnose.errors import BadPart
from diagnose.model import Change
from diagnose.remedies import LIBRARY, SETTINGS, fix, logging_snippet, spell
from diagnose.remedies.library import Slot

VALUES = {
    "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "lr": 3e-4, "steps": 500, "total_steps": 20000,
    "step": 1400, "patience": 4, "clip": 0.8, "z": 3.0,
    "momentum": 0.8, "weight_decay": 0.05, "std": 0.006, "share": 0.2, "activation": "gelu", "cell": "GRU", "batch": 256, "batches": 300,
    "repeats": 16, "dropout": 0.2, "initial": 4096, "window": 500, "minimum": 2, "hysteresis": 3,
    "workers": 4, "micro": 8, "accumulation": 4,
}  # fmt: skip
VANISHING = ("pre-norm", "residual-path", "init-scale", "change-activation", "unfreeze-layers", "gated-cell", "raise-lr")
PARTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("values", [{}, VALUES, dict.fromkeys(VALUES)], ids=["bare", "valued", "none"])
@pytest.mark.parametrize("id", sorted(LIBRARY))
def test_every_fix_renders(id, values):
    made = fix(id, values=values)
    assert made.id == id
    assert re.match(r"[A-Z][a-z]+ ", made.do) and made.do.endswith(".")
    assert "{" not in made.do and "None" not in made.do
    assert made.because and made.safety in ("safe", "needs-judgement")
    assert all(c.setting in SETTINGS for c in made.changes)
    assert set(made.spelled) <= set(remedies.FRAMEWORKS)
    for code in made.spelled.values():
        assert not re.search(r"\{(v|first|last|power|min_ratio|beta\d)\}", code.replace('f"', "")), code


@pytest.mark.parametrize("values", [{}, VALUES], ids=["bare", "valued"])
@pytest.mark.parametrize("id", sorted(LIBRARY))
def test_snippets_are_in_their_language(id, values):
    spelled = fix(id, values=values).spelled
    if "deepspeed" in spelled:
        assert isinstance(json.loads(spelled["deepspeed"]), dict)
    for framework in ("pytorch", "hf", "lightning"):
        compile(spelled.get(framework, ""), id, "exec")
    for line in spelled.get("megatron", "--").splitlines():
        assert line.startswith("--")
    for line in spelled.get("shell", "$ ").splitlines():
        assert line.startswith("$ ")


def numbers(text):
    return {float(n) for n in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text)}


@pytest.mark.parametrize("setting", sorted(SETTINGS))
def test_spellings_carry_the_value_of_the_change(setting):
    entry = SETTINGS[setting]
    valued = [c for c in remedies.FRAMEWORKS if isinstance(getattr(entry, c), str) and "{v}" in getattr(entry, c)]
    spelled = spell([Change(setting, "set", 37)], {"step": 100, "lr": 1.0})
    for framework in valued:
        assert 37.0 in numbers(spelled[framework]) or "37" in spelled[framework], spelled


def test_one_fix_has_one_value_everywhere():
    made = fix("lower-lr", values={"lr": 0.00025})
    assert made.do == "Lower the peak learning rate to 0.00025."
    assert made.changes == (Change("optimizer.lr", "set", 0.00025),)
    assert json.loads(made.spelled["deepspeed"]) == {"optimizer": {"params": {"lr": 0.00025}}}
    assert made.spelled["hf"] == "TrainingArguments(learning_rate=0.00025)"
    assert "0.00025" in made.spelled["pytorch"] and "--lr 0.00025" in made.spelled["megatron"]


def test_an_unknown_value_becomes_a_factor_and_a_known_present_one_a_number():
    general = fix("lower-lr", values={"lr": None})
    assert general.changes == (Change("optimizer.lr", "scale", 0.5),)
    assert '0.5 * group["lr"]' in general.spelled["pytorch"] and "deepspeed" not in general.spelled
    known = fix("lower-lr", values={"now": {"optimizer.lr": 0.01}})
    assert known.changes[0].now == 0.01
    assert json.loads(known.spelled["deepspeed"])["optimizer"]["params"]["lr"] == pytest.approx(0.005)


def test_a_rule_may_bring_its_own_change_and_reasons():
    made = fix("clip-gradients", changes=(Change("gradient_clipping", "set", 0.3),), because="b", expect="e", caution="c")
    assert [c.value for c in made.changes] == [0.3]
    assert (made.because, made.expect, made.caution) == ("b", "e", "c")
    assert json.loads(made.spelled["deepspeed"]) == {"gradient_clipping": 0.3}


def test_loss_scaling_is_one_valid_fp16_block():
    block = json.loads(fix("dynamic-loss-scale").spelled["deepspeed"])
    expected = {
        "enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 1000, "min_loss_scale": 1, "hysteresis": 2,
    }  # fmt: skip
    assert block == {"fp16": expected}
    scaler = fix("dynamic-loss-scale").spelled["pytorch"]
    assert scaler == 'scaler = torch.amp.GradScaler("cuda", init_scale=65536, growth_interval=1000)'


def test_betas_of_two_changes_are_one_pair():
    spelled = spell([Change("optimizer.beta1", "set", 0.8), Change("optimizer.beta2", "set", 0.97)])
    assert json.loads(spelled["deepspeed"])["optimizer"]["params"]["betas"] == [0.8, 0.97]


@pytest.mark.parametrize("id", VANISHING)
def test_clipping_is_never_offered_against_vanishing_gradients(id):
    made = fix(id)
    words = " ".join((made.do, made.because, made.expect, made.caution, *made.spelled.values()))
    assert "clip" not in words.lower()
    assert not any(c.setting.startswith("gradient_clipping") for c in made.changes)


def test_zero_is_credited_with_memory_only():
    for id in LIBRARY:
        made = fix(id)
        text = " ".join((made.do, made.because, made.expect, made.caution, *made.spelled.values()))
        assert "contiguous_gradients" not in text
        if re.search(r"\bZeRO\b", text):
            assert id == "less-memory" and "numerically neutral" in text
        assert '"stage"' not in text


def test_an_unknown_fix_is_refused_with_the_nearest_name():
    with pytest.raises(BadPart, match="lower-lr"):
        fix("lower-lrr")


def test_other_names_lead_to_entries():
    assert all(target in LIBRARY and name not in LIBRARY for name, target in remedies.ALSO.items())
    assert fix("rollback-and-skip", values={"step": 900, "batches": 200}).id == "roll-back-and-skip"


def test_every_slot_of_a_plan_is_spelled_or_named():
    for id, entry in LIBRARY.items():
        for plan in entry.changes:
            assert plan.setting in SETTINGS, (id, plan.setting)
            if isinstance(plan.value, Slot):
                assert plan.value.name in VALUES, (id, plan.value.name)


METRICS = (
    "loss/train", "loss/eval", "grad_norm", "grad_norm/layer", "grad_norm/layer/*", "lr", "loss_scale", "time/step", "noise_scale",
    "noise_scale|grad_sq/small", "grad_sq/big", "accuracy", "overflow_rate", "throughput/samples",
)  # fmt: skip


@pytest.mark.parametrize("framework", [None, "pytorch", "deepspeed", "hf", "HF Trainer", "megatron", "lightning", "unheard-of"])
@pytest.mark.parametrize("metric", METRICS)
def test_logging_snippets_are_code(metric, framework):
    snippet = logging_snippet(metric, framework)
    assert snippet
    if snippet.startswith("--"):
        return
    if snippet.startswith("{"):
        assert isinstance(json.loads(snippet), dict)
    else:
        compile(snippet, metric, "exec")


def test_logging_snippets_use_tags_that_are_read_back():
    metrics = pytest.importorskip("diagnose.metrics")
    for name in ("loss/train", "loss/eval", "grad_norm", "lr", "loss_scale", "time/step", "accuracy"):
        tag = re.search(r'add_scalar\("([^"]+)"', logging_snippet(name, None))[1]
        assert metrics.canonical(tag) == name
    assert metrics.canonical("grad_norm/blocks.3.attn.weight") == "grad_norm/layer/blocks.3.attn.weight"
    found = re.findall(r'add_scalar\("([^"]+)"', logging_snippet("noise_scale", None))
    assert [metrics.canonical(t) for t in found] == ["grad_sq/small", "grad_sq/big"]


def test_the_noise_snippet_measures_what_it_says():
    torch = pytest.importorskip("torch")
    logged = {}

    class Writer:
        def add_scalar(self, tag, value, step):
            logged[tag] = value

        def add_hparams(self, hparams, metrics):
            logged["hparams"] = hparams

    scope = {"torch": torch, "writer": Writer(), "micro_batch": 2, "accumulation": 3}
    exec(logging_snippet("noise_scale", None), scope)
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    batches = [torch.randn(2, 3) for _ in range(3)]
    scope["backward_and_log_noise"](model, batches, lambda m, x: m(x).pow(2).mean(), Writer(), 0)
    together = model.weight.grad.clone()
    model.zero_grad()
    model(torch.cat(batches)).pow(2).mean().backward()
    assert torch.allclose(together, model.weight.grad, atol=1e-6)
    assert logged["g_big_sq"] <= logged["g_small_sq"]
    assert logged["g_big_sq"] == pytest.approx(float(sum(p.grad.pow(2).sum() for p in model.parameters())), rel=1e-4)


def test_the_documented_settings_are_the_table():
    rows = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", (PARTS / "docs" / "settings.md").read_text("utf-8"), re.M))
    assert list(rows) == list(SETTINGS)
    for name, entry in SETTINGS.items():
        assert rows[name] == remedies.documented(entry), name
