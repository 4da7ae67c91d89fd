"""The page, without a browser and in a real one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = ROOT / "sample_logs"
sys.path.insert(0, str(ROOT))


def page(monkeypatch, **inputs):
    from streamlit.testing.v1 import AppTest

    monkeypatch.setenv("DIAGNOSE_ALLOWED", str(ROOT))
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120).run()
    for key, value in inputs.items():
        (at.text_area if key == "pasted" else at.text_input)(key=key).set_value(value)
    return at.run() if inputs else at


def test_the_empty_page_says_what_it_reads(monkeypatch):
    at = page(monkeypatch)
    assert not at.exception and "TensorBoard" in at.info[0].value


def test_a_sick_run_gets_its_verdict(monkeypatch):
    at = page(monkeypatch, path=str(SAMPLES / "bert-vanishing"))
    assert not at.exception
    assert "vanish" in at.error[0].value.lower()
    assert any("What to do" in m.value for m in at.markdown)


def test_several_runs_get_a_table_and_a_picker(monkeypatch):
    at = page(monkeypatch, path=str(SAMPLES))
    assert not at.exception and len(at.selectbox) == 1
    assert len(at.selectbox[0].options) >= 8


def test_pasted_lines_are_judged(monkeypatch):
    lines = "\n".join(f"step {i}: loss {4.0 - 0.01 * i:.4f}, lr 0.001" for i in range(40))
    at = page(monkeypatch, pasted=lines)
    assert not at.exception and not at.error


def test_a_path_outside_what_the_owner_allows_is_refused(monkeypatch, tmp_path):
    at = page(monkeypatch, path=str(tmp_path))
    assert not at.exception and "outside" in at.error[0].value


def test_a_foreign_file_is_answered_by_a_sentence(monkeypatch):
    at = page(monkeypatch, path=str(ROOT / "pyproject.toml"))
    assert not at.exception and "pyproject" in at.error[0].value


def test_an_archive_can_not_write_outside_its_folder(tmp_path):
    import app

    evil = tmp_path / "evil.zip"
    with zipfile.ZipFile(evil, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("../../out.txt", "x")
        z.writestr("/abs.txt", "x")
        z.writestr("bomb.log", b"\0" * (8 << 20))
        z.writestr("good/run.log", "fine")
    inside = tmp_path / "in" / "deep"
    inside.mkdir(parents=True)
    assert "3 members" in app.unpack(evil, inside)
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()) == ["evil.zip", "in/deep/good/run.log"]


def chromium() -> str:
    found = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), "")
    if not found:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium on this machine: CI must install it")
        pytest.skip("no Chromium on this machine")
    return found


@pytest.fixture
def server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    args = ["--server.headless", "true", "--server.port", str(port), "--server.address", "127.0.0.1", "--browser.gatherUsageStats", "false"]
    process = subprocess.Popen([sys.executable, "-m", "streamlit", "run", str(ROOT / "app.py"), *args], cwd=ROOT,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/_stcore/health", timeout=1).read()
                break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1400])
def test_a_dropped_log_is_judged_in_a_real_browser(server, width, tmp_path):
    binary = chromium()
    from playwright.sync_api import sync_playwright

    log = next((SAMPLES / "bert-vanishing").glob("events*"))
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--no-first-run",
        "--disable-component-update",
        "--disable-sync",
    ]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=binary, args=flags)
        tab = browser.new_page(viewport={"width": width, "height": 1000})
        tab.goto(server, timeout=90_000)
        tab.set_input_files("input[type=file]", str(log), timeout=90_000)
        tab.get_by_text("vanish").first.wait_for(timeout=120_000)
        tab.get_by_text("Causes, likeliest first").first.wait_for(timeout=60_000)
        tab.locator("canvas, .vega-embed svg").first.wait_for(timeout=60_000)
        assert tab.locator("[data-testid=stException]").count() == 0
        wide = tab.evaluate("document.documentElement.scrollWidth")
        tab.screenshot(path=str(tmp_path / f"page-{width}.png"), full_page=True)
        if os.environ.get("DIAGNOSE_SHOTS"):
            tab.screenshot(path=f"{os.environ['DIAGNOSE_SHOTS']}/page-{width}.png", full_page=False)
        browser.close()
    assert wide <= width + 2  # nothing sticks out sideways
