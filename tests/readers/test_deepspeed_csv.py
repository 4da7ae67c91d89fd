"""DeepSpeed's CSV monitor against pandas, and files of several process starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.readers.deepspeed_csv import READER

DATA = Path(__file__).parent.parent / "data" / "deepspeed"
FILES = sorted(DATA.rglob("Train_*.csv"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parts[-4]}-{p.stem}")
def test_agrees_with_pandas(path: Path) -> None:
    assert READER.claims(path)
    (series,) = READER.read([path]).series
    table = pd.read_csv(path)
    table = table[table["step"] != "step"].astype({"step": "int64", table.columns[1]: "float64"})
    assert series.steps.tolist() == table["step"].tolist()
    np.testing.assert_allclose(series.values, table.iloc[:, 1], rtol=1e-15)  # pandas 2 rounds the last bit by default
    assert series.axis == "samples" and series.name == "Train/Samples/" + table.columns[1]


def test_a_second_header_is_a_restart_and_the_order_stays() -> None:
    paths = sorted((DATA / "v0.19.8_z1_fp32_rerun_same_dir/csv/job").glob("*.csv"))
    found = READER.read(paths)
    assert [len(s.steps) for s in found.series] == [40] * len(paths)
    assert found.series[0].steps.tolist() == list(range(8, 161, 8)) * 2
    assert [(e.kind, e.numbers["start"]) for e in found.events] == [("restart", 2.0)] and not found.problems


@pytest.mark.parametrize(
    ("path", "home"),
    [("r/csv/job/Train_Samples_lr.csv", "r"), ("r/out/job/Train_Samples_lr.csv", "r/out"), ("r/tensorboard/job/Train_x.csv", "r")],
)
def test_the_run_lives_above_the_folder_of_monitors(path: str, home: str) -> None:
    assert READER.home(Path(path)) == Path(home)


@pytest.mark.parametrize(
    ("name", "header", "tag"),
    [
        ("Train_Samples_train_loss.csv", "step,train_loss", "Train/Samples/train_loss"),
        ("Train_Eigenvalues_ModelBlockParam_0.csv", "step,ModelBlockParam_0", "Train/Eigenvalues/ModelBlockParam_0"),
        ("Train_my_loss.csv", "step,my loss", "Train/my loss"),
        ("Train_a_b_loss.csv", "step,loss", "Train_a_b_loss"),  # Train/a/b/loss or Train/a_b/loss: not known
    ],
)
def test_the_tag_is_rebuilt_where_it_is_unambiguous(tmp_path: Path, name: str, header: str, tag: str) -> None:
    path = tmp_path / name
    path.write_text(f"{header}\r\n8,65536\r\n16,131072.0\r\n24,nan\r\n")
    assert READER.claims(path)
    (series,) = READER.read([path]).series
    assert series.name == tag and series.values[:2].tolist() == [65536.0, 131072.0] and np.isnan(series.values[2])


@pytest.mark.parametrize(
    ("name", "text"),
    [("metrics.csv", "step,lr\n"), ("Train_Samples_lr.csv", "epoch,lr\n"), ("Train_Samples_lr.csv", "step,loss\n"), ("Train_x.csv", "")],
)
def test_other_tables_are_not_claimed(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert not READER.claims(tmp_path / name) and not READER.claims(tmp_path)


def test_a_bad_row_is_a_note_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "Train_Samples_lr.csv"
    path.write_bytes(b"step,lr\n8,1\n16\n" + b"x" * 100_000 + b"\n\0\0\0\n24,3\n")
    found = READER.read([path])
    assert found.series[0].steps.tolist() == [8, 24]
    assert found.problems[0].where == "Train_Samples_lr.csv:3"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 400))
def test_a_truncated_file_reads_as_a_shorter_one(tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    """Apart from the last row, whose number may be cut."""
    whole_path = DATA / "v0.19.8_z2_fp16/csv/job/Train_Samples_lr.csv"
    path = tmp_path_factory.mktemp("t") / whole_path.name
    path.write_bytes(whole_path.read_bytes()[:size])
    (whole,) = READER.read([whole_path]).series
    for series in READER.read([path]).series:
        kept = len(series.steps) - 1
        assert series.steps[:kept].tolist() == whole.steps[:kept].tolist()
        assert series.values[:kept].tolist() == whole.values[:kept].tolist()


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("t") / "Train_Samples_lr.csv"
    path.write_bytes(b"step,lr\n" + raw)
    READER.claims(path)
    READER.read([path])
