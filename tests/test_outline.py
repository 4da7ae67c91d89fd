from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model import Change, Report
from diagnose.outline import (
    Card,
    ChartSpec,
    Mark,
    Snippet,
    Table,
    clean,
    clean_block,
    new_value,
    number,
    outline,
    overview,
    ranked,
    shown,
    summary,
)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (14_200, "14 200"),
        (1700, "1700"),
        (1_234_567, "1 234 567"),
        (-14_200, "-14 200"),
        (0, "0"),
        (0.0, "0"),
        (2.9, "2.9"),
        (65_536.0, "65 536"),
        (3.14159, "3.142"),
        (0.0001, "0.0001"),
        (1e-7, "1e-7"),
        (1.5e10, "1.5e10"),
        (12_345.678, "12 350"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (np.int64(14_200), "14 200"),
        (np.float32(0.5), "0.5"),
        (10**400, "1e400"),
        (True, "true"),
        (0.99999, "1"),
    ],
)
def test_numbers_have_four_digits_and_plain_groups(value: float, said: str) -> None:
    assert number(value) == said


@given(st.floats() | st.integers(-(10**20), 10**20))
def test_any_number_is_said_in_ascii_and_close_to_what_it_is(value: float) -> None:
    said = number(value)
    assert said.isascii()
    if abs(value) < 1e308:  # 1.798e308 rounds up to infinity
        assert float(said.replace(" ", "")) == pytest.approx(value, rel=6e-4)


@given(st.text())
def test_clean_text_is_one_printable_line(text: str) -> None:
    assert clean(text) == "" or all(ch.isprintable() or ch in "\u200c\u200d" for ch in clean(text))
    assert all(ch.isprintable() or ch in "\n\u200c\u200d" for ch in clean_block(text))


def test_terminal_escapes_go_whole_and_other_controls_are_named() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07end\x00\u202e") == "red end\\x00\\u202e"
    assert clean_block("a\r\n\tb") == "a\n    b"


def test_values_are_shown_for_people() -> None:
    assert [shown(v) for v in (None, True, 14_200, [1, "a"], {"k": 0.5}, "x\ny")] == ["not set", "true", "14 200", "1, a", "k: 0.5", "x y"]


@pytest.mark.parametrize(
    ("change", "new"),
    [
        (Change("lr", "scale", 0.5, now=0.0012), "0.0006"),
        (Change("lr", "scale", 0.5), "x 0.5"),
        (Change("warmup", "add", 1000, now=14_200), "15200"),  # to be copied: no groups
        (Change("warmup", "add", 100), "+ 100"),
        (Change("fp16", "set", False, now=True), "false"),
        (Change("odd", "scale", 0.5, now="auto"), "x 0.5"),
    ],
)
def test_a_change_is_computed_where_the_present_value_is_known(change: Change, new: str) -> None:
    assert new_value(change) == new


def test_sections_stand_in_the_order_of_need(exploded: Report) -> None:
    assert [s.id for s in outline(exploded).sections] == ["diagnoses", "blind", "normal", "unexplained", "read", "problems"]


def test_a_card_carries_its_chart_and_the_spelling_of_the_framework_found(exploded: Report) -> None:
    section = outline(exploded).section("diagnoses")
    assert section is not None
    card = section.blocks[0]
    assert isinstance(card, Card)
    assert isinstance(card.chart, ChartSpec)
    assert card.chart.signals == ("grad_norm", "loss/train")  # what the primary evidence rests on stands first
    assert card.chart.marks == (Mark(14_200, "onset"), Mark(14_500, "end", "end"))
    assert card.fixes[0].framework == "deepspeed"
    assert card.fixes[0].snippet == Snippet("json", '{\n  "gradient_clipping": 1.0\n}')
    assert [name for name, _ in card.fixes[0].others] == ["pytorch"]


def test_what_could_not_be_looked_at_comes_with_the_code_that_would_log_it(healthy: Report) -> None:
    section = outline(healthy).section("blind")
    assert section is not None
    assert any(isinstance(b, Snippet) and "add_scalar" in b.code for b in section.blocks)
    table = next(b for b in section.blocks if isinstance(b, Table))
    assert table.rows == (("noise_scale or noise_scale/small", "noise-scale-drift"),)


def test_a_rule_that_failed_is_told(hostile: Report) -> None:
    assert outline(hostile).section("failed") is not None


def test_runs_are_ranked_by_how_bad_with_the_unreadable_before_the_clean(several: list[Report]) -> None:
    order = [r.verdict for r in ranked(several)]
    assert order == [r.verdict for r in ranked(reversed(several))]
    assert [overview(r)[2] for r in ranked(several)] == ["critical", "major", "unreadable", "none"]
    assert summary(several).startswith("4 runs: 1 critical")
