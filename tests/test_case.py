from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from diagnose.case import Case, Hypothesis, because, ranked
from diagnose.model import Event, Finding, Frozen, Mask, Setting, Span
from diagnose.testing import signal


def finding(kind: str, on: str, at: int, **more: Any) -> Finding:
    return Finding(kind, on, Span(at, at + 10), onset=Span(at, at), **{"strength": 10.0, **more})


CASE = Case(
    "run",
    signals=Frozen(
        {
            "loss/train": signal([4.0, math.nan, 3.0, 2.0, math.inf], steps=np.array([10, 20, 30, 40, 50])),
            "grad_norm/layer/0": signal([1.0]),
            "grad_norm/layer/1": signal([math.nan]),
        }
    ),
    findings=(
        finding("spike", "loss/train", 40, direction="up"),
        finding("spike", "grad_norm", 35, strength=4.0, masks=("X1: lr-change at 30",)),
        finding("spike", "grad_norm", 38),
        finding("drift", "time/step", 5),
    ),
    events=(Event("resume", "resumed", step=30), Event("eval", "no step")),
    settings=Frozen(
        {
            "optimizer.lr": Setting("optimizer.lr", 3e-4, where="ds.json"),
            "fp16": Setting("fp16", True),
            "clip": Setting("clip", math.inf),
            "name": Setting("name", "adam"),
            "batch.global": Setting("batch.global", 10**400),
        }
    ),
    masks=(Mask("X1", "lr-change at 30", Span(25, 35)),),
    facts=Frozen(first_step=10, last_step=1010, steps_per_point=10.0, warmup_end=100.0, framework="deepspeed"),
)


def test_the_extent_of_the_run() -> None:
    assert (CASE.first_step, CASE.last_step, CASE.length, CASE.framework) == (10, 1010, 1000, "deepspeed")
    assert CASE.whole == Span(10, 1010)
    assert CASE.near(5, 0.02) == 50  # five points of ten steps; 2 % would be 20
    assert CASE.near(1, 0.1) == 100
    assert CASE.warmup_end == 100
    empty = Case("empty")
    assert (empty.first_step, empty.length, empty.warmup_end) == (0, 1, None)


def test_what_is_logged_by_name_by_either_and_by_family() -> None:
    assert CASE.has("loss/train") and CASE.has("loss/eval|loss/train") and CASE.has("grad_norm/layer/*")
    assert not CASE.has("grad_norm") and not CASE.has("lr|mfu") and not CASE.has("time/*")
    assert CASE.family("grad_norm/layer/") == ("grad_norm/layer/0", "grad_norm/layer/1")
    assert (CASE.points("loss/train"), CASE.points("nothing")) == (5, 0)


def test_values_are_finite_ones_at_or_before_a_step() -> None:
    assert [CASE.value_at("loss/train", s) for s in (0, 10, 25, 39, 40, 1000)] == [4.0, 4.0, 4.0, 3.0, 2.0, 2.0]
    assert CASE.value_at("nothing", 5) is None
    assert CASE.value_at("grad_norm/layer/1", 5) is None


def test_levels_within_a_span() -> None:
    early = Span(0, 30)
    assert (CASE.level("loss/train"), CASE.level("loss/train", early)) == (3.0, 3.5)
    assert (CASE.highest("loss/train"), CASE.lowest("loss/train", early)) == (4.0, 3.0)
    assert CASE.quantile("loss/train", 1.0, early) == 4.0
    assert CASE.share_of("loss/train", 2.5, 3.5) == pytest.approx(1 / 3)
    assert CASE.first_step_where("loss/train", 0.0, 3.5) == 30
    assert CASE.first_step_where("loss/train", 0.0, 3.5, Span(35, 60)) == 40
    assert CASE.first_step_where("loss/train", 9.0, 10.0) is None
    for ask in (CASE.level, CASE.highest, CASE.lowest):
        assert ask("nothing") is None and ask("loss/train", Span(11, 12)) is None
    assert CASE.quantile("nothing", 0.5) is None
    assert CASE.share_of("nothing", 0, 1) == 0.0
    assert CASE.first_step_where("nothing", 0, 1) is None


def test_findings_by_kind_signal_strength_direction_time_and_mask() -> None:
    def steps(*args: Any, **more: Any) -> list[int]:
        return [f.onset.first_step for f in CASE.found(*args, **more)]

    assert steps("spike") == [35, 38, 40]
    assert steps("spike", "grad_norm") == [35, 38]
    assert steps("spike", ("loss/*", "time/*")) == [40]
    assert steps("spike", at_least=5.0) == [38, 40]
    assert steps("spike", direction="up") == [40]
    assert steps("spike", within=Span(36, 39)) == [38]
    assert steps("spike", ending_before=Span(38, 60)) == [35]
    assert steps("spike", starting_after=35) == [38, 40]
    assert steps("spike", masked=False) == [38, 40]
    assert steps("nothing") == []


def test_what_leads_is_the_nearest_before() -> None:
    (spike,) = CASE.found("spike", "loss/train")
    lead = CASE.leads(spike, "spike", "grad_norm", within_steps=5)
    assert lead is not None and lead.onset.first_step == 38
    assert CASE.leads(spike, "spike", "grad_norm", within_steps=1) is None
    assert CASE.leads(spike, "spike", "loss/train", within_steps=5) is None
    beside = CASE.together(Span(30, 32), "spike", "grad_norm", slack=3)
    assert beside is not None and beside.onset.first_step == 35
    assert CASE.together(Span(30, 32), "spike", "grad_norm", slack=2) is None


def test_settings_are_numbers_only_when_they_are() -> None:
    assert CASE.setting("optimizer.lr") == CASE.number("optimizer.lr") == 3e-4
    assert CASE.where("optimizer.lr") == "ds.json"
    assert [CASE.number(n) for n in ("fp16", "clip", "name", "nothing", "batch.global")] == [None] * 5
    assert CASE.setting("nothing", 7) == 7
    assert CASE.where("nothing") == ""


def test_events_and_masks_by_place() -> None:
    assert [e.kind for e in CASE.said("resume")] == ["resume"]
    assert CASE.said("eval", within=Span(0, 100)) == ()
    assert CASE.said("resume", within=Span(0, 29)) == ()
    assert [m.kind for m in CASE.masks_at(Span(35, 40))] == ["X1"]
    assert CASE.masks_at(Span(35, 40), "X2") == CASE.masks_at(Span(36, 40)) == ()


def test_causes_are_ranked_by_additive_evidence() -> None:
    """Half a decade of odds for each unit of weight: two units are ten times the odds."""
    causes = ranked(
        [
            Hypothesis("a", "A", evidence=(because(2, "for"), because(0, "nothing"))),
            Hypothesis("b", "B"),
            Hypothesis("c", "C", evidence=(because(-4, "against"),)),
        ]
    )
    assert [c.id for c in causes] == ["a", "b"]  # 10 : 1 : 0.01, and what is below 3 % is left out
    assert causes[0].share / causes[1].share == pytest.approx(10.0, rel=0.02)
    assert [e.says for e in causes[0].because] == ["for"]
    assert sum(c.share for c in causes) <= 1.0 + 1e-9
    assert because(-1, "x")[1].role == "against"
    assert ranked([]) == ()
