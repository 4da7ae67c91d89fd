"""Stitching, hygiene gates, derived signals and masks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose import signals
from diagnose.model import Event, Setting
from diagnose.table import Run, attempts_of, ordered


def run(settings=(), events=(), **named):
    series = []
    for name, pair in named.items():
        at, values = pair
        metric = name.replace("__", "/")
        series.append(ordered(metric, metric, np.asarray(at, np.int64), np.asarray(values, float), None, rank=None, source=0))
    spelled = tuple(Setting(k, v, spelled=k) for k, v in dict(settings).items())
    return Run("r", series=tuple(series), settings=spelled, events=tuple(events))


def slow_stitch(steps):
    """The rule in the plainest words: a writer that goes back to s forgets everything at or after s; the last write of a step wins."""
    kept = {}
    steps = list(steps)
    last = None
    for i, s in enumerate(steps):
        if last is not None and s < last:
            kept = {k: v for k, v in kept.items() if k < s}
        kept[s] = i
        last = s
    return [kept[s] for s in sorted(kept)]


@given(st.lists(st.builds(lambda a, n: list(range(a, a + n)), st.integers(0, 60), st.integers(2, 30)), min_size=1, max_size=5))
def test_stitching_equals_the_plain_rule(attempts):
    steps = np.array([s for a in attempts for s in a], np.int64)
    tries = attempts_of(steps)
    order = np.lexsort((steps, tries))
    got = signals.stitch(steps[order], tries[order])
    assert list(steps[order][got]) == sorted({*steps[order][got]})
    want = slow_stitch(steps)
    assert list(steps[order][got]) == [int(steps[i]) for i in want]


def test_a_stray_point_does_not_erase_the_run():
    steps = np.array([1, 2, 3, 0, 4, 5])
    tries = attempts_of(steps)
    order = np.lexsort((steps, tries))
    assert list(steps[order][signals.stitch(steps[order], tries[order])]) == [0, 1, 2, 3, 4, 5]


def test_h2_two_decimals_are_seen():
    assert signals.resolution(np.array([1.25, 3.5, 0.01])) == 0.01
    assert signals.resolution(np.array([0.1234567, 0.2, 0.3])) == 0.0


def test_h4_a_loss_scaled_norm_is_divided():
    at = np.arange(40)
    scale = 2.0**32 / 2.0 ** (at // 5)
    true = 2.0 + 0.05 * np.sin(at)
    made = signals.build(run(grad_norm=(at, true * scale), loss_scale=(at, scale), loss__train=(at, 5 - 0.01 * at)))
    assert made.facts["grad_norm_was_scaled"]
    np.testing.assert_allclose(made.by_name["grad_norm"].values, true)


def test_h4_a_true_norm_is_left_alone():
    at = np.arange(40)
    scale = 2.0**16 / 2.0 ** (at // 5)
    true = 2.0 + 0.5 * np.sin(at)
    made = signals.build(run(grad_norm=(at, true), loss_scale=(at, scale), loss__train=(at, 5 - 0.01 * at)))
    assert "grad_norm_was_scaled" not in made.facts


def test_h5_a_norm_that_is_always_zero_counts_as_not_logged():
    at = np.arange(10)
    made = signals.build(run(grad_norm=(at, np.zeros(10)), loss__train=(at, np.ones(10))))
    assert "grad_norm" not in made.by_name and made.facts["always_zero"] == ("grad_norm",)


def test_h6_a_filtered_nan_is_a_nan():
    at = np.arange(12)
    loss = np.where(at < 6, 2.0 - 0.1 * at, 0.0)
    norm = np.where(at < 6, 1.0 + 0.01 * at, np.nan)
    made = signals.build(run(grad_norm=(at, norm), loss__train=(at, loss)))
    assert made.facts["loss_hidden_nonfinite"] == 6 and np.isnan(made.by_name["loss/train"].values[6:]).all()


def test_h7_a_loss_field_that_goes_missing_is_seen():
    at = np.arange(20)
    made = signals.build(run(grad_norm=(at, 1.0 + 0.01 * at), loss__train=(at[:15], 5.0 - 0.1 * at[:15])))
    assert made.facts["loss_field_missing"] == 15


def test_skips_are_counted_from_a_cumulative_counter_that_restarts():
    made = signals.build(run(steps__skipped_total=([1, 2, 3, 4, 5], [1, 1, 2, 1, 1]), loss__train=([1, 2, 3], [3, 2, 1])))
    assert list(made.by_name["steps/skipped"].values) == [1, 0, 1, 1, 0]


def test_overflow_lines_become_skips():
    at = np.arange(20)
    made = signals.build(run(events=[Event("overflow", "", step=7)], loss__train=(at, 5 - 0.1 * at)))
    skipped = made.by_name["steps/skipped"]
    assert skipped.values.sum() == 1 and skipped.values[skipped.steps == 7] == 1


def test_the_noise_scale_of_known_noise_is_found():
    rng = np.random.default_rng(0)
    n, small, big, g2, trace = 4000, 4, 64, 0.5, 20.0
    a = g2 + trace / small * rng.chisquare(50, n) / 50
    b = g2 + trace / big * rng.chisquare(50, n) / 50
    made = signals.build(
        run({"gns.batch_size_small": small, "gns.batch_size_big": big}, grad_sq__small=(np.arange(n), a), grad_sq__big=(np.arange(n), b))
    )
    assert made.by_name["noise_scale"].values[-1] == pytest.approx(trace / g2, rel=0.1)


def test_a_cyclic_rate_and_a_batch_change_are_known_events():
    at = np.arange(400)
    lr = 1e-3 * (0.55 + 0.45 * np.cos(2 * np.pi * at / 80))
    batch = np.where(at < 200, 8, 16)
    kinds = {m.kind for m in signals.build(run(lr=(at, lr), batch_size=(at, batch), loss__train=(at, 5 - 0.001 * at))).masks}
    assert {"X2", "X3", "X10"} <= kinds


def test_a_restart_is_a_known_event():
    steps = np.r_[np.arange(100), np.arange(60, 160)]
    made = signals.build(run(loss__train=(steps, 5 - 0.01 * steps)))
    assert made.facts["attempts"] == 2 and made.facts["resumes"] == ((99, 60),) and "X5" in {m.kind for m in made.masks}
    assert list(made.by_name["loss/train"].steps) == list(range(160))
