"""Numbers as logs write them."""

from __future__ import annotations

import re

NUM = r"(?>[-+]?(?:(?i:nan|inf(?:inity)?)(?![A-Za-z])|(?:\d[\d_]*+\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?))"
"""A number as logs print it, atomic, so that a pattern around it can't give digits back and stays linear."""

_SCALES = {"K": 1e3, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}  # nanotron's human_format
_NO_NUMBER = {"", "null", "none", "na", "n/a", "-"}  # Keras NA, torchtitan N/A, JSON null, empty Lightning cells
_TENSOR = re.compile(r"tensor\(\s{0,8}\[?")
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_PLAIN = re.compile(NUM)


def number(text: str) -> float | None:
    """The number that a token means, or None when it is none: `7,282` · `0,001` · `1.2B` · `'3.9'` · `tensor(0.1)` · `1.#QNAN`."""
    if len(text) < 400:
        try:
            return float(text)  # nearly always
        except ValueError:
            pass
    token = text.strip().strip("'\"")
    if token.lower() in _NO_NUMBER:
        return None
    if inside := _TENSOR.match(token):
        token = token[inside.end() :].split(",", 1)[0].rstrip(")] ")
    token = token.removesuffix("%")
    if "#" in token:  # old MSVC: 1.#QNAN, -1.#IND, 1.#INF
        bad = token.upper()
        return float("nan") if "#QNAN" in bad or "#IND" in bad or "#SNAN" in bad else _infinity(bad) if "#INF" in bad else None
    factor = _SCALES.get(token[-1:], 1.0) if token[:1] not in "nNiI" else 1.0
    if factor != 1.0:
        token = token[:-1]
    if "," in token:
        token = token.replace(",", "") if _THOUSANDS.fullmatch(token) else token.replace(",", ".", 1)
    if len(token) > 400 or not _PLAIN.fullmatch(token):
        return None
    try:
        return float(token) * factor
    except ValueError:
        return None


def _infinity(token: str) -> float:
    return float("-inf") if token.startswith("-") else float("inf")
