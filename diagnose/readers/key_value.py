"""Console lines of programs that no other reader knows: numbers with names on lines that also name a step.

A name becomes a series only when it recurs in one shape of line (see `texts.Miner`); prose with numbers in it does not. nanoGPT's
`Overriding: k = v`, Megatron's argument dump and llm.c's two-column parameter table are read as settings. Claimed last, and only
when the first 64 KiB hold at least three such lines with a loss, a norm, an accuracy or a learning rate among the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from diagnose import texts
from diagnose.console import Facts
from diagnose.model import Frozen, Problem, Setting, Source
from diagnose.parts import RawRun, RawSeries, Reader

_NAMES = re.compile(r"(?i)loss|norm|\blr\b|learning.rate|acc\b|accuracy|perplexity|ppl|reward")
_OVERRIDE = re.compile(r"^(?:Overriding:|overriding config with|config:) ?(?P<key>[\w.]{1,60})\s{0,4}[=:]\s{0,4}(?P<value>\S.{0,200})$")
_TABLE = re.compile(r"^\| (?P<key>[\w.]{1,60})\s{1,60}\| (?P<value>\S.{0,120}?)\s{0,120}\|$")
_LLMC = re.compile(r"^step\s{1,12}(?P<step>\d{1,12})/\s{0,12}\d{1,12} \|")
_ARGUMENT = re.compile(r"^(?P<key>[A-Za-z]\w{0,60}) \.{2,60} (?P<value>\S.{0,200})$")  # Megatron's argument dump
_MS = re.compile(rf"\| (?P<ms>{texts.NUM}) ms\b")
_TOKENS = re.compile(rf"\| (?P<rate>{texts.NUM}) tok/s")
_TIME_MS = re.compile(rf"\btime (?P<ms>{texts.NUM})ms\b")
_EVAL = re.compile(rf"^step (?P<step>\d{{1,12}}): train loss (?P<train>{texts.NUM}), val loss (?P<val>{texts.NUM})")
_MEGATRON = re.compile(r"\biteration\s{1,12}(?P<step>\d{1,12})/\s{0,12}\d{1,12} \|(?P<body>[^\n]{0,2000})")
_CELL = re.compile(rf"\s?(?P<key>[^|:]{{1,60}}?(?:\([^)|]{{1,30}}\))?): {{1,8}}(?P<value>{texts.NUM})%? ?(?:\||$)")
_CODE = re.compile(r"[({]f?[\"']|print0?\(|\{[a-z_]+[:}]")
_MOST_SETTINGS = 2000


def claims(path: Path) -> bool:
    """At least three lines of one shape with a step and a metric's name, in text that no other reader claims."""
    try:
        if path.suffix.lower() in (".json", ".csv", ".tsv", ".md", ".py", ".yaml", ".yml", ".html", ".xml"):
            return False
        head = texts.head(path)
        if "\0" in head[:1024]:
            return False
        miner = texts.Miner()
        found: set[str] = set()
        lines = head.splitlines()
        for i, text in enumerate(lines):
            found |= {p.name for p in miner.feed(texts.Line(i + 1, text, None, None)) if not _CODE.search(text)}
        found |= {p.name for p in miner.close(len(lines))}
        return any(_NAMES.search(name) for name in found)
    except Exception:
        return False


class _Columns:
    """Points by (name, group, axis, rank) in the order of the lines."""

    def __init__(self) -> None:
        self.points: dict[tuple[str, str, str, int | None], list[tuple[int, float, float]]] = {}

    def add(self, name: str, group: str, axis: str, rank: int | None, step: int, value: float, time: float | None) -> None:  # noqa: PLR0917
        self.points.setdefault((name, group, axis, rank), []).append((step, value, np.nan if time is None else time))

    def series(self, source: int) -> list[RawSeries]:
        out = []
        for (name, group, axis, rank), rows in self.points.items():
            steps, values, times = zip(*rows, strict=True)
            stamps = np.array(times, float)
            out.append(RawSeries(name, np.array(steps, np.int64), np.array(values, float), axis=axis, group=group, rank=rank, source=source,
                                 times=stamps if np.isfinite(stamps).any() else None))  # fmt: skip
        return out


def _setting(text: str, place: str) -> Setting | None:
    hit = _OVERRIDE.match(text) or _TABLE.match(text) or _ARGUMENT.match(text)
    if hit is None or hit["value"] == "Value":
        return None
    value = texts.number(hit["value"])
    return Setting(hit["key"], hit["value"] if value is None else value, spelled=hit["key"], where=place)


def _own(text: str, line: texts.Line, columns: _Columns) -> bool:
    """Unit-bearing fields that have no name of their own: `12.3 ms`, `30000 tok/s`, `time 4.2ms`; nanoGPT's evaluation line."""
    if hit := _EVAL.match(text):
        step = int(hit["step"])
        columns.add("val_loss", "", "step", line.rank, step, float(hit["val"]), line.time)
        columns.add("eval/train loss", "", "step", line.rank, step, float(hit["train"]), line.time)
        return True
    if hit := _MEGATRON.search(text):
        step = int(hit["step"])
        cells = {c["key"].strip(): float(c["value"]) for c in _CELL.finditer(hit["body"])}
        for name, value in cells.items():
            columns.add(name, "", "step", line.rank, step, value, line.time)
        return bool(cells)
    if hit := _LLMC.match(text):
        step = int(hit["step"])
        for pattern, name, factor in ((_MS, "step_time_ms", 1.0), (_TOKENS, "tokens_per_sec", 1.0)):
            if found := pattern.search(text):
                columns.add(name, "", "step", line.rank, step, float(found[1]) * factor, line.time)
    elif (found := _TIME_MS.search(text)) and (hit := re.match(r"iter (\d{1,12}):", text)):
        columns.add("step_time_ms", "", "step", line.rank, int(hit[1]), float(found["ms"]), line.time)
    return False


def _read_one(path: Path, source: int, problems: list[Problem], facts: Facts, settings: list[Setting]) -> list[RawSeries]:
    columns, miner, count = _Columns(), texts.Miner(), 0
    for line in texts.lines(path, problems):
        count = line.number
        text = line.text.strip()
        if not text or _CODE.search(text):
            continue
        place = f"{path}:{line.number}"
        if len(settings) < _MOST_SETTINGS and (setting := _setting(text, place)) is not None:
            settings.append(setting)
            continue
        facts.step = miner.step
        if facts.take(line):
            continue
        if _own(text, line, columns):
            continue
        for p in miner.feed(line):
            columns.add(p.name, p.group, p.axis, p.rank, p.step, p.value, p.time)
    for p in miner.close(count):
        columns.add(p.name, p.group, p.axis, p.rank, p.step, p.value, p.time)
    facts.close()
    if miner.overflowed:
        problems.append(Problem(str(path), "too many shapes of line; the rest was not searched for series"))
    return columns.series(source)


def read(paths: Sequence[Path]) -> RawRun:
    """All recurring named numbers of the files."""
    problems: list[Problem] = []
    facts = [Facts(p) for p in paths]
    settings: list[Setting] = []
    series = [s for i, p in enumerate(paths) for s in _read_one(p, i, problems, facts[i], settings)]
    ends = [f.clean_end for f in facts]
    return RawRun(tuple(series), settings=tuple(settings), events=tuple(e for f in facts for e in f.events), problems=tuple(problems),
                  clean_end=False if False in ends else True if True in ends else None, facts=Frozen(),
                  sources=tuple(Source(str(p), "key-value") for p in paths))  # fmt: skip


READER = Reader("key-value", "console lines with named numbers", claims, read, priority=10, key=lambda path: path.name)
