"""Iteration lines of Megatron-LM and its family: Megatron-DeepSpeed, GPT-NeoX, Pai, ms-swift on Megatron, from 2019 to 2026.

One line a logging interval, `iteration N/TOTAL | key: value | … |`; the pairs are read as they stand, so new ones need no new code.
A NaN loss is not printed (Megatron prints a loss only if it compares greater than 0): a complete line without a loss that earlier
lines had is a NaN, unless every iteration of the interval was skipped. `number of nan iterations` counts skipped iterations only
and does not contradict that. Source: `training_log` in megatron/training/training.py, its history since 2019.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isnan

from diagnose.texts import NUM, Line, number, parsed, plain
from diagnose.transcript import Page, console_reader

_MARK = re.compile(
    r"\biteration\s{1,20}\d{1,18}/\s{0,20}\d{1,18} \| {0,4}[a-z]"
    r"|validation(?:-[\w.-]{1,60})? (?:loss|results) at (?:iteration \d|the end)[^|\n]{0,60} \|"
)
_ITERATION = re.compile(r"\biteration\s{1,20}(?P<at>\d{1,18})/\s{0,20}(?P<total>\d{1,18}) \|(?P<body>.*)")
_BEFORE = re.compile(rf"(?P<key>samples/sec): (?P<value>{NUM}) \|")  # GPT-NeoX puts it in front
_CELL = re.compile(  # 2019 had no colon
    rf"\s{{0,4}}+(?P<key>[^|:\d][^|:]{{0,80}}?):?\s{{1,30}}+(?P<value>{NUM})%?(?:[A-Za-z/]{{0,12}})\s{{0,4}}$"
)
_VALIDATION = re.compile(r"validation(?P<set>-[\w.-]{1,60})? (?:loss|results) at (?:iteration (?P<at>\d{1,18})|[^|]{1,80}) \|(?P<body>.*)")
_MEMORY = re.compile(r"\(after (?P<at>\d{1,18}) iterations\) memory \(MB\) \|(?P<body>.*)")
_ARGUMENT = re.compile(r" {0,4}(?P<key>[A-Za-z]\w{0,80}) \.{2,80} ?(?P<value>.*)$")  # dots up to column 48
_ARGUMENTS = re.compile(r"-{5,80} (?:end of )?arguments -{5,80}")
_WORLD = re.compile(r"using world size: (?P<world>\d{1,9})(?P<rest>.*)")
_TIMES = re.compile(r"(?:\(min, max\) time|max time|times) across ranks \(ms\):")
_TIMER = re.compile(rf"\s{{2,8}}(?P<name>[\w-]{{1,60}}) ?\.{{2,60}}: ?(?:\((?P<min>{NUM}), (?P<max>{NUM})\)|(?P<only>{NUM}))")
_SKIPPED = "number of skipped iterations"
_WRAPPED = 3  # lines over which a pasted iteration line may be broken
_LOSS = re.compile(r"\bloss$")


@dataclass(slots=True)
class Megatron:
    """Reads one file; knows which losses an iteration line used to have."""

    _losses: dict[str, None] = field(default_factory=dict)
    _at: int = 0
    _arguments: bool = False
    _timers: bool = False
    _held: tuple[Line, str, int] | None = None  # the first line of a wrapped record, its text so far, lines since

    def take(self, line: Line, page: Page) -> bool:
        """Whether the line is one of the family's."""
        text = line.text
        if self._held is not None and self._continued(line, page):
            return True
        if "|" in text and ("iteration" in text or "validation" in text) and self._record(line, text, page):
            return True
        if self._timers:
            if found := _TIMER.match(text):
                self._timer(found, line, page)
                return True
            self._timers = False
        return self._header(line, page)

    def close(self, page: Page) -> None:
        """A record that the end of the file cut gives its whole cells."""
        if self._held is not None:
            held, text, _ = self._held
            self._held = None
            self._row(held, text, page)

    # -- parts

    def _record(self, line: Line, text: str, page: Page) -> bool:
        if (found := _ITERATION.search(text)) and not found["body"].rstrip().endswith("|"):
            self._held = (line, text, 0)  # the terminal that was copied from, or the end of the file, broke the line
            return True
        return self._row(line, text, page)

    def _continued(self, line: Line, page: Page) -> bool:
        held, text, count = self._held  # type: ignore[misc]  # asked for by the caller
        joined = f"{text} {line.text.strip()}" if text[-1:] in ":| " else f"{text}{line.text}"
        if "|" in line.text and not _ITERATION.search(line.text) and line.rank == held.rank:
            self._held = None
            if joined.rstrip().endswith("|") or count >= _WRAPPED:
                self._row(held, joined, page)
            else:
                self._held = (held, joined, count + 1)
            return True
        self._held = None
        self._row(held, text, page)
        return False

    def _row(self, line: Line, text: str, page: Page) -> bool:
        if found := _ITERATION.search(text):
            self._iteration(found, text[: found.start()], line, page)
        elif found := _VALIDATION.search(text):
            step = int(found["at"]) if found["at"] else page.step
            if step is not None:
                page.points(step, dict(_cells(found["body"])), line, group=f"validation{found['set'] or ''}")
            page.event("eval", f"validation at iteration {step}", line, step=step)
        elif found := _MEMORY.search(text):
            for key, value in _cells(found["body"]):
                page.point(f"memory (MB)/{key}", int(found["at"]), value, line)
        else:
            return False
        return True

    def _iteration(self, found: re.Match[str], before: str, line: Line, page: Page) -> None:
        """One line of pairs. A loss that earlier lines had and this one lacks was NaN, unless every iteration was skipped."""
        at = int(found["at"])
        cells = dict(_cells(found["body"]))
        if front := _BEFORE.search(before):
            cells[front["key"]] = float(front["value"])
        complete = found["body"].rstrip().endswith("|")  # else the file ends inside the line
        all_skipped = cells.get(_SKIPPED, 0.0) >= max(1, at - self._at) and at > self._at
        if complete and not all_skipped and cells:
            norm = cells.get("grad norm", 0.0)
            if not self._losses and isnan(norm) and not any(_LOSS.search(k.replace("_", " ")) for k in cells):
                cells["lm loss"] = float("nan")  # the log begins behind the last finite loss
            cells |= {key: float("nan") for key in self._losses if key not in cells}
        page.points(at, cells, line)
        for key in cells:
            if _LOSS.search(key.replace("_", " ")) and "scale" not in key:
                self._losses[key] = None
        page.setting("train_iters", int(found["total"]), line)
        self._at, page.counted = at, True

    def _header(self, line: Line, page: Page) -> bool:
        text = line.text
        if text.startswith("-") and _ARGUMENTS.search(text):
            self._arguments = "end of" not in text
        elif self._arguments and (found := _ARGUMENT.match(text)):
            page.setting(found["key"], plain(parsed(found["value"])), line)
        elif "using world size:" in text and (found := _WORLD.search(text)):
            page.setting("world_size", int(found["world"]), line)
            for name, value in re.findall(r"(\w[\w-]{0,40}size): (\d{1,9})", found["rest"]):
                page.setting(name, int(value), line)
        elif "across ranks (ms):" in text and _TIMES.search(text):
            self._timers = True
        elif "memory (MB) |" in text:
            return self._row(line, text, page)
        else:
            return False
        return True

    def _timer(self, found: re.Match[str], line: Line, page: Page) -> None:
        """Timers across ranks: the spread between the fastest and the slowest rank is what tells of stragglers."""
        if page.step is None:
            return
        for part in ("min", "max", "only"):
            if found[part] and (value := number(found[part])) is not None:
                page.point(f"time (ms)/{found['name']}" + (f"/{part}" if part != "only" else ""), page.step, value, line)


def _cells(body: str) -> list[tuple[str, float]]:
    """The `key: number` cells between bars; a cell without a number, or cut short by the end of the file, is left out."""
    found = [f for cell in body.split("|")[:-1] if (f := _CELL.match(cell[:160]))]
    return [(f["key"].strip(), value) for f in found if (value := number(f["value"])) is not None]


READER = console_reader(
    "megatron", "Megatron-LM, Megatron-DeepSpeed or GPT-NeoX console", _MARK, Megatron, priority=65, framework="megatron"
)
