"""The values that programs print for a setting: literals of Python and JSON, never evaluated as code."""

from __future__ import annotations

import ast
import json
from typing import Any

from diagnose.texts.numbers import number

_LONGEST_VALUE = 20_000  # characters; ast is not linear in memory
_DEEPEST = 24  # brackets; ast.literal_eval recurses


def plain(value: Any) -> Any:
    """A value that a setting may hold: text, number, truth, None, or a list of these."""
    if isinstance(value, list | tuple):
        return [v if isinstance(v, str | int | float | bool) or v is None else str(v) for v in value]
    if isinstance(value, dict):
        return str(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def parsed(text: str) -> Any:
    """The value that a dump prints: Python or JSON literal, pydantic's `a=1 b=True` as a mapping, else the text itself."""
    text = text.strip()
    words = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
    if text in words:
        return words[text]
    if text[:1].isdigit() or text[:1] in "+-.":
        try:
            return int(text)
        except ValueError:
            value = number(text) if text[-1:].isdigit() or text.endswith(".") else None
            return text if value is None else value
    if text[:1] in "[{(" and shallow(text):
        for read in (ast.literal_eval, json.loads):
            try:
                return read(text)
            except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
                continue
    if text[:1] in "'\"" and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    return text


def shallow(text: str) -> bool:
    """Whether a literal is short and flat enough for a parser that recurses."""
    if len(text) > _LONGEST_VALUE:
        return False
    depth = deepest = 0
    for char in text:
        if char in "[{(":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "]})":
            depth -= 1
    return deepest <= _DEEPEST
