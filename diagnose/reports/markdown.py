"""The report for an issue thread: the verdict, evidence, causes and the change to make; everything else folded away.

Names and sentences from logs are escaped, so that no tag name can start a heading, a mention, a link or an HTML element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from diagnose.model import Report
from diagnose.outline import (
    Block,
    Card,
    CauseLine,
    FixLine,
    KeyValues,
    Outline,
    Section,
    Snippet,
    Table,
    Text,
    outline,
    overview,
    ranked,
    summary,
)
from diagnose.parts import Renderer

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$])")
_LEADING = re.compile(r"^(\s*)([-+=]|\d+[.)](?=\s|$))")
_WORDY = re.compile(r"(?<=\w)\\_(?=\w)")  # `grad_norm` needs no escape inside a word
CARDS = 3  # whole above the fold without `verbose`


def render(report: Report, *, colour: bool = False, verbose: bool = False) -> str:
    """The report as GitHub Markdown; short first, details folded."""
    made = outline(report)
    lines = [f"**{escaped(made.title)}: {escaped(made.verdict)}**", ""]
    cards = _cards(made)
    whole = cards if verbose else [c for c in cards if c.severity != "info"][:CARDS]
    for card in whole:
        lines += [*_card(card), ""]
    if len(whole) < len(cards):
        rest = [line for card in cards[len(whole) :] for line in [*_card(card), ""]]
        lines += _folded(f"{len(cards) - len(whole)} {'more ' if whole else ''}of less weight", rest)
    for section in made.sections:
        if section.id != "diagnoses":
            lines += _folded(escaped(section.title), list(_section(section)), opened=verbose)
    return "\n".join(lines).rstrip() + "\n"


def render_many(reports: Sequence[Report]) -> str:
    """A table over runs, worst first."""
    rows = tuple((run, severity, since, sure, verdict) for run, verdict, severity, since, sure in map(overview, ranked(reports)))
    table = _table(Table(("run", "severity", "since", "sure", "verdict"), rows))
    return "\n".join([f"**{escaped(summary(reports))}**", "", *table]) + "\n"


def escaped(text: str) -> str:
    """One line of text with nothing in it that Markdown or HTML would take for its own."""
    text = _WORDY.sub("_", _SPECIAL.sub(r"\\\1", text.replace("&", "&amp;")))
    text = text.replace("\\<", "&lt;").replace("\\>", "&gt;")
    text = re.sub(r"(?<!\w)@(?=\w)", "@\u200b", text)  # nobody is notified by a tag name
    text = re.sub(r"#(?=\d)", "#\u200b", text)  # and no issue is linked by one
    text = re.sub(r"(?i)\b(https?|ftp)(?=://)|\bwww(?=\.)", lambda m: m.group() + "\u200b", text)  # no log text becomes a link
    return _LEADING.sub(lambda m: f"{m.group(1)}\\{m.group(2)}" if not m.group(2)[0].isdigit() else _dotless(m.group()), text)


def _dotless(lead: str) -> str:
    return lead[:-1] + "\\" + lead[-1]


def fenced(language: str, code: str) -> list[str]:
    """A fenced block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall(r"`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", *code.split("\n"), fence]


def _cards(made: Outline) -> list[Card]:
    section = made.section("diagnoses")
    return [b for b in section.blocks if isinstance(b, Card)] if section else []


def _folded(title: str, lines: list[str], *, opened: bool = False) -> list[str]:
    return [f"<details{' open' if opened else ''}><summary>{title}</summary>", "", *lines, "", "</details>", ""]


def _card(card: Card) -> Iterator[str]:
    yield f"### {escaped(card.headline)}"
    facts = " · ".join(f"{key} {value}" for key, value in card.facts)
    yield f"**{card.severity}** · sure: {card.sure} · {escaped(facts)} · rule {escaped(card.rule)}"
    yield ""
    yield from (f"- {escaped(sentence)}" for sentence in card.evidence)
    yield from (f"- against: {escaped(sentence)}" for sentence in card.against)
    if card.causes:
        yield from ("", "Causes, likeliest first:", "")
        for place, cause in enumerate(card.causes, 1):
            yield from _cause(cause, place)
    for place, fix in enumerate(card.fixes, 1):
        if place == 1:
            yield from ("", "What to do:", "")
        yield from _fix(fix, place)
    if card.rivals:
        yield from ("", f"The same evidence would also fit: {escaped(', '.join(card.rivals))}.")


def _cause(cause: CauseLine, place: int) -> Iterator[str]:
    yield f"{place}. {escaped(cause.title)} ({100 * cause.share:.0f} %)"
    yield from (f"   - for: {escaped(sentence)}" for sentence in cause.because)
    yield from (f"   - against: {escaped(sentence)}" for sentence in cause.against)
    if cause.would_decide:
        yield f"   - would decide: {escaped(cause.would_decide)}"


def _fix(fix: FixLine, place: int) -> Iterator[str]:
    lead = f"{place}. "
    pad = " " * len(lead)
    yield f"{lead}{escaped(fix.do)}"
    for label, sentence in (("why", fix.because), ("expect", fix.expect), ("careful", fix.caution)):
        if sentence:
            yield f"{pad}- {label}: {escaped(sentence)}"
    if fix.changes:
        diff = [line for c in fix.changes for line in ([f"- {c.setting}: {c.now}"] if c.now else []) + [f"+ {c.setting}: {c.new}"]]
        yield from ("", *(pad + line for line in fenced("diff", "\n".join(diff))), "")
    if fix.snippet:
        yield from (f"{pad}In {escaped(fix.framework)}:", "", *(pad + line for line in fenced(fix.snippet.language, fix.snippet.code)), "")


def _section(section: Section) -> Iterator[str]:
    for block in section.blocks:
        yield from (*_block(block), "")


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [escaped(block.says)]
    if isinstance(block, KeyValues):
        return [f"- {escaped(key)}: {escaped(value)}" for key, value in block.pairs]
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Snippet):
        title = [f"{escaped(block.title)}:", ""] if block.title else []
        return [*title, *fenced(block.language, block.code)]
    return []


def _table(table: Table) -> list[str]:
    rule = ["---"] * len(table.columns)
    return [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in (table.columns,)] + [
        f"| {' | '.join(rule)} |",
        *(f"| {' | '.join(escaped(cell) for cell in row)} |" for row in table.rows),
    ]


RENDERER = Renderer("markdown", "Markdown for an issue thread, details folded", ".md", render, render_many=render_many)
