"""A report as sections and blocks of plain data, so that text, Markdown and the page draw the same outline.

All words in an outline are clean: control characters, terminal escapes and direction overrides from logs are gone, every
number has gone through `number`. What a face still has to do is escape for its own medium and lay out.
"""

from diagnose.outline.blocks import (
    Block,
    Card,
    CauseLine,
    ChangeLine,
    ChartSpec,
    FixLine,
    KeyValues,
    Mark,
    Outline,
    Section,
    Shade,
    Snippet,
    Table,
    Text,
)
from diagnose.outline.cards import card, copyable, curve_of, frameworks, new_value
from diagnose.outline.runs import origin, overview, ranked, summary
from diagnose.outline.sections import metric_shown, outline, shape
from diagnose.outline.words import clean, clean_block, counted, number, path_shown, place, shown

__all__ = [
    "Block",
    "Card",
    "CauseLine",
    "ChangeLine",
    "ChartSpec",
    "FixLine",
    "KeyValues",
    "Mark",
    "Outline",
    "Section",
    "Shade",
    "Snippet",
    "Table",
    "Text",
    "card",
    "clean",
    "clean_block",
    "copyable",
    "counted",
    "curve_of",
    "frameworks",
    "metric_shown",
    "new_value",
    "number",
    "origin",
    "outline",
    "overview",
    "path_shown",
    "place",
    "ranked",
    "shape",
    "shown",
    "summary",
]
