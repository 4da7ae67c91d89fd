"""A line without its logger header, and what the engine's dialect does to columns once the whole file is known."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from diagnose.texts import Line, parsed, plain
from diagnose.transcript import Page


@dataclass(frozen=True, slots=True)
class Said:
    """A line without its logger header: what was said, by which rank, from which source file ("" for a plain print)."""

    line: Line
    text: str
    rank: int | None
    origin: str
    level: str = ""


def nest(page: Page, name: str, value: Any, line: Line, depth: int = 0) -> None:
    """Keeps a nested value as settings with dotted names."""
    if isinstance(value, dict) and value and depth < 8:
        for key, inner in value.items():
            nest(page, f"{name}.{key}" if name else str(key), inner, line, depth + 1)
    else:
        page.setting(name, plain(value), line)


def relabel(page: Page, name: str, shift: int) -> None:
    """Moves a series from its rows to steps: the n-th row (from 0) is step n + 1 + shift."""
    for key in [k for k in page.columns if k[0] == name and k[1] == "row"]:
        column = page.columns.pop(key)
        column.steps = array("q", (s + 1 + shift for s in column.steps))
        page.columns[(name, "step", key[2], key[3])] = column


def rename(page: Page, name: str, to: str) -> None:
    """Gives a series the name under which it is handed over."""
    for key in [k for k in page.columns if k[0] == name]:
        page.columns[(to, *key[1:])] = page.columns.pop(key)


def drop(page: Page, name: str) -> None:
    """Leaves a series out (a column that says nothing that another one does not say)."""
    for key in [k for k in page.columns if k[0] == name]:
        del page.columns[key]


def repeats(page: Page, name: str, other: str) -> bool:
    """Whether each value of a name stands on a line where the other name has the same value in the same group."""
    known = {(g, line): v for (n, _, g, _), c in page.columns.items() if n == other for line, v in zip(c.lines, c.values, strict=True)}
    own = [(g, line, v) for (n, _, g, _), c in page.columns.items() if n == name for line, v in zip(c.lines, c.values, strict=True)]
    return all(known.get((g, line)) == v for g, line, v in own)


def betas(page: Page, text: str, line: Line) -> None:
    """The first momentum that a progress line prints, as the setting `mom`; later ones follow the schedule."""
    if not any(name == "mom" for name, _ in page.settings):
        value = parsed(f"[{text}]")
        page.setting("mom", plain(value[0] if isinstance(value, list) and value else text), line)
