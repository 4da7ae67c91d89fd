from __future__ import annotations

import re

import numpy as np
import pytest

from diagnose.model import Curve, Report, Severity
from diagnose.reports.text import WIDTH, column, render, render_many, sparkline


def curve(values: list[float], steps: list[int] | None = None) -> Curve:
    made = np.array(values, dtype=np.float64)
    return Curve("loss/train", "loss", "", np.array(steps or range(len(values)), dtype=np.int64), made, points=len(made))


def test_the_verdict_stands_in_the_first_line(exploded: Report) -> None:
    assert render(exploded).splitlines()[0] == f"gpt: {exploded.verdict}"


def test_a_diagnosis_says_what_since_when_how_sure_why_and_what_to_do(exploded: Report) -> None:
    text = render(exploded)
    for words in (
        "critical, sure: medium, since step 14 200 to 14 220",
        "* grad_norm grows by 12 % a step.",
        "against: The learning rate did not change.",
        "62 %  ██████      The learning rate is too high",
        "+ It is 4 times the usual.",
        "- Warm-up is long.",
        "would decide: update_ratio",
        "1. Halve the learning rate.",
        "optimizer.lr: 0.0012 -> 0.0006",
        "in deepspeed:",
        "would also fit: loss-divergence",
        "Could not be looked at",
        "writer.add_scalar('noise_scale', value, step)",
        "lr-change at 400",
        "log.txt:17  half a line",
    ):
        assert words in text, words


def test_evidence_begins_with_the_primary_one(exploded: Report) -> None:
    text = render(exploded)
    assert text.index("grad_norm grows") < text.index("The loss follows")


def test_lines_stay_within_the_width(exploded: Report, hostile: Report, several: list[Report]) -> None:
    for text in (render(exploded), render(hostile), render(hostile, verbose=True), render_many(several)):
        prose = [line for line in text.splitlines() if not line.startswith("            ")]
        assert max(map(len, prose)) <= WIDTH


def test_nothing_from_a_log_reaches_the_terminal_as_a_control(hostile: Report, several: list[Report]) -> None:
    for text in (render(hostile, verbose=True), render_many(several)):
        assert all(ch == "\n" or ch.isprintable() for ch in text)
        text.encode("utf-8")


def test_colour_only_when_asked_and_then_nothing_else_changes(exploded: Report) -> None:
    plain, coloured = render(exploded), render(exploded, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_a_healthy_run_says_so_and_still_what_was_not_looked_at(healthy: Report) -> None:
    text = render(healthy)
    assert text.startswith("calm: Nothing wrong found")
    assert "1 rule could not look" in text


def test_what_is_left_out_is_counted(make_report, make_diagnosis) -> None:  # type: ignore[no-untyped-def]
    report = make_report("many", *[make_diagnosis(Severity.MINOR, step) for step in range(100, 600, 100)])
    assert "2 more diagnoses (in full with --verbose)" in render(report)
    assert "more diagnos" not in render(report, verbose=True)


def test_what_is_only_remarkable_takes_one_line_after_what_is_wrong(make_report, make_diagnosis) -> None:  # type: ignore[no-untyped-def]
    wrong, remarkable = make_diagnosis(Severity.MAJOR), make_diagnosis(Severity.INFO, 100)
    text = render(make_report("r", wrong, remarkable))
    assert text.count("What to do") == 1
    assert "1 more diagnosis" in text
    assert "1 diagnosis (in full" in render(make_report("r", remarkable))


def test_long_names_are_cut_in_the_middle_since_runs_differ_at_both_ends(make_report, make_diagnosis) -> None:  # type: ignore[no-untyped-def]
    text = render_many([make_report("a" * 30 + "middle" + "b" * 30, make_diagnosis()), make_report("x")])
    assert "aaaa…bbbb" in text


def test_a_spike_of_one_point_among_many_is_seen() -> None:
    values = [1.0] * 10_000
    values[5_003] = 50.0
    bars, *_ = sparkline(curve(values), 60)
    assert bars[column(curve(values), 5_003, 60)] == "█"
    assert bars.count("█") == 1


def test_nan_and_infinity_are_marked_even_beside_a_finite_value() -> None:
    values = [1.0] * 1_000
    values[400], values[900] = np.nan, np.inf
    bars, *_ = sparkline(curve(values), 50)
    assert [i for i, ch in enumerate(bars) if ch == "!"] == [20, 45]


def test_dips_are_seen_where_dips_matter() -> None:
    values = [8.0] * 1_000
    values[500] = 1.0
    assert "▁" not in sparkline(curve(values), 40)[0]
    assert "▁" in sparkline(curve(values), 40, dips=True)[0]


def test_a_gap_in_the_log_is_a_gap_in_the_line() -> None:
    bars, *_ = sparkline(curve([1.0, 2.0, 3.0, 4.0], [0, 1, 98, 99]), 10)
    assert bars[1:9] == " " * 8


@pytest.mark.parametrize(
    "values", [[np.nan] * 4, [0.0] * 4, [-1e308, 0.0, 1e308], [5e-324, 1e308, 1.0], [np.inf, -np.inf, np.nan], [1.0, 1.0 + 2e-16, 1.0]]
)
def test_any_floats_are_survived(values: list[float]) -> None:
    bars, *_ = sparkline(curve(values), 20)
    assert len(bars) == 20


def test_the_onset_is_marked_under_its_column(exploded: Report) -> None:
    lines = render(exploded).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("   grad_norm  "))
    assert lines[at + 1].index("^") == len("   grad_norm  ") + column(exploded.curves[1], 14_200, 64)


def test_the_table_is_worst_first_and_counts_itself(several: list[Report]) -> None:
    lines = render_many(several).splitlines()
    assert lines[0] == "4 runs: 1 critical, 1 major, 1 could not be judged, 1 without a diagnosis."
    assert [line.split()[0] for line in lines[4:-2] if line[0] != " "] == ["critical", "major", "unreadable", "none"]
    assert lines[-1] == "One run in full: diagnose runs/gpt/log.txt"
