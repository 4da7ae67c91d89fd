"""The report as JSON, schema `diagnose.report/1`: strict, complete, and read back exactly.

JSON has no NaN and no infinities. Where a number is expected they are the strings "NaN", "Infinity" and "-Infinity"; where
any value may stand (settings, changes, facts of the run) they are {"float": "NaN"}, since there a string is a string.
`worst` and `readable` are derived: written for readers of the JSON, ignored on loading. `report_v1.schema.json` is the
published schema.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from diagnose import model
from diagnose.errors import NothingReadable
from diagnose.model import Report
from diagnose.outline import ranked
from diagnose.parts import Renderer

SCHEMA = "diagnose.report/1"
SCHEMA_MANY = "diagnose.reports/1"
WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dumps(report: Report) -> str:
    """The report as strict JSON text."""
    return _text(to_plain(report))


def render(report: Report, *, colour: bool = False, verbose: bool = False) -> str:
    """The report as JSON text; always whole, always without colour."""
    return dumps(report)


def render_many(reports: Sequence[Report]) -> str:
    """Several reports in one document, worst first."""
    return _text({"schema": SCHEMA_MANY, "runs": [to_plain(r) for r in ranked(reports)]})


def load(text: str, *, where: str = "") -> Report:
    """The report that `render` wrote, equal in every field; NothingReadable when the text is something else."""
    found = _parsed(text, where)
    if found.get("schema") != SCHEMA:
        raise NothingReadable(
            f"is JSON, but not a saved report: its schema is {found.get('schema')!r}.", where=where, hint=f"This version reads {SCHEMA}."
        )
    return _report(found, where)


def load_many(text: str, *, where: str = "") -> list[Report]:
    """The reports of a document that `render` or `render_many` wrote."""
    found = _parsed(text, where)
    if found.get("schema") != SCHEMA_MANY:
        return [load(text, where=where)]
    runs = found.get("runs")
    return [_report(r, where) for r in runs if isinstance(r, dict)] if isinstance(runs, list) else []


def looks_like_report(path: Path) -> bool:
    """Whether a file begins like a saved report; never raises, reads at most 4 KiB."""
    try:
        with path.open("rb") as file:
            head = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    except OSError:
        return False
    return head.startswith(b"{") and b'"diagnose.report' in head


def to_plain(report: Report) -> dict[str, Any]:
    """The report as dicts, lists, strings, finite numbers, booleans and None."""
    plain: dict[str, Any] = _encode(report, Report)
    head = {"schema": plain.pop("schema"), "made_by": plain.pop("made_by"), "verdict": plain.pop("verdict")}
    return {**head, "worst": report.worst.value if report.worst else None, "readable": report.readable, **plain}


def _text(plain: Any) -> str:
    return json.dumps(plain, allow_nan=False, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace").decode() + "\n"


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise NothingReadable(f"is not a saved report ({error}).", where=where) from None
    if not isinstance(found, dict):
        raise NothingReadable("is JSON, but not a saved report.", where=where)
    return found


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not strict JSON")


def _report(found: Mapping[str, Any], where: str) -> Report:
    try:
        return typing.cast(Report, _decode(found, Report))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NothingReadable(f"is a damaged report ({type(error).__name__}: {error}).", where=where) from None


# -- encoding and decoding, driven by the dataclasses' own types


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, vars(model))


def _encode(value: Any, kind: Any) -> Any:  # noqa: PLR0911 - one return a kind of value
    if value is None:
        return None
    if kind is Any:
        return _encode_any(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        hints = _hints(value.__class__)
        return {f.name: _encode(getattr(value, f.name), hints[f.name]) for f in fields(value)}
    if isinstance(value, np.ndarray):
        return [_number(v) for v in value.tolist()]
    if isinstance(value, Mapping):
        inner = typing.get_args(kind)[1]
        return {str(k): _encode(v, inner) for k, v in value.items()}
    if isinstance(value, tuple):
        inner = typing.get_args(kind)[0]
        return [_encode(v, inner) for v in value]
    if isinstance(value, (float, np.floating)):
        return _number(float(value))
    return _encode_any(value)


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _encode_any(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": _number(value)}
    if isinstance(value, Mapping):
        return {str(k): _encode_any(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, np.ndarray)):
        return [_encode_any(v) for v in value]
    return str(value)


def _decode(value: Any, kind: Any) -> Any:  # noqa: PLR0911 - one return a kind of type
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _decode(value, next(i for i in inner if i is not type(None)))
    if kind is Any:
        return _decode_any(value)
    if origin is tuple:
        return tuple(_decode(v, inner[0]) for v in _listed(value))
    if origin is not None and issubclass(origin, np.ndarray):
        return _array(_listed(value), inner)
    if origin is not None and issubclass(origin, Mapping):
        return model.Frozen({str(k): _decode(v, inner[1]) for k, v in value.items()})
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode_dataclass(value, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is float:
        return WORDS[value] if isinstance(value, str) else float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _decode_dataclass(value: Any, kind: Any) -> Any:
    hints = _hints(kind)
    known = {f.name: _decode(value[f.name], hints[f.name]) for f in fields(kind) if f.name in value}
    absent = [f.name for f in fields(kind) if f.name not in known and f.default is MISSING and f.default_factory is MISSING]
    if absent:
        raise KeyError(f"{kind.__name__} without {', '.join(absent)}")
    return kind(**known)


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return value


def _array(values: list[Any], inner: tuple[Any, ...]) -> Any:
    whole = "int64" in str(inner)
    made = np.array([WORDS[v] if isinstance(v, str) else v for v in values], dtype=np.int64 if whole else np.float64)
    made.flags.writeable = False
    return made


def _decode_any(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"float"} and isinstance(value["float"], str) and value["float"] in WORDS:
            return WORDS[value["float"]]
        return {k: _decode_any(v) for k, v in value.items()}
    return [_decode_any(v) for v in value] if isinstance(value, list) else value


RENDERER = Renderer("json", "JSON of the schema diagnose.report/1, for programs", ".json", render, render_many=render_many)
