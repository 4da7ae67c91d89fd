"""Two histories from end to end, from the files that a training left to the words that its reader sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnose import diagnose
from diagnose.model import Report

SAMPLES = Path(__file__).resolve().parent.parent / "sample_logs"


@pytest.fixture(scope="module")
def bert() -> Report:
    return diagnose(SAMPLES / "bert-vanishing")


@pytest.fixture(scope="module")
def large() -> Report:
    return diagnose(SAMPLES / "gpt175b-like")


def test_gradients_that_vanish_by_depth_are_cured_by_structure_and_not_by_clipping(bert: Report) -> None:
    """A BERT-like fine-tune whose gradients fall below 1e-7 after the eighth layer from the output."""
    first = bert.diagnoses[0]
    assert first.rule == "vanishing-gradient"
    assert "below 1e-7 from layer 9 on, counted from the output" in first.summary
    changed = [c.setting for f in first.fixes for c in f.changes]
    assert changed[:3] == ["model.norm_position", "model.residual", "model.init"]
    said = " ".join(f.do for d in bert.diagnoses for f in d.fixes).lower()
    assert "clip" not in said
    assert not any(c.setting.startswith("gradient_clipping") for d in bert.diagnoses for f in d.fixes for c in f.changes)


def test_a_norm_that_carries_the_loss_scale_is_told_from_a_true_one(large: Report) -> None:
    """A 175B-like fp16 pre-training that logs norms above 1e10: 9.2e10 at a scale of 2^32 is 21."""
    first = large.diagnoses[0]
    assert (first.rule, first.onset and first.onset.first_step) == ("non-finite-loss", 20)
    scaled = next(e for e in first.evidence if "carries the loss scale" in e.says)
    assert "9.22e10" in scaled.says
    assert "21.5" in scaled.says


def test_an_fp16_run_that_breaks_is_cured_by_rate_warm_up_clipping_and_scaling(large: Report) -> None:
    rules = {d.rule for d in large.diagnoses}
    assert rules & {"gradient-explosion", "loss-scale-collapse"}
    asked = {c.setting for d in large.diagnoses for f in d.fixes for c in f.changes}
    assert {"optimizer.lr", "schedule.warmup_steps", "gradient_clipping", "loss_scale.dynamic"} <= asked
    clip = next(c for c in large.diagnoses[0].fixes[1].changes if c.setting == "gradient_clipping")
    assert clip.value == 1.0


def test_neutral_settings_get_neither_blame_nor_credit(large: Report) -> None:
    """The ZeRO stage and contiguous_gradients move memory, not numbers."""
    assert not any(c.setting.startswith("zero") for d in large.diagnoses for f in d.fixes for c in f.changes)
    assert not any("zero" in c.title.lower() and "stage" in c.title.lower() for d in large.diagnoses for c in d.causes)
    note = next(e for e in large.diagnoses[0].evidence if "contiguous_gradients" in e.says)
    assert note.role == "against"
    assert "no cause, no cure" in note.says
