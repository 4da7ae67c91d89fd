"""The run table: exact round trip, atomic write, honest refusal."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose.errors import BadTable
from diagnose.model import Event, Problem, Setting, Source
from diagnose.table import COLUMNS, Run, attempts_of, ordered, same

floats = st.floats(allow_nan=True, allow_infinity=True, width=64)
steps = st.integers(-(2**63), 2**63 - 1)


@st.composite
def runs(draw):
    series = []
    for i in range(draw(st.integers(0, 3))):
        n = draw(st.integers(1, 20))
        at = np.array(draw(st.lists(steps, min_size=n, max_size=n)), np.int64)
        values = np.array(draw(st.lists(floats, min_size=n, max_size=n)))
        times = np.array(draw(st.lists(st.floats(0, 4e9), min_size=n, max_size=n))) if draw(st.booleans()) else None
        series.append(ordered(f"metric/{i}", f"tag {i}", at, values, times, rank=draw(st.none() | st.integers(0, 9)), source=i))
    events = (Event("overflow", "scale fell", step=3, time=1.5, numbers={"scale": float("inf")}),)
    options = (Setting("lr", 1e-3, spelled="optim.lr", where="a:1"), Setting("betas", [0.9, 0.95], spelled="betas"))
    return Run(
        "r",
        "p",
        "step",
        tuple(series),
        settings=options,
        events=events,
        sources=(Source("f", "x", "1"),) * 3,
        problems=(Problem("f@3", "odd"),),
        facts={"attempts": 2, "nan": float("nan")},
    )


@settings(max_examples=60, deadline=None)
@given(run=runs())
def test_a_run_comes_back_from_parquet_as_it_was(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("t") / "run.parquet"
    run.save(path)
    back = Run.load(path)
    assert same(run, back)
    again = path.with_name("again.parquet")
    back.save(again)
    assert same(Run.load(again), back)


def test_the_file_has_the_documented_columns_sorted(tmp_path):
    import pyarrow.parquet as pq

    a = ordered("b", "b", np.array([2, 1, 3]), np.array([1.0, np.nan, np.inf]), None, rank=1, source=0)
    b = ordered("a", "a", np.array([5]), np.array([-np.inf]), np.array([1.25]), rank=None, source=0)
    Run("r", series=(a, b)).save(tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.schema.names == [name for name, _ in COLUMNS]
    frame = table.to_pandas()
    assert list(frame.metric) == ["a", "b", "b", "b"]
    assert list(frame.attempt) == [0, 0, 1, 1]  # the step went back once
    assert list(frame.step) == [5, 2, 1, 3]
    assert pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", fails)
    with pytest.raises(OSError):
        Run("r", series=(ordered("a", "a", np.array([1]), np.array([1.0]), None, rank=None, source=0),)).save(tmp_path / "x.parquet")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not parquet at all"])
def test_a_file_that_is_no_table_is_refused_by_name(tmp_path, content):
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(BadTable, match=r"x\.parquet"):
        Run.load(path)


def test_attempts_rise_when_the_step_goes_back():
    assert list(attempts_of(np.array([1, 2, 2, 1, 5, 4]))) == [0, 0, 0, 1, 1, 2]
