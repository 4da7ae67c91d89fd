"""The report for a terminal: the verdict in one line, then what, where, why and what to do, in at most 100 columns.

Readable without colour; colour only underlines what the words already say. The sparkline keeps every spike: a column shows
the largest value of its bucket (the smallest where the dips matter), and any NaN or infinity in it as `!`.
"""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from diagnose.model import Curve, Report
from diagnose.outline import (
    Card,
    CauseLine,
    ChartSpec,
    FixLine,
    KeyValues,
    Section,
    Snippet,
    Table,
    Text,
    clean,
    counted,
    curve_of,
    number,
    origin,
    outline,
    overview,
    ranked,
    summary,
)
from diagnose.parts import Renderer

WIDTH = 100
BARS = "▁▂▃▄▅▆▇█"
CARDS, FIXES, ROWS = 3, 3, 6  # in full without `verbose`; the rest is counted, never silently dropped
COLOURS = {"critical": "1;31", "major": "31", "minor": "33", "info": "36", "bold": "1", "dim": "2", "none": "32"}
_GAP = re.compile(r"(?<=\d) (?=\d{3}(?!\d))")  # inside `14 200`, which must not be broken over lines


def render(report: Report, *, colour: bool = False, verbose: bool = False) -> str:
    """The report as plain text of at most 100 columns; code to copy is never wrapped."""
    paint = _Paint(colour)
    made = outline(report)
    worst = report.worst.value if report.worst else "none"
    lines = [paint(line, worst) for line in _wrap(f"{made.title}: {made.verdict}", "", "  ")]
    for section in made.sections:
        lines += ["", *_section(section, report, paint, verbose)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def render_many(reports: Sequence[Report]) -> str:
    """A table over runs, worst first, under one line that counts them."""
    order = ranked(reports)
    rows = [overview(r) for r in order]
    names = min(32, max([3, *(len(r[0]) for r in rows)]))
    severities = max([8, *(len(r[2]) for r in rows)])
    steps = max([5, *(len(r[3]) for r in rows)])
    lines = [summary(reports), ""]
    lines.append(f"{'severity':<{severities}}  {'since':>{steps}}  {'sure':<6}  {'run':<{names}}  verdict")
    lines.append("-" * WIDTH)
    for name, verdict, severity, since, sure in rows:
        lead = f"{severity:<{severities}}  {since:>{steps}}  {sure:<6}  {_short(name, names):<{names}}  "
        lines += _wrap(verdict, lead, " " * len(lead))
    if len(order) > 1 and order[0].readable:
        lines += ["", f"One run in full: diagnose {shlex.quote(origin(order[0]))}"]
    return "\n".join(line.rstrip() for line in lines) + "\n"


class _Paint:
    """Colour where it is wanted, plain text otherwise."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def __call__(self, text: str, tone: str) -> str:
        return f"\x1b[{COLOURS[tone]}m{text}\x1b[0m" if self.wanted and text else text


def _wrap(text: str, first: str = "", rest: str = "", *, width: int = WIDTH) -> list[str]:
    held = _GAP.sub("\u00a0", text)
    lines = textwrap.wrap(held, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines] or [first.rstrip()]


def _short(text: str, width: int) -> str:
    """Cut in the middle: runs and paths differ at both ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 3 // 5
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _section(section: Section, report: Report, paint: _Paint, verbose: bool) -> Iterator[str]:
    if section.id == "diagnoses":
        yield from _diagnoses(section, report, paint, verbose)
        return
    yield paint(section.title, "bold")
    snippets = 0
    for block in section.blocks:
        if isinstance(block, Snippet):
            snippets += 1
            if snippets > 1 and not verbose:
                continue
        yield from _block(block, paint, verbose)
    if snippets > 1 and not verbose:
        yield paint(f"  {counted(snippets - 1, 'more snippet')}: --verbose", "dim")


def _block(block: object, paint: _Paint, verbose: bool) -> Iterator[str]:
    if isinstance(block, Text):
        yield from _wrap(block.says, "  ", "  ")
    elif isinstance(block, KeyValues):
        wide = max(len(k) for k, _ in block.pairs)
        for key, value in block.pairs:
            yield from _wrap(value, f"  {key:<{wide}}  ", " " * (wide + 4))
    elif isinstance(block, Table):
        yield from _table(block, paint, verbose)
    elif isinstance(block, Snippet):
        yield from _snippet(block, "  ", paint)


def _table(table: Table, paint: _Paint, verbose: bool) -> Iterator[str]:
    rows = table.rows if verbose else table.rows[:ROWS]
    cells = [list(table.columns), *(list(r) for r in rows)]
    widths = _widths([max(len(r[i]) for r in cells) for i in range(len(table.columns) - 1)])
    for index, row in enumerate(cells):
        lead = "".join(f"{_short(cell, wide):<{wide}}  " for cell, wide in zip(row, widths, strict=False))
        for line in _wrap(row[-1], f"  {lead}", " " * (len(lead) + 2)):
            yield paint(line, "dim") if index == 0 else line
    if len(rows) < len(table.rows):
        yield paint(f"  {number(len(table.rows) - len(rows))} more: --verbose", "dim")


def _widths(wanted: Sequence[int], budget: int = 60) -> list[int]:
    """What the leading columns get of `budget`, narrow ones first, so that only the wide ones are cut; the last one wraps."""
    widths = [0] * len(wanted)
    for left, i in zip(range(len(wanted), 0, -1), sorted(range(len(wanted)), key=lambda i: wanted[i]), strict=True):
        widths[i] = min(wanted[i], budget // left)
        budget -= widths[i]
    return widths


def _snippet(snippet: Snippet, indent: str, paint: _Paint) -> Iterator[str]:
    if snippet.title:
        for line in _wrap(f"{snippet.title}:", indent, indent):
            yield paint(line, "dim")
    for code in snippet.code.split("\n"):
        yield f"{indent}    {code}"


# -- diagnoses


def _diagnoses(section: Section, report: Report, paint: _Paint, verbose: bool) -> Iterator[str]:
    cards = [b for b in section.blocks if isinstance(b, Card)]
    whole = cards if verbose else [c for c in cards if c.severity != "info"][:CARDS]  # worst first, so info comes last anyway
    said = outline(report).verdict
    for index, card in enumerate(whole, 1):
        if index > 1:
            yield ""
        yield from _headline(card, index, paint, again=card.headline not in said)
        yield from _card(card, index, report, paint, verbose)
    more = "more " if whole else ""
    if len(whole) < len(cards):
        if whole:
            yield ""
        yield paint(f"{counted(len(cards) - len(whole), f'{more}diagnosis', f'{more}diagnoses')} (in full with --verbose)", "bold")
        for index, card in enumerate(cards[len(whole) :], len(whole) + 1):
            yield from _wrap(f"{card.headline} [{card.severity}, sure: {card.sure}, {card.rule}]", f"{index:>2}. ", "    ")


def _headline(card: Card, index: int, paint: _Paint, *, again: bool) -> Iterator[str]:
    facts = [card.severity, f"sure: {card.sure}", *(f"{key} {value}" for key, value in card.facts)]
    for line in _wrap(f"{card.rule} ({', '.join(facts)})", f"{index}. ", "   "):
        yield paint(line, card.severity)
    if again:  # the verdict has said it already when this is the worst
        yield from _wrap(card.headline, "   ", "   ")


def _card(card: Card, index: int, report: Report, paint: _Paint, verbose: bool) -> Iterator[str]:
    if card.chart and (index == 1 or verbose):
        yield from _sparkline(card.chart, report, paint)
    yield from _listed("Evidence", [("*", e) for e in card.evidence] + [("-", f"against: {a}") for a in card.against], paint)
    if card.causes:
        yield paint("   Causes, likeliest first", "dim")
        for cause in card.causes:
            yield from _cause(cause)
    if card.fixes:
        yield paint("   What to do", "dim")
        for place, fix in enumerate(card.fixes if verbose else card.fixes[:FIXES], 1):
            yield from _fix(fix, place, paint)
        if len(card.fixes) > FIXES and not verbose:
            yield paint(f"     {counted(len(card.fixes) - FIXES, 'more fix', 'more fixes')}: --verbose", "dim")
    if card.rivals:
        yield from _wrap(f"The same evidence would also fit: {', '.join(card.rivals)}.", "   ", "   ")


def _listed(title: str, items: Iterable[tuple[str, str]], paint: _Paint) -> Iterator[str]:
    items = list(items)
    if items:
        yield paint(f"   {title}", "dim")
    for mark, item in items:
        yield from _wrap(item, f"     {mark} ", "       ")


def _cause(cause: CauseLine) -> Iterator[str]:
    bar = "█" * round(cause.share * 10) or "▏"
    yield from _wrap(cause.title, f"     {cause.share * 100:>3.0f} %  {bar:<10}  ", " " * 24)
    for mark, sentences in (("+", cause.because), ("-", cause.against)):
        for sentence in sentences:
            yield from _wrap(sentence, f"            {mark} ", "              ")
    if cause.would_decide:
        yield from _wrap(f"would decide: {cause.would_decide}", "            ? ", "              ")


def _fix(fix: FixLine, place: int, paint: _Paint) -> Iterator[str]:
    yield from _wrap(fix.do, f"     {place}. ", "        ")
    for label, sentence in (("why", fix.because), ("expect", fix.expect), ("careful", fix.caution)):
        if sentence:
            yield from _wrap(f"{label}: {sentence}", "        ", "        ")
    for change in fix.changes:
        now = f"{change.now} -> " if change.now else ""
        yield from _wrap(f"{change.setting}: {now}{change.new}", "        ", "          ")
    if fix.snippet:
        yield from _snippet(replace(fix.snippet, title=f"in {fix.framework}"), "        ", paint)


# -- the sparkline


def _sparkline(chart: ChartSpec, report: Report, paint: _Paint) -> Iterator[str]:
    curve = curve_of(report, chart.signals[0])
    if curve is None or len(curve.steps) < 3:
        return
    wide = min(64, max(12, len(curve.steps)))  # no more columns than points, or even spacing would look like gaps
    onset = next((m.step for m in chart.marks if m.kind == "onset"), None)
    bars, logarithmic, low, high = sparkline(curve, wide, dips=chart.low)
    label = _short(clean(curve.name), 24)
    pad = " " * (len(label) + 5)
    span = f"{number(low)} to {number(high)}{', log axis' if logarithmic else ''}" if high >= low else "no finite value"
    yield f"   {label}  {bars}"
    if onset is not None:
        at = column(curve, onset, wide)
        text = f"^ {number(onset)}"
        yield pad + (" " * at + text if at + len(text) <= wide else " " * (at - len(text) + 1) + f"{number(onset)} ^")
    yield paint(f"{pad}{number(int(curve.steps[0]))} to {number(int(curve.steps[-1]))}, values {span}", "dim")


def column(curve: Curve, step: int, wide: int) -> int:
    """The column of `sparkline` that a step falls into."""
    first, last = int(curve.steps[0]), int(curve.steps[-1])
    return min(wide - 1, max(0, (step - first) * wide // (last - first + 1)))


def sparkline(curve: Curve, wide: int, *, dips: bool = False) -> tuple[str, bool, float, float]:
    """One character a bucket of steps, whether the axis is logarithmic, and the smallest and largest finite value.

    A bucket shows its largest value (its smallest with `dips`), a space when nothing was logged, `!` for NaN or infinity.
    """
    finite = curve.values[np.isfinite(curve.values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (math.inf, -math.inf)
    logarithmic = low > 0 and high / low > 100  # two decades do not fit eight levels
    marks = [" "] * wide
    level = [-math.inf] * wide
    for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True):
        at = column(curve, step, wide)
        if not math.isfinite(value):
            marks[at] = "!"
            continue
        height = -value if dips else value
        level[at] = max(level[at], height)
    for at, height in enumerate(level):
        if marks[at] == " " and height > -math.inf:
            marks[at] = BARS[_level(-height if dips else height, low, high, logarithmic)]
    return "".join(marks), logarithmic, low, high


def _level(value: float, low: float, high: float, logarithmic: bool) -> int:
    if logarithmic:
        value, low, high = math.log(value), math.log(low), math.log(high)
    if high <= low:
        return 0
    scale = max(abs(low), abs(high))  # divide first: high - low may overflow
    return min(7, max(0, int(8 * (value / scale - low / scale) / (high / scale - low / scale))))


RENDERER = Renderer("text", "Plain text for a terminal, the verdict first", ".txt", render, render_many=render_many)
