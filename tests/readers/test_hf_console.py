"""The console of a Hugging Face Trainer: both spellings, bars, wrapped and pasted records, and what is not one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.parts import RawRun
from diagnose.readers.hf_console import READER
from diagnose.testing import check_reader

V4 = "{'loss': 2.0491, 'grad_norm': 1.41, 'learning_rate': 0.00019619, 'epoch': 0.28}\n"
V5 = "{'loss': '3.903', 'grad_norm': '1.066', 'learning_rate': '0', 'epoch': '0.02', 'num_input_tokens_seen': 128}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "console.log"
    path.write_bytes(text.encode())
    return path


def read(folder: Path, text: str) -> RawRun:
    path = written(folder, text)
    assert READER.claims(path)
    return READER.read([path])


def points(run: RawRun, name: str) -> list[tuple[int, float]]:
    series = next(s for s in run.series if s.name == name)
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def drawn(step: int, total: int = 100) -> str:
    """What tqdm draws for a step and prints for a record under it."""
    return f"\r {step:3d}%|▌         | {step}/{total} [00:05<08:00,  2.05it/s]"


@pytest.mark.parametrize(("row", "loss"), [(V4, 2.0491), (V5, 3.903)])
def test_rows_of_both_versions_are_counted_where_no_bar_stands(tmp_path: Path, row: str, loss: float) -> None:
    run = read(tmp_path, row * 3)
    assert points(run, "loss") == [(1, loss), (2, loss), (3, loss)]
    assert {s.axis for s in run.series} == {"row"}
    assert any("counted" in p.what for p in run.problems)


def test_a_bar_beside_the_rows_gives_their_steps(tmp_path: Path) -> None:
    text = "".join(f"{drawn(s)}\r{' ' * 40}\r{{'loss': {4 - s / 100}, 'epoch': {s / 50}}}\n{drawn(s)}" for s in range(10, 60, 10))
    run = read(tmp_path, text)
    assert [s for s, _ in points(run, "loss")] == [10, 20, 30, 40, 50]
    assert {s.axis for s in run.series} == {"step"}


def test_a_bar_that_lags_behind_is_mended_by_the_epoch(tmp_path: Path) -> None:
    seen = [1, 2, 3, 3, 5, 6]  # the bar missed step 4
    text = "".join(f"{drawn(b)}\n{{'loss': 1.5, 'epoch': {s / 50}}}\n" for s, b in enumerate(seen, 1))
    assert [s for s, _ in points(read(tmp_path, text), "loss")] == [1, 2, 3, 4, 5, 6]


def test_evaluation_rows_keep_the_step_before_whatever_their_own_bar_says(tmp_path: Path) -> None:
    text = f"{drawn(10)}\n{V4}{drawn(20)}\n{V4}{drawn(4, 4)}\n{{'eval_loss': 1.9, 'eval_runtime': 2.0, 'epoch': 1.0}}\n{drawn(30)}\n{V4}"
    run = read(tmp_path, text)
    assert points(run, "eval_loss") == [(20, 1.9)]
    assert [s for s, _ in points(run, "loss")] == [10, 20, 30]


def test_a_step_in_the_row_wins(tmp_path: Path) -> None:
    run = read(tmp_path, "".join(f"{drawn(s)} {{'loss': 1.0, 'step': {5 * s}}}\n" for s in (1, 2, 3)))
    assert points(run, "loss") == [(5, 1.0), (10, 1.0), (15, 1.0)]


def test_the_last_row_is_the_end_and_no_point(tmp_path: Path) -> None:
    run = read(tmp_path, V4 * 2 + "{'train_runtime': 12.3, 'train_samples_per_second': 3.1, 'train_loss': 2.2, 'epoch': 1.0}\n")
    assert run.clean_end is True
    assert not any(s.name.startswith("train_") for s in run.series)


def test_pasted_records_with_forum_quotes_wrapped_lines_and_nan_are_read(tmp_path: Path) -> None:
    text = "{‘loss’: 1.5, ‘grad_norm’: nan, ‘learning_rate’: 0.0,\n ‘epoch’: 0.01}\n{`loss`: 0.0, `grad_norm`: inf, `epoch`: 0.02}\n"
    run = read(tmp_path, text)
    assert points(run, "loss") == [(1, 1.5), (2, 0.0)]
    assert math.isnan(points(run, "grad_norm")[0][1])
    assert points(run, "grad_norm")[1][1] == math.inf


def test_several_records_on_one_line_and_text_around_them(tmp_path: Path) -> None:
    run = read(tmp_path, f"INFO step done {V4.strip()} more {V4.strip()} [INFO|trainer.py] saved\n")
    assert len(points(run, "loss")) == 2


def test_trl_names_are_kept_as_they_are(tmp_path: Path) -> None:
    row = "{'loss': -0.0, 'grad_norm': 0.0, 'reward': 0.34, 'reward_std': 0.44, 'kl': 0.0, 'rewards/accuracy': 0.2,"
    row += " 'completions/mean_length': 91.5}\n"
    run = read(tmp_path, row)
    assert {"reward", "reward_std", "kl", "rewards/accuracy", "completions/mean_length"} <= {s.name for s in run.series}


def test_a_cut_record_gives_its_whole_pairs(tmp_path: Path) -> None:
    run = read(tmp_path, V4 + "{'loss': 1.5, 'grad_norm': 0.7, 'learning_ra")
    assert points(run, "loss")[-1] == (2, 1.5)
    assert len(points(run, "learning_rate")) == 1


def test_the_banner_gives_settings_and_a_crash_an_event(tmp_path: Path) -> None:
    text = "***** Running training *****\n  Num examples = 1,000\n  Num Epochs = 3\n  Total optimization steps = 1,752\n" + V4
    text += 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'
    text += "RuntimeError: CUDA error: an illegal memory access\n"
    run = read(tmp_path, text)
    assert {s.name: s.value for s in run.settings} == {"num_train_epochs": 3, "max_steps": 1752}
    assert [e.kind for e in run.events] == ["traceback"]
    assert "train.py:7" in run.events[0].says
    assert run.clean_end is False


@pytest.mark.parametrize(
    "text",
    [
        '{"loss": 2.0, "epoch": 1}\n' * 5,  # JSON lines
        '{"log_history": [{"loss": 1.0, "step": 1}]}',
        "2026-01-01 | INFO | train | {\"epoch\": 1, \"train_loss\": \"2.0\"}\n",  # fairseq
        "config = {'model': 'gpt2', 'layers': 12}\n",
        "print({'loss': loss, 'epoch': epoch})\n",
        "iter 10: loss 3.2, time 5ms\n" * 5,
        "",
    ],
)  # fmt: skip
def test_what_is_no_such_console_is_left_alone(tmp_path: Path, text: str) -> None:
    assert not READER.claims(written(tmp_path, text))


def test_the_promises_of_every_reader(tmp_path: Path) -> None:
    text = "".join(f"{drawn(s)}\n{{'loss': {4 - s / 100}, 'grad_norm': 0.5, 'epoch': {s / 50}}}\n" for s in range(1, 40))
    check_reader(READER, [written(tmp_path, text)])


@given(st.text(alphabet="{}'\"‘’:, lossepoch0123456789.nai/[]\n\r|%", max_size=400))
def test_any_text_is_survived(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = written(tmp_path_factory.mktemp("any"), text)
    READER.claims(path)
    run = READER.read([path])
    assert all(len(s.steps) == len(s.values) for s in run.series)
