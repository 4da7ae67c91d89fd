"""Numbers and words for people: whole, short, and without anything that a terminal would obey."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from diagnose.model import Report, Span

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC with their payload
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
)


def number(value: float) -> str:
    """A number for people: whole numbers in full as `14 200`, others with four significant digits, `NaN` and `inf` as words."""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return _grouped(str(int(value))) if abs(int(value)) < 10**15 else _power(Decimal(int(value)))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e7:  # loss scales are powers of two: 65 536, not 65 540
        return _grouped(str(int(value)))
    return _grouped(_fixed(value)) if 1e-4 <= abs(value) < 1e7 else _power(value)


def _fixed(value: float) -> str:
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{float(f'{value:.4g}'):.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _power(value: float | Decimal) -> str:
    mantissa, power = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"


def _grouped(digits: str) -> str:
    whole, dot, rest = digits.partition(".")
    sign, whole = ("-", whole[1:]) if whole.startswith("-") else ("", whole)
    if len(whole) > 4:  # four digits stay together, as in a year or a step 1700
        whole = f"{int(whole):,}".replace(",", " ")
    return f"{sign}{whole}{dot}{rest}"


def shown(value: Any) -> str:
    """Any configuration value for people; `not set` for None."""
    if value is None:
        return "not set"
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return number(value)  # type: ignore[arg-type]
    if isinstance(value, Mapping):
        return ", ".join(f"{clean(str(k))}: {shown(v)}" for k, v in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(shown(v) for v in value)
    return clean(str(value))


def clean(text: str) -> str:
    """One line without control characters: terminal escapes go, line breaks become spaces, the rest shows as `\\x07`."""
    return " ".join(_visible(_ESCAPES.sub("", text), keep="\n\r\t\v\f").split())


def clean_block(text: str) -> str:
    """Several lines without control characters; line breaks and indentation stay."""
    return _visible(_ESCAPES.sub("", text).replace("\r\n", "\n").replace("\t", "    "), keep="\n").strip("\n")


def _visible(text: str, keep: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(ch if ch in keep else _safe(ch) for ch in text)


def _safe(ch: str) -> str:
    if ch.isprintable() or ch in "\u200c\u200d":  # the joiners are needed to write Persian and some emoji
        return ch
    # not printable: controls, direction overrides, lone surrogates, separators, private and unassigned code points
    return " " if unicodedata.category(ch) == "Zs" else _named(ch)


def _named(ch: str) -> str:
    code = ord(ch)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 point`, `14 200 points`."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def place(span: Span | None, unit: str = "step") -> str:
    """`step 400`, `step 400 to 420`, or `the whole run`."""
    if span is None:
        return "the whole run"
    if span.first_step == span.last_step:
        return f"{unit} {number(span.first_step)}"
    return f"{unit} {number(span.first_step)} to {number(span.last_step)}"


def path_shown(report: Report) -> str:
    """The name of the run, or its path where it has no name."""
    return clean(str(report.run.get("name") or report.run.get("path") or "run"))
