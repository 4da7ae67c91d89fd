"""Console lines of programs that no other reader knows: numbers with names on lines that also name a step.

A name becomes a series only when it recurs in one shape of line (see `texts.Miner`); prose with numbers in it does not. `Overriding:
k = v` and two-column parameter tables are read as settings. Claimed last, and only when the first 64 KiB hold at least three such
lines with a loss, a norm, an accuracy or a learning rate among the names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from diagnose import texts
from diagnose.transcript import Page, console_reader

_NAMES = re.compile(r"(?i)loss|norm|\blr\b|learning.rate|acc\b|accuracy|perplexity|ppl|reward")
_OVERRIDE = re.compile(r"^(?:Overriding:|overriding config with|config:) ?(?P<key>[\w.]{1,60})\s{0,4}[=:]\s{0,4}(?P<value>\S.{0,200})$")
_TABLE = re.compile(r"^\| (?P<key>[\w.]{1,60})\s{1,60}\| (?P<value>\S.{0,120}?)\s{0,120}\|$")
_CODE = re.compile(r"[({]f?[\"']|print0?\(|\{[a-z_]+[:}]")


def _mined(head: str) -> bool:
    """At least three lines of one shape with a step and a metric's name."""
    miner = texts.Miner()
    found: set[str] = set()
    lines = head.splitlines()
    for i, text in enumerate(lines):
        found |= {p.name for p in miner.feed(texts.Line(i + 1, text, None, None)) if not _CODE.search(text)}
    found |= {p.name for p in miner.close(len(lines))}
    return any(_NAMES.search(name) for name in found)


class KeyValue:
    """The lines of one file that no other dialect knows."""

    def __init__(self) -> None:
        self._miner = texts.Miner()

    def take(self, line: texts.Line, page: Page) -> bool:
        """Whether the line holds named numbers beside a step, or a setting."""
        text = line.text.strip()
        if _CODE.search(text):
            return False
        if (found := _OVERRIDE.match(text) or _TABLE.match(text)) and found["value"] != "Value":
            value = texts.number(found["value"])
            page.setting(found["key"], found["value"] if value is None else value, line)
            return True
        before = self._miner.step
        points = self._miner.feed(line)
        self._put(points, page)
        if self._miner.step is not None and (points or self._miner.step != before):
            page.hint = self._miner.step
        if points and points[-1].axis == "step":
            page.suggest(points[-1].step)
        return bool(points)

    def close(self, page: Page) -> None:
        """What the miner has left of a short file."""
        self._put(self._miner.close(page.count), page)
        if self._miner.repeats:
            page.problem(f"{self._miner.repeats} lines that repeat another rank's were left out")
        if self._miner.overflowed:
            page.problem(f"over {self._miner.most_templates} shapes of line; the rest was not searched for series")

    def _put(self, points: Sequence[texts.Point], page: Page) -> None:
        for p in points:
            page.point(p.name, p.step, p.value, texts.Line(p.line, "", p.rank, p.time), axis=p.axis, group=p.group, rank=p.rank)
            page.knows(p.line)


READER = console_reader("key-value", "console lines with named numbers", _mined, KeyValue, priority=10, fallback=True)
