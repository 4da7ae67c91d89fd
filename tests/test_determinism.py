"""The same log gives the same report, whatever the hash seed, time zone, language, working directory or number of workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnose import synth


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    norm = synth.norm(500)
    losses = {
        "healthy": synth.loss(500),
        "spiky": synth.with_spike(synth.loss(500), at=350, ratio=3.0),
        "broken": synth.with_nonfinite(synth.loss(500), at=400),
    }
    for name, loss in losses.items():
        (folder / name).mkdir()
        rows = zip(*loss, norm[1], strict=True)
        text = "".join(
            json.dumps({"step": int(s), "loss": float(v), "grad_norm": float(g), "_timestamp": 1.7e9 + s}) + "\n" for s, v, g in rows
        )
        (folder / name / "metrics.jsonl").write_text(text)
        (folder / name / "ds_config.json").write_text(
            '{"optimizer": {"type": "Adam", "params": {"lr": 0.0003}}, "fp16": {"enabled": true}}'
        )
    return folder


def told(folder: Path, *words: str, where: Path | None = None, **environment: str) -> str:
    given = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment}
    call = [sys.executable, "-m", "diagnose", *words, str(folder), "-f", "json"]
    done = subprocess.run(call, capture_output=True, check=False, env=given, cwd=where)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return re.sub(r'"took_s": *[0-9.e-]+', '"took_s": 0', done.stdout.decode("utf-8"))


VARIED: list[dict[str, Any]] = [
    {"PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati"},
    {"PYTHONHASHSEED": "4242", "LC_ALL": "C", "LANG": "C"},
    {"LC_ALL": "tr_TR.UTF-8", "TZ": "America/St_Johns", "OMP_NUM_THREADS": "1"},
]


@pytest.fixture(scope="module")
def first(runs: Path) -> str:
    return told(runs, "scan", "--jobs", "1", PYTHONHASHSEED="0", TZ="UTC")


@pytest.mark.parametrize("environment", VARIED, ids=lambda e: " ".join(f"{k}={v}" for k, v in e.items()))
def test_the_environment_does_not_matter(environment: dict[str, str], runs: Path, first: str) -> None:
    assert told(runs, "scan", "--jobs", "1", **environment) == first


def test_workers_and_the_working_directory_do_not_matter(runs: Path, first: str, tmp_path: Path) -> None:
    assert told(runs, "scan", "--jobs", "2", where=tmp_path) == first


def test_the_reports_are_three_and_worst_first(first: str) -> None:
    reports = json.loads(first)["runs"]
    names = [r["run"]["name"] for r in reports]
    assert sorted(names) == ["broken", "healthy", "spiky"]
    assert (names[0], names[-1]) == ("broken", "healthy")
