from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose.errors import NothingReadable
from diagnose.model import Report
from diagnose.reports import json_v1
from diagnose.scan import Job, _judge_all, as_stdin, find, judge, read_one, scan, spooled, unreadable

module = sys.modules["diagnose.scan"]


class Task:
    """What a worker judges in these tests: does its deed instead of reading a log. Crosses to the worker by pickle."""

    def __init__(self, name: str, deed: str) -> None:
        self.name, self.deed, self.home = name, deed, Path("/runs") / name


def acted(what: Task) -> Report:
    if what.deed == "die":
        os._exit(9)
    if what.deed == "raise":
        raise ValueError("no such layer")
    if what.deed == "slow":
        time.sleep(0.2)
    return unreadable(what.name, f"judged by {'parent' if os.environ.get('TEST_PARENT') == str(os.getpid()) else 'worker'}.")


class ActingJob(Job):
    """Unpickled in a worker, it makes that worker's engine act; so no test code has to be patched there."""

    def __reduce__(self) -> tuple[object, ...]:
        return acting, (self.name, self.what, self.size)


def acting(name: str, what: Task, size: int) -> Job:
    from diagnose import engine

    engine.diagnose = acted  # type: ignore[assignment]
    return ActingJob(name, what, size)


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Job]]:
    monkeypatch.setattr(module.engine, "diagnose", acted)
    monkeypatch.setenv("TEST_PARENT", str(os.getpid()))
    return lambda *deeds: [ActingJob(f"run{i}", Task(f"run{i}", deed), 10 - i) for i, deed in enumerate(deeds)]


def test_a_run_that_raises_costs_itself(act: Callable[..., list[Job]]) -> None:
    reports = _judge_all(act("", "raise", ""), 1, None)
    assert "ValueError: no such layer" in reports[1].verdict
    assert "/runs/run1" in reports[1].verdict
    assert [r.readable for r in reports] == [False] * 3
    assert "judged by parent" in reports[0].verdict


def test_few_small_runs_start_no_pool(act: Callable[..., list[Job]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_pool", None)
    assert len(_judge_all(act("", ""), None, None)) == 2


def test_a_pool_gives_the_same_reports_in_the_same_order(act: Callable[..., list[Job]]) -> None:
    jobs = act("slow", "", "raise")
    done: list[tuple[int, int, str]] = []
    reports = _judge_all(jobs, 2, lambda *step: done.append(step))
    assert [r.run["name"] for r in reports] == ["run0", "run1", "run2"]
    assert "judged by worker" in reports[1].verdict
    assert "ValueError" in reports[2].verdict
    assert [(d, t) for d, t, _ in done] == [(1, 3), (2, 3), (3, 3)]


def test_a_run_that_kills_its_worker_is_named_and_the_rest_is_judged(act: Callable[..., list[Job]]) -> None:
    reports = _judge_all(act("", "die", "", "die", ""), 2, None)
    assert [("died" in r.verdict, "judged" in r.verdict) for r in reports] == [
        (False, True), (True, True), (False, True), (True, True), (False, True),
    ]  # fmt: skip


def test_where_no_worker_can_start_this_process_judges(act: Callable[..., list[Job]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_start_worker", os._exit)  # called without its argument, so the initialiser fails
    reports = _judge_all(act("", ""), 2, None)
    assert all("judged by parent" in r.verdict for r in reports)


def test_an_absent_path_is_a_report_that_says_so() -> None:
    (report,) = scan(["/no/such/place"])
    assert not report.readable
    assert report.verdict.startswith("Could not judge: /no/such/place: there is no such file")


def test_a_foreign_file_does_not_hide_a_saved_report(tmp_path: Path, exploded: Report) -> None:
    (tmp_path / "junk.bin").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "report.json").write_text(json_v1.render(exploded))
    reports = scan([tmp_path / "junk.bin", tmp_path / "report.json"])
    assert [r.run["name"] for r in reports] == ["gpt", str(tmp_path / "junk.bin")]
    assert [r.readable for r in reports] == [True, False]


def test_a_folder_of_saved_reports_is_read_back_worst_first(tmp_path: Path, several: list[Report]) -> None:
    for index, report in enumerate(several):
        (tmp_path / f"{index}.json").write_text(json_v1.render(report))
    assert [r.verdict for r in scan([tmp_path])] == [r.verdict for r in scan([tmp_path])]
    assert scan([tmp_path])[0].run["name"] == "gpt"


def test_a_damaged_saved_report_is_one_sentence(tmp_path: Path, exploded: Report) -> None:
    path = tmp_path / "report.json"
    path.write_text(json_v1.render(exploded)[:-200])
    (report,) = scan([path])
    assert "is not a saved report" in report.verdict


def test_a_saved_table_that_is_none_costs_itself(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    path.write_bytes(b"PAR1 not really PAR1")
    (report,) = scan([path])
    assert not report.readable
    assert str(path) in report.verdict


def test_a_saved_report_can_not_be_read_as_a_run(tmp_path: Path, exploded: Report) -> None:
    path = tmp_path / "report.json"
    path.write_text(json_v1.render(exploded))
    with pytest.raises(NothingReadable, match="does not hold the run's points"):
        read_one(path)


def test_standard_input_is_spooled_to_a_file_that_goes_away(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"step 1 loss 2\n")
    with source.open("rb") as stream, spooled(stream) as path:
        assert path.read_bytes() == b"step 1 loss 2\n"
        report = as_stdin(unreadable(str(path), f"{path}: an empty file.", path=str(path)), path)
        assert report.run["name"] == "standard input"
        assert str(path.parent) not in report.verdict + report.problems[0].what
    assert not path.parent.exists()


def test_a_report_in_the_list_of_jobs_is_taken_as_it_is(exploded: Report) -> None:
    assert judge(Job("gpt", exploded)) is exploded


def test_finding_reports_each_bad_path_once(tmp_path: Path) -> None:
    found, failed = find([tmp_path / "a", tmp_path / "b"])
    assert not found
    assert [r.run["path"] for r in failed] == [str(tmp_path / "a"), str(tmp_path / "b")]
