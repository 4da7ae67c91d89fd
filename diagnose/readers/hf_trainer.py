"""Hugging Face `trainer_state.json`: the log history of a Trainer run, with the values of its own settings.

Rows keep their own keys. The final summary row (`train_loss`, `train_runtime`) is the whole run's mean, not a point, and is left
out. A run folder with several `checkpoint-N` holds the same history several times: the file with the highest `global_step` is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diagnose.model import Frozen, Problem, Setting, Source
from diagnose.parts import RawRun, RawSeries, Reader

LARGEST = 1 << 29  # bytes; a state of a million rows has about 200 MB
_SETTINGS = ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size")
_NOT_SERIES = frozenset({"step", "total_flos"})


def claims(path: Path) -> bool:
    """One JSON object that names `log_history` in its first or last 64 KiB, by content."""
    try:
        with path.open("rb") as handle:
            head = handle.read(65536)
            if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
                return False
            if b'"log_history"' in head:
                return True
            return path.name == "trainer_state.json"
    except OSError:
        return False


def _load(path: Path, problems: list[Problem]) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > LARGEST:
            problems.append(Problem(str(path), f"larger than {LARGEST >> 20} MiB; left out"))
            return None
        state = json.loads(path.read_bytes().decode("utf-8-sig", "replace"))
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(str(path), f"not whole JSON ({str(error)[:80]}); its whole records are read"))
        return _salvage(path)
    return state if isinstance(state, dict) else None


def _salvage(path: Path) -> dict[str, Any] | None:
    """The rows of a cut file: objects after `log_history`, each decoded by itself."""
    try:
        text = path.read_bytes()[:LARGEST].decode("utf-8", "replace")
    except OSError:
        return None
    at = text.find("[", text.find('"log_history"')) + 1
    decoder, rows = json.JSONDecoder(), []
    while 0 < at < len(text):
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            row, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        rows.append(row)
    return {"log_history": rows} if rows else None


def _value(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _series(rows: Sequence[Any], source: int) -> list[RawSeries]:
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for row in rows:
        if not isinstance(row, dict) or ("train_runtime" in row and "loss" not in row):
            continue
        step = _value(row.get("step"))
        if step is None or not abs(step) < 2**62:
            continue
        for name, cell in row.items():
            value = _value(cell) if name not in _NOT_SERIES else None
            if value is not None:
                steps.setdefault(str(name), []).append(int(step))
                values.setdefault(str(name), []).append(value)
    return [RawSeries(n, np.array(steps[n], np.int64), np.array(values[n]), source=source) for n in steps]


def read(paths: Sequence[Path]) -> RawRun:
    """The history of the most advanced state file."""
    problems: list[Problem] = []
    states = [(p, s) for p in paths if (s := _load(p, problems)) is not None]
    if not states:
        return RawRun(problems=tuple(problems), sources=tuple(Source(str(p), "hf-trainer") for p in paths))
    path, state = max(states, key=lambda ps: (len(ps[1].get("log_history") or ()), -len(str(ps[0]))))
    rows = state.get("log_history")
    found = tuple(Setting(k, state[k], spelled=k, where=str(path)) for k in _SETTINGS if isinstance(state.get(k), (int, float)))
    return RawRun(
        tuple(_series(rows if isinstance(rows, list) else (), 0)), settings=found, problems=tuple(problems),
        sources=(Source(str(path), "hf-trainer"),), facts=Frozen(framework="hf"),
    )  # fmt: skip


def home(path: Path) -> Path:
    """`X/checkpoint-N/trainer_state.json` lives in X."""
    return path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent


READER = Reader("hf-trainer", "Hugging Face trainer_state.json", claims, read, home=home, priority=60)
