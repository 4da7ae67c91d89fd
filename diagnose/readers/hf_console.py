"""The console of a Hugging Face Trainer: the dictionaries that it prints, of versions 4 and 5, of TRL and others built on it.

Version 4 prints numbers (`{'loss': 2.0491, 'epoch': 0.28}`), version 5 quotes them (`{'loss': '3.903'}`); issue threads bring
typographic quotes, wrapped lines and bars glued to a record. No row names its step: the progress bar beside it does, where one
advances with the rows; else rows are counted, and that is said. The last row (`train_runtime`) is the end, not a point.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diagnose import texts
from diagnose.console import Facts
from diagnose.model import Frozen, Problem, Setting, Source
from diagnose.parts import RawRun, RawSeries, Reader

_QUOTES = str.maketrans(dict.fromkeys("‘’‚′`“”„″", "'"))  # what forums and word processors make of a quote
_START = re.compile(r"\{\s{0,4}'(?=[A-Za-z_])")  # a straight double quote is JSON, and another reader's
_PAIR = re.compile(
    r"'(?P<key>[A-Za-z_][\w./@ -]{0,100})'\s{0,4}:\s{0,4}"
    rf"(?:'(?P<quoted>[^']{{0,60}})'|(?:tensor\()?(?P<plain>{texts.NUM}))"
)
_KNOWN = re.compile(
    r"^(?:loss|grad_norm|learning_rate|epoch|step|reward|kl|train_loss|train_runtime|eval_\w+|rewards/\w+|logps/\w+|objective/\w+|num_tokens"
    r"|mean_token_accuracy|completion_length|completions/\w+|entropy)$"
)
_MARKS = re.compile(r"^(?:loss|eval_loss|train_loss|train_runtime|grad_norm|reward|eval_runtime|objective/\w+)$")
_BAR = re.compile(r"(?P<count>\d{1,9})/(?P<total>\d{1,9}) \[[\d:?]")
_BANNER = re.compile(
    r"^\s{0,12}(?P<key>Num Epochs|Instantaneous batch size per device|Total train batch size[^=]{0,60}|Gradient Accumulation steps"
    r"|Total optimization steps) = (?P<value>[\d,]{1,18})"
)
_BANNERS = {
    "Num Epochs": "num_train_epochs",
    "Instantaneous batch size per device": "per_device_train_batch_size",
    "Total train batch size": "train_batch_size",
    "Gradient Accumulation steps": "gradient_accumulation_steps",
    "Total optimization steps": "max_steps",
}
_STEPS = ("step", "global_step", "current_steps", "train/global_step")
_LONGEST = 8000  # characters of one record: TRL prints some forty names
_WRAPPED = 40  # lines that one pasted record may take
_FINE = 100.0  # steps an epoch that two decimals of an epoch can tell apart
_LAG = 3  # steps that a bar may lag behind
_MOST_NAMES = 5000
_ENOUGH = 0.6  # share of the rows at which a bar must have moved to be the step


@dataclass(slots=True)
class _Row:
    values: dict[str, float]
    line: texts.Line
    bar: int | None = None  # the count of the bar that was drawn last before the row

    @property
    def kind(self) -> str:
        """`end`, `eval` or `train`."""
        names = self.values
        if "train_runtime" in names and "loss" not in names:
            return "end"
        return "eval" if any(n.startswith("eval_") for n in names) and "loss" not in names else "train"


def claims(path: Path) -> bool:
    """A printed dictionary with a trainer's names, in text that is no JSON file."""
    try:
        head = texts.head(path)
        if path.suffix.lower() in {".py", ".ipynb", ".json", ".jsonl"} or head.lstrip()[:1] in {"[", "<"} or _is_json_lines(head):
            return False
        return any(_is_row(body) for body in _bodies(head.translate(_QUOTES)))
    except Exception:  # a test that is False in doubt
        return False


def _is_json_lines(head: str) -> bool:
    """Strict JSON on each line belongs to another reader; a Trainer prints Python."""
    lines = [line for line in head.splitlines()[:5] if line.strip()]
    return bool(lines) and all(line.startswith('{"') and line.rstrip().endswith("}") for line in lines)


def _bodies(text: str) -> Iterator[str]:
    at = 0
    while (start := _START.search(text, at)) is not None:
        end = text.find("}", start.end(), start.end() + _LONGEST)
        if end < 0:
            return
        yield text[start.start() : end + 1]
        at = end + 1


def _is_row(body: str) -> bool:
    names = {p["key"] for p in _PAIR.finditer(body)}
    return any(_MARKS.match(n) for n in names) and sum(bool(_KNOWN.match(n)) for n in names) >= min(2, len(names))


def _values(body: str) -> dict[str, float]:
    found = {}
    for pair in _PAIR.finditer(body):
        value = texts.number(pair["plain"] if pair["plain"] is not None else pair["quoted"])
        if value is not None:
            found[pair["key"]] = value
    return found


@dataclass(slots=True)
class _Console:
    """One file's rows, settings and facts."""

    path: Path
    facts: Facts
    rows: list[_Row] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    ended: bool = False
    _bar: int | None = None
    _held: list[str] = field(default_factory=list)
    _since: texts.Line | None = None

    def feed(self, line: texts.Line) -> None:
        """One line: a part of a record, a bar, a banner or a fact."""
        text = line.text.translate(_QUOTES)
        if self._held:
            self._continue(text, line)
            return
        at = 0
        for start in _START.finditer(text):
            if start.start() < at:
                continue
            self._see_bars(text[at : start.start()])
            end = text.find("}", start.end(), start.end() + _LONGEST)
            if end < 0:
                self._held, self._since = [text[start.start() :]], line
                return
            self._record(text[start.start() : end + 1], line)
            at = end + 1
        rest = text[at:]
        self._see_bars(rest)
        if not at and not self.facts.take(line) and (found := _BANNER.match(rest)):
            name = next((v for k, v in _BANNERS.items() if found["key"].startswith(k)), None)
            if name and len(self.settings) < 100:
                value = int(found["value"].replace(",", ""))
                self.settings.append(Setting(name, value, spelled=found["key"].strip(), where=f"{self.path}:{line.number}"))

    def _continue(self, text: str, line: texts.Line) -> None:
        end = text.find("}")
        self._held.append(text if end < 0 else text[: end + 1])
        if end < 0 and len(self._held) < _WRAPPED and sum(map(len, self._held)) < _LONGEST and not _START.search(text):
            return
        held, since = self._held, self._since or line
        self._held, self._since = [], None
        self._record(" ".join(held) if any(h[-1:] in ",: " for h in held[:-1]) else "".join(held), since)
        rest = text[end + 1 :] if end >= 0 else text
        if rest.strip() and (end >= 0 or _START.search(text)):
            self.feed(texts.Line(line.number, rest, line.rank, line.time))

    def close(self) -> None:
        """A record that the end of the file cut gives the pairs that are whole."""
        if self._held and self._since is not None:
            whole, _, _ = " ".join(self._held).rpartition(",")
            self._record(whole, self._since)
            self._held = []
        self.facts.close()

    def _see_bars(self, text: str) -> None:
        for bar in _BAR.finditer(text[-4000:]):
            self._bar = int(bar["count"])

    def _record(self, body: str, line: texts.Line) -> None:
        if not _is_row(body):
            return
        row = _Row(_values(body), line, self._bar)
        if row.values:
            self.rows.append(row)
            self.ended = self.ended or row.kind == "end"
            self.facts.step = row.bar


def _steps(rows: Sequence[_Row]) -> tuple[list[int], str, str]:
    """A step for each row, the axis that it counts, and a note on how it was found."""
    for name in _STEPS:
        if sum(name in r.values for r in rows) >= max(1, _ENOUGH * len(rows)):
            return _filled([int(r.values[name]) if name in r.values and abs(r.values[name]) < 2**62 else None for r in rows]), "step", ""
    training = [r for r in rows if r.kind == "train"]
    counts = [r.bar for r in training]
    moves = sum(a != b for a, b in itertools.pairwise([None, *counts]) if b is not None)
    if moves >= max(2, _ENOUGH * len(training)):  # an evaluation draws a bar of its own: its rows keep the step before
        per_epoch = _per_epoch(training)
        return _filled([_sharper(r, per_epoch) if r.kind == "train" else None for r in rows]), "step", ""
    steps, count = [], 0
    for r in rows:
        count += r.kind == "train"
        steps.append(max(count, 1))
    return steps, "row", "no step stands beside the rows; they are counted from 1"


def _per_epoch(rows: Sequence[_Row]) -> float:
    """Steps an epoch from bars and epochs; 0.0 when an epoch's two decimals can't tell one step from the next."""
    pairs = [r.bar / r.values["epoch"] for r in rows if r.bar and r.values.get("epoch", 0.0) > 0]
    per = statistics.median(pairs) if len(pairs) >= 3 else 0.0
    return per if 0 < per < _FINE else 0.0


def _sharper(row: _Row, per_epoch: float) -> int | None:
    """The step of a row: a bar is redrawn ten times a second at most and may lag; the epoch, where it is fine enough, does not."""
    epoch = row.values.get("epoch")
    if row.bar is None or not per_epoch or epoch is None or not 0 <= epoch < 1e9:
        return row.bar
    exact = round(epoch * per_epoch)
    return exact if abs(exact - row.bar) <= _LAG else row.bar


def _filled(found: Sequence[int | None]) -> list[int]:
    """Rows without a step of their own take the one before."""
    out, last = [], 0
    for value in found:
        last = last if value is None else value
        out.append(last)
    return out


def _series(console: _Console, source: int, problems: list[Problem]) -> list[RawSeries]:
    rows = [r for r in console.rows if r.kind != "end"]
    if not rows:
        return []
    steps, axis, note = _steps(rows)
    if note:
        problems.append(Problem(str(console.path), note))
    columns: dict[tuple[str, int | None], list[tuple[int, float, float]]] = {}
    for row, step in zip(rows, steps, strict=True):
        for name, value in row.values.items():
            if name in _STEPS or (len(columns) >= _MOST_NAMES and (name, row.line.rank) not in columns):
                continue
            columns.setdefault((name, row.line.rank), []).append((step, value, np.nan if row.line.time is None else row.line.time))
    out = []
    for (name, rank), points in columns.items():
        at, values, times = (np.array(c, t) for c, t in zip(zip(*points, strict=True), (np.int64, float, float), strict=True))
        out.append(RawSeries(name, at, values, times=times if np.isfinite(times).any() else None, rank=rank, axis=axis, source=source))
    return out


def _scales(console: _Console, source: int) -> list[RawSeries]:
    """The loss scale as DeepSpeed's overflow lines beside the bar tell it."""
    seen = [
        (e.step, e.numbers["scale"]) for e in console.facts.events if e.kind == "overflow" and e.step is not None and "scale" in e.numbers
    ]
    if not seen:
        return []
    steps, values = zip(*seen, strict=True)
    return [RawSeries("loss_scale", np.array(steps, np.int64), np.array(values, float), source=source)]


def read(paths: Sequence[Path]) -> RawRun:
    """All rows of the files, each file with its own bar."""
    problems: list[Problem] = []
    series: list[RawSeries] = []
    consoles = []
    for source, path in enumerate(paths):
        console = _Console(path, Facts(path))
        for line in texts.lines(path, problems):
            console.feed(line)
        console.close()
        series += _series(console, source, problems)
        series += _scales(console, source)
        consoles.append(console)
    ends = [True if c.ended and c.facts.clean_end is None else c.facts.clean_end for c in consoles]
    return RawRun(
        tuple(series),
        settings=tuple(s for c in consoles for s in c.settings),
        events=tuple(e for c in consoles for e in c.facts.events),
        problems=tuple(problems),
        sources=tuple(Source(str(p), "hf-console") for p in paths),
        clean_end=False if False in ends else True if True in ends else None,
        facts=Frozen(framework="hf"),
    )


READER = Reader("hf-console", "console of a Hugging Face Trainer", claims, read, priority=70)
