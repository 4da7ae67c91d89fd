"""Which files are one run, and how what readers found becomes one table."""

import json

import numpy as np
import pytest

from diagnose import assembly
from diagnose.errors import NothingReadable
from diagnose.model import Setting, Source
from diagnose.parts import RawRun, RawSeries


def rows(path, n=20, loss=3.0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"step": i, "loss": loss - 0.01 * i, "lr": 1e-3}) + "\n" for i in range(n)))
    return path


def test_each_folder_with_logs_is_a_run(tmp_path):
    rows(tmp_path / "a/metrics.jsonl")
    rows(tmp_path / "b/metrics.jsonl")
    assert [t.name for t in assembly.discover([tmp_path])] == ["a", "b"]


def test_two_logs_of_one_format_in_one_folder_are_two_runs(tmp_path):
    rows(tmp_path / "a.jsonl")
    rows(tmp_path / "b.jsonl")
    assert len(assembly.discover([tmp_path])) == 2


def test_configuration_beside_a_log_belongs_to_it(tmp_path):
    rows(tmp_path / "r/metrics.jsonl")
    (tmp_path / "r/ds_config.json").write_text(json.dumps({"train_batch_size": 8, "gradient_clipping": 1.0, "fp16": {"enabled": True}}))
    (target,) = assembly.discover([tmp_path])
    run = assembly.read(target)
    assert {s.spelled for s in run.settings} >= {"gradient_clipping", "fp16.enabled"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("empty.log", b"", "empty"), ("x.bin2", b"\x00\x01\x02" * 100, "known format"), ("t.txt", b"hello\n", "known format")],
)
def test_a_foreign_file_is_answered_by_one_sentence_that_names_it(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(NothingReadable, match=words) as raised:
        assembly.discover([path])
    assert name in str(raised.value) and "Tried" in str(raised.value)


def test_a_path_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(NothingReadable, match="no such file"):
        assembly.discover([tmp_path / "gone"])


def raw(name, steps, values, **more):
    return RawSeries(name, np.array(steps, np.int64), np.array(values, float), **more)


def test_a_sample_axis_becomes_steps_when_the_batch_is_known():
    monitor = RawRun((raw("Train/Samples/lr", [8, 16, 24, 32], [1, 2, 3, 4], axis="samples"),), sources=(Source("a", "x"),))
    config = RawRun(settings=(Setting("train_batch_size", 8, spelled="train_batch_size"),), sources=(Source("b", "y"),))
    run = assembly.assemble([monitor, config], name="r")
    (series,) = run.series
    assert series.metric == "lr" and list(series.steps) == [1, 2, 3, 4] and run.step_unit == "step" and run.facts["samples_per_step"] == 8


def test_a_later_file_that_goes_back_is_another_attempt():
    parts = RawRun(
        (raw("loss", [1, 2, 3, 4], [4, 3, 2, 1], source=0), raw("loss", [3, 4, 5], [2.5, 2, 1], source=1)),
        sources=(Source("a", "x"), Source("b", "x")),
    )
    run = assembly.assemble([parts], name="r")
    assert [list(s.attempts) for s in run.series] == [[0] * 4, [1] * 3]


def test_a_reader_that_fails_costs_its_files_only(tmp_path, monkeypatch):
    rows(tmp_path / "r/metrics.jsonl")
    (target,) = assembly.discover([tmp_path])
    broken = assembly.Target(target.name, target.home, (*target.files, ("csv", tmp_path / "gone.csv")))
    run = assembly.read(broken)
    assert run.points and any("csv" in p.what or "gone.csv" in p.where for p in run.problems)
