"""Whole reports of the sample logs, word for word: a change of any of them is seen, and either meant or a fault.

`python3 -m pytest tests/test_golden.py --golden` writes them anew; read the difference before committing it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnose import diagnose
from diagnose.model import Report
from diagnose.reports import json_v1, markdown, text

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
SAMPLES = sorted(p.name for p in (ROOT / "sample_logs").iterdir() if p.is_dir() and p.name != "trainings" and not p.name.startswith("_"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Reports name paths as they were given: relative ones read the same on every machine."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "100")
    yield


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("ending", ["txt", "md", "json"])
def test_report_is_as_agreed(name: str, ending: str, request: pytest.FixtureRequest) -> None:
    report = diagnose(f"sample_logs/{name}")
    shown = {"txt": text.render, "md": markdown.render, "json": _steady}[ending](report)
    file = GOLDEN / f"{name}.{ending}"
    if request.config.getoption("--golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


def test_every_golden_report_has_its_sample() -> None:
    assert {f.stem for f in GOLDEN.iterdir()} == set(SAMPLES)


def _steady(report: Report) -> str:
    """The JSON without what differs from machine to machine: times taken, digits beyond the fifth; curves by their length."""
    plain = json.loads(json_v1.render(report))
    for curve in plain["curves"]:
        curve["steps"], curve["values"] = len(curve["steps"]), len(curve["values"])
    return json.dumps(_rounded(plain), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: 0.0 if k == "took_s" else _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


@pytest.mark.parametrize(
    "setting",
    [
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "77", "TZ": "Asia/Kathmandu"},
        {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8"},
        {"LC_ALL": "C"},
    ],
    ids=str,
)
def test_the_report_does_not_depend_on_hash_seed_time_zone_or_locale(setting: dict[str, str]) -> None:
    def said(more: dict[str, str]) -> bytes:
        args = [sys.executable, "-m", "diagnose", "sample_logs/gpt175b-like", "--format", "markdown"]
        done = subprocess.run(args, cwd=ROOT, env={**os.environ, **more, "PYTHONUTF8": "1"}, capture_output=True, check=False)
        assert done.returncode in {0, 1}, done.stderr.decode()
        return done.stdout

    assert said(setting) == said({"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"})


def test_a_scan_says_the_same_on_any_number_of_workers() -> None:
    def said(jobs: int) -> bytes:
        args = [sys.executable, "-m", "diagnose", "scan", "sample_logs", "--jobs", str(jobs)]
        done = subprocess.run(args, cwd=ROOT, env={**os.environ, "COLUMNS": "100"}, capture_output=True, check=False)
        return done.stdout

    assert said(1) == said(2)
    assert b"gpt175b-like" in said(1)
