from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diagnose import cli
from diagnose.model import Report, Severity
from diagnose.reports import json_v1

Runner = Callable[..., int]


@pytest.fixture
def saved(tmp_path: Path, several: list[Report]) -> dict[str, str]:
    """Saved reports by name of the fixture, as paths."""
    made = {}
    for name, report in zip(("healthy", "hostile", "dead", "exploded"), several, strict=True):
        path = tmp_path / f"{name}.json"
        path.write_text(json_v1.render(report), encoding="utf-8")
        made[name] = str(path)
    return made


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return int(end.value.code or 0)


def spawned(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "diagnose", *words], capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload,no-any-return]


def test_a_path_alone_is_judged(saved: dict[str, str], capsys: pytest.CaptureFixture[str], exploded: Report) -> None:
    assert call(saved["exploded"]) == 0
    assert capsys.readouterr().out.startswith(f"gpt: {exploded.verdict}\n")


def test_options_may_stand_before_and_after_the_path(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--format", "json", saved["healthy"]), (saved["healthy"], "-f", "json"), ("run", saved["healthy"], "--format=json")):
        assert call(*words) == 0
        assert json.loads(capsys.readouterr().out)["schema"] == "diagnose.report/1"


def test_a_path_named_like_a_command_is_given_with_its_folder(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scan").write_text(Path(saved["exploded"]).read_text())
    assert call("./scan") == 0
    assert capsys.readouterr().out.startswith("gpt: CRITICAL")
    assert call("scan") == 2


def test_several_paths_make_a_table_worst_first(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(saved["healthy"], saved["exploded"]) == 0
    assert capsys.readouterr().out.startswith("2 runs: 1 critical, 1 without a diagnosis.")


@pytest.mark.parametrize(
    ("names", "fail_on", "code"),
    [
        (["healthy"], "info", 0),
        (["exploded"], "never", 0),
        (["exploded"], "critical", 1),
        (["exploded"], "minor", 1),
        (["healthy", "exploded"], "major", 1),
        (["dead", "exploded"], "major", 3),
        (["dead"], "never", 3),
        (["hostile", "dead"], "info", 4),
    ],
)
def test_the_exit_code_is_the_first_that_applies(names: list[str], fail_on: str, code: int, saved: dict[str, str]) -> None:
    assert call(*(saved[n] for n in names), "--fail-on", fail_on) == code


def test_fail_on_looks_at_severity(make_report, make_diagnosis) -> None:  # type: ignore[no-untyped-def]
    report = make_report("r", make_diagnosis(Severity.MINOR))
    assert [cli.exit_code([report], level) for level in ("info", "minor", "major", "critical", "never")] == [1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "words",
    [
        ["x", "--format", "jsno"],
        ["x", "--fail-on", "loud"],
        ["x", "--nonsense"],
        ["scan"],
        ["explain", "no-such-rule"],
        [],
        ["x", "-o", "/no/dir/f"],
    ],
)
def test_bad_arguments_end_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*words) == 2
    said = capsys.readouterr()
    assert said.err or "Usage" in said.out
    assert "Traceback" not in said.err


def test_an_unknown_format_gets_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    call("x", "--format", "jsno")
    assert "Did you mean 'json'?" in capsys.readouterr().err


def test_what_can_not_be_read_is_one_sentence_and_the_rest_is_judged(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    assert call(str(empty)) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"diagnose: {empty}: ")
    assert said.err.count("\n") == 1
    assert call(str(empty), saved["exploded"]) == 3
    said = capsys.readouterr()
    assert "gpt" in said.out
    assert str(empty) in said.err


def test_json_is_written_even_when_nothing_could_be_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("/no/such/place", "--format", "json") == 3
    assert json.loads(capsys.readouterr().out)["readable"] is False


def test_a_mistyped_command_is_recognised(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("expalin", "loss-spike") == 3
    assert "diagnose explain" in capsys.readouterr().err


def test_a_failed_rule_is_told_on_standard_error(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(saved["hostile"]) == 4
    assert "failed on" in capsys.readouterr().err


def test_nothing_hostile_reaches_the_terminal(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    call(saved["hostile"])
    said = capsys.readouterr()
    assert all(ch == "\n" or ch.isprintable() for ch in said.out + said.err)


@pytest.mark.parametrize(("suffix", "begins"), [(".json", "{"), (".md", "**gpt"), (".txt", "gpt: "), (".report", "gpt: ")])
def test_the_suffix_of_the_file_chooses_the_format(
    suffix: str, begins: str, saved: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / f"out{suffix}"
    assert call(saved["exploded"], "-o", str(target)) == 0
    assert target.read_text(encoding="utf-8").startswith(begins)
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.glob(".*.part"))


def test_a_failed_write_leaves_the_old_file(saved: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    assert call(saved["exploded"], "-o", str(target)) == 2
    assert target.read_text() == "old"
    assert not list(tmp_path.glob(".*.part"))


def test_colour_is_for_terminals_without_no_color(
    saved: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    call(saved["exploded"])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(cli.sys.stdout, "isatty", lambda: True, raising=False)
    call(saved["exploded"])
    assert "\x1b[1;31m" in capsys.readouterr().out
    call(saved["exploded"], "--no-colour")
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    call(saved["exploded"])
    assert "\x1b" not in capsys.readouterr().out


def test_scan_lists_even_one_run_and_shows_no_bar_without_a_terminal(saved: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("scan", saved["exploded"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("1 run: 1 critical.")
    assert said.err == ""


def test_app_without_its_page_says_where_it_looked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "diagnose" / "cli.py"))
    monkeypatch.chdir(tmp_path)
    assert call("app") == 2
    assert f"app.py is not in {tmp_path}" in capsys.readouterr().err


def test_app_starts_streamlit_for_this_machine_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "app.py").touch()
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "diagnose" / "cli.py"))
    called: list[list[str]] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    assert call("app", "--port", "9000") == 0
    (words,) = called
    assert words[1:5] == ["-m", "streamlit", "run", str(tmp_path / "app.py")]
    assert words[words.index("--server.address") + 1] == "localhost"
    assert words[words.index("--browser.gatherUsageStats") + 1] == "false"


def test_the_version_is_told() -> None:
    assert call("--version") == 0


def test_a_reader_that_goes_away_is_quiet(saved: dict[str, str]) -> None:
    command = f"{sys.executable} -m diagnose {saved['exploded']} | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_ends_cleanly() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "diagnose", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(3)  # it waits for its input
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert out == ""


def test_standard_input_is_judged_under_its_own_name() -> None:
    done = spawned("-", input="")
    assert done.returncode == 3
    assert done.stderr.startswith("diagnose: -: ")
    assert "/tmp" not in done.stderr


def test_a_terminal_that_lacks_characters_gets_question_marks(saved: dict[str, str]) -> None:
    done = spawned(saved["exploded"], env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "????" in done.stdout
