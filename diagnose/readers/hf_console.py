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

from diagnose import texts
from diagnose.transcript import Page, console_reader

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


def _printed(head: str) -> bool:
    """A printed dictionary with a trainer's names, in text that is no JSON file."""
    if head.lstrip().startswith(("[{", "<")) or _is_json_lines(head):
        return False
    return any(_is_row(body) for body in _bodies(head.translate(_QUOTES)))


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
class Trainer:
    """One file's rows; their steps are settled when all bars are known."""

    rows: list[_Row] = field(default_factory=list)
    _bar: int | None = None
    _held: list[str] = field(default_factory=list)
    _since: texts.Line | None = None

    def take(self, line: texts.Line, page: Page) -> bool:
        """Whether the line holds a record, a part of one, or a banner; bars are looked at in passing."""
        text = line.text.translate(_QUOTES)
        if self._held:
            self._continue(text, line, page)
            return True
        at = 0
        for start in _START.finditer(text):
            if start.start() < at:
                continue
            self._see_bars(text[at : start.start()], page)
            end = text.find("}", start.end(), start.end() + _LONGEST)
            if end < 0:
                if not _is_row(f"{text[start.start() :]}}}") and len(text) - start.start() > _WRAPPED:
                    break
                self._held, self._since = [text[start.start() :]], line
                return True
            if self._record(text[start.start() : end + 1], line, page):
                at = end + 1
        self._see_bars(text[at:], page)
        return bool(at) or self._banner(text, line, page)

    def _banner(self, text: str, line: texts.Line, page: Page) -> bool:
        found = _BANNER.match(text) if " = " in text else None
        name = next((v for k, v in _BANNERS.items() if found["key"].startswith(k)), None) if found else None
        if found and name:
            page.setting(name, int(found["value"].replace(",", "")), line)
        return name is not None

    def _continue(self, text: str, line: texts.Line, page: Page) -> None:
        end = text.find("}")
        self._held.append(text if end < 0 else text[: end + 1])
        if end < 0 and len(self._held) < _WRAPPED and sum(map(len, self._held)) < _LONGEST and not _START.search(text):
            return
        held, since = self._held, self._since or line
        self._held, self._since = [], None
        self._record(" ".join(held) if any(h[-1:] in ",: " for h in held[:-1]) else "".join(held), since, page)
        rest = text[end + 1 :] if end >= 0 else text
        if rest.strip() and (end >= 0 or _START.search(text)):
            self.take(texts.Line(line.number, rest, line.rank, line.time), page)

    def close(self, page: Page) -> None:
        """A record that the end of the file cut gives the pairs that are whole; then all rows get their steps."""
        if self._held and self._since is not None:
            whole, _, _ = " ".join(self._held).rpartition(",")
            self._record(whole, self._since, page)
            self._held = []
        self._put(page)
        self._scales(page)

    def _see_bars(self, text: str, page: Page) -> None:
        for bar in _BAR.finditer(text[-4000:]):
            self._bar = int(bar["count"])
            page.suggest(self._bar)

    def _record(self, body: str, line: texts.Line, page: Page) -> bool:
        if not _is_row(body):
            return False
        row = _Row(_values(body), line, self._bar)
        if row.values:
            self.rows.append(row)
            if row.kind == "end":
                page.clean_end = True
        return True

    def _put(self, page: Page) -> None:
        rows = [r for r in self.rows if r.kind != "end"]
        if not rows:
            return
        steps, axis, note = _steps(rows)
        if note:
            page.problem(note)
        for row, step in zip(rows, steps, strict=True):
            for name, value in row.values.items():
                if name not in _STEPS:
                    page.point(name, step, value, row.line, axis=axis)

    def _scales(self, page: Page) -> None:
        """The loss scale as overflow lines beside the bar tell it."""
        for e in page.facts.events:
            if e.kind == "overflow" and e.step is not None and "scale" in e.numbers:
                page.point("loss_scale", e.step, e.numbers["scale"], texts.Line(int(e.where.rpartition(":")[2]), ""), axis="step")


def _steps(rows: Sequence[_Row]) -> tuple[list[int], str, str]:
    """A step for each row, the axis that it counts, and a note on how it was found."""
    for name in _STEPS:
        if sum(name in r.values for r in rows) >= max(1, _ENOUGH * len(rows)):
            return _filled([int(r.values[name]) if name in r.values and abs(r.values[name]) < 2**62 else None for r in rows]), "step", ""
    training = [r for r in rows if r.kind == "train"]
    counts = [r.bar for r in training]
    moves = sum(a != b for a, b in itertools.pairwise([None, *counts]) if b is not None)
    if moves >= max(
        1, min(2, len(training)), _ENOUGH * len(training)
    ):  # an evaluation draws a bar of its own: its rows keep the step before
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


READER = console_reader("hf-console", "console of a Hugging Face Trainer", _printed, Trainer, priority=68, framework="hf")
