"""Named numbers in free lines: key and value pairs, and the lines of one template as points."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isnan
from typing import Any, NamedTuple

from diagnose.texts.decoding import Line
from diagnose.texts.numbers import NUM, number

_WORD = r"[A-Za-z_][\w./-]{0,40}+"
_PAIR = re.compile(
    r"(?<![\w./'\"-])[\"']?"
    rf"(?:(?P<bare>(?:(?:[Tt]rain|[Vv]al|[Ee]val|[Tt]est)[a-z]{{0,7}}+ )?{_WORD}) {{1,4}}+"  # `loss 4.2`, `val loss 4.3`
    rf"|(?P<key>{_WORD}(?: {{1,2}}[\w(][\w./()%-]{{0,30}}+){{0,4}}?)[\"']?\s{{0,20}}+[:=]\s{{0,20}}+)"  # `grad norm: 0.9`: up to five
    rf"[\"']?(?:tensor\()?(?P<value>{NUM})(?!\.\d|[-:]\d|x[0-9A-Fa-f])"  # no version, date, clock or address
)
_MAY_HAVE_STEP = re.compile(r"(?i)step|iter|epoch|update|batch|\bit\b")
_NO_NAMES = frozenset({"of", "at", "to", "in", "from", "for", "by", "and", "is", "are", "after", "than", "with", "on", "took", "or"})
_STEP_KEYS = {
    **dict.fromkeys(("global_step", "global_steps"), 0),
    **dict.fromkeys(("step", "steps", "train_step", "training_step"), 1),
    **dict.fromkeys(("iteration", "iterations", "iter", "iters", "it"), 2),
    "update": 3,
    "updates": 3,
    "batch": 4,
    "epoch": 5,
    "epochs": 5,
}
_AXES = {4: "iteration", 5: "epoch"}
_SPLIT = re.compile(r"(?i)\b(eval|valid|val|test|dev)(?:uation|uating|idation|ing)?\b")
_DIGITS = re.compile(r"\d+")
_GREATEST_STEP = 2**53  # beyond it a float no longer counts


def pairs(text: str) -> Iterator[tuple[str, str]]:
    """The `key: value`, `key=value` and `key value` pairs of a line whose value is a number, both as written."""
    for found in _PAIR.finditer(text):
        key = found["key"] or found["bare"]
        if key.lower() not in _NO_NAMES:
            yield key, found["value"]


def _step_rank(key: str) -> int | None:
    flat = key.lower().replace(" ", "_")
    rank = _STEP_KEYS.get(flat)
    return _STEP_KEYS.get(flat.rsplit("_", 1)[-1]) if rank is None and " " in key else rank


class Point(NamedTuple):
    """One value of one name, with its place: what `Miner` hands over."""

    name: str
    step: int
    value: float
    axis: str
    group: str
    line: int
    time: float | None
    rank: int | None


@dataclass(slots=True)
class _Template:
    """Lines of one shape: waiting points a name, until the name has recurred often enough; and how its steps count."""

    waiting: dict[str, list[Point]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    last: tuple[Any, ...] = ()
    last_time: float | None = None
    last_line: int = 0
    epoch: float = -1.0
    raw_step: int = -1
    offset: int = 0
    offsets: dict[float, int] = field(default_factory=dict)

    def counted_on(self, step: int, epoch: float | None) -> int:
        """The step over all epochs, where it starts again in each of them; the same number where it doesn't."""
        if epoch is None or isnan(epoch):
            return step
        if epoch > self.epoch >= 0 and step < self.raw_step:
            self.offset += self.raw_step + (step == 0)
        elif epoch < self.epoch:  # a restart: count as then
            self.offset = self.offsets.get(epoch, 0)
        self.epoch, self.raw_step = epoch, step
        self.offsets.setdefault(epoch, self.offset)
        return step + self.offset


@dataclass(slots=True)
class Miner:
    """Finds series in lines of unknown programs: numbers with names, on lines that also name a step.

    A name counts when it recurs on `enough` lines of one template (the text before its first pair and the step's key);
    in a file of at most `short_file` lines, `enough_if_short`. So points come late: the first `enough` at once.
    Lines without a rank that repeat (step, values) within a second are one line of several ranks.
    """

    enough: int = 5  # below it, sentences with a number in them become series (formats: template mining)
    enough_if_short: int = 3
    short_file: int = 200  # lines
    most_templates: int = 2000  # memory; a log with more shapes than that has no shape
    step: int | None = None  # of the last line that named one
    repeats: int = 0
    overflowed: bool = False
    _templates: dict[tuple[str, str], _Template] = field(default_factory=dict)

    def feed(self, line: Line) -> list[Point]:
        """The points that this line settles: its own and those that were waiting."""
        text = line.text
        if not _MAY_HAVE_STEP.search(text):
            return []
        found = list(pairs(text))
        ranked = [(r, key, value) for key, value in found if (r := _step_rank(key)) is not None]
        if not ranked or len(found) < 2:
            return []
        order, step_key, step_text = min(ranked, key=lambda t: t[0])
        at = number(step_text)
        if at is None or not at.is_integer() or not 0 <= at < _GREATEST_STEP:
            return []
        before = text[: text.find(found[0][0])][:60]
        template = self._template((_DIGITS.sub("#", before), step_key))
        if template is None:
            return []
        rank = line.rank
        if rank is None and (said := [v for k, v in found if k.lower() == "rank"]):
            rank = int(number(said[0]) or 0)
        if rank is None and self._repeated(template, line, (at, *found)):
            return []
        epochs = [number(v) for r, _, v in ranked if r == 5]
        self.step = template.counted_on(int(at), epochs[0] if epochs and order != 5 else None)
        split = _SPLIT.search(before)
        base = Point("", self.step, 0.0, _AXES.get(order, "step"), split[1].lower() if split else "", line.number, line.time, rank)
        return self._settled(template, base, [(k, v) for k, v in found if k != step_key and k.lower() != "rank"])

    def _template(self, key: tuple[str, str]) -> _Template | None:
        if key not in self._templates:
            if len(self._templates) >= self.most_templates:
                self.overflowed = True
                return None
            self._templates[key] = _Template()
        return self._templates[key]

    def _repeated(self, template: _Template, line: Line, content: tuple[Any, ...]) -> bool:
        if line.time is not None and template.last_time is not None:
            near = abs(line.time - template.last_time) <= 1.0
        else:
            near = line.number - template.last_line <= 64  # ranks of one node stand close together
        if near and content == template.last:
            self.repeats += 1
            return True
        template.last, template.last_time, template.last_line = content, line.time, line.number
        return False

    def _settled(self, template: _Template, base: Point, found: list[tuple[str, str]]) -> list[Point]:
        out: list[Point] = []
        seen: set[str] = set()
        for key, text in found:
            value = number(text)
            if value is None or key in seen:
                continue
            seen.add(key)
            point = base._replace(name=key, value=value)
            if key in template.open:
                out.append(point)
                continue
            waiting = template.waiting.setdefault(key, [])
            waiting.append(point)
            if len(waiting) >= self.enough:
                template.open.add(key)
                out += template.waiting.pop(key)
        return out

    def close(self, lines_read: int) -> list[Point]:
        """What a short file has left over: names that recurred at least `enough_if_short` times."""
        if lines_read > self.short_file:
            return []
        left = [w for t in self._templates.values() for w in t.waiting.values() if len(w) >= self.enough_if_short]
        return sorted((p for w in left for p in w), key=lambda p: p.line)
