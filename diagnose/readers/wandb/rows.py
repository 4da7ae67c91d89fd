"""History rows to columns: item values by name, flat arrays of numbers, nothing that is not a number.

Most rows hold short numeric items only; those are split on the tag of `value_json` and checked to tile the message exactly,
which is four times faster than a decoder of the wire format. All others take the general way, with the same result.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from diagnose.model import Floats, Steps
from diagnose.readers.wandb.wire import as_bytes, fields, message, signed, varint

RESERVED = frozenset({"_step", "_runtime", "_timestamp", "_wandb"})
MAX_NAMES = 100_000  # distinct names kept; wandb.watch on a large model has some thousands
MAX_JSON = 4 << 20  # bytes of one nested value that is parsed; wandb itself warns at 1 MB
_MAX_DEPTH = 64
_VALUE_TAG = b"\x82\x01"  # field 16, length-delimited: HistoryItem.value_json
_SLOW, _DROPPED, _NEW = -1, -2, -3
_SPECIAL = {b'"NaN"': math.nan, b'"Infinity"': math.inf, b'"-Infinity"': -math.inf}  # the server's spelling
_HISTOGRAM_PARTS = frozenset({"_type", "values", "bins"})  # what a core writer makes of one histogram
_SUMMARISED = "gradients/"  # wandb.watch
_FLAGS = {b"true": 1.0, b"false": 0.0}


def plain(text: str) -> str:
    """Text that can be written as UTF-8: lone surrogates of JSON are replaced."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _number(raw: bytes) -> float | None:
    try:
        return float(raw)
    except ValueError:
        return _SPECIAL.get(raw)


def _path(data: bytes) -> list[str]:
    """The name parts of an item: nested_key where present, else key."""
    key, nested = "", []
    for number, value in fields(data):
        if number == 1:
            key = as_bytes(value).decode("utf-8", "replace")
        elif number == 2:
            nested.append(as_bytes(value).decode("utf-8", "replace"))
        else:
            raise ValueError("not a name")
    return nested or [key]


def _is_part(path: list[str]) -> bool:
    return len(path) > 1 and (path[-1] in _HISTOGRAM_PARTS or path[-2] == "packedBins")


class Rows:
    """All history rows of one file."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.counts = array("q")  # numbers per row
        self.record_steps = array("d")  # history.step, NaN where absent
        self.nulls: dict[int, int] = {}  # by column
        self.texts: dict[str, None] = {}  # names of columns with values that are no numbers
        self.unreadable = self.dropped = 0
        self._by_name: dict[str, int] = {}
        self._by_part: dict[bytes, int] = {}
        self._ids, self._values = array("i"), array("d")
        self._flag_ids, self._flag_rows, self._flags = array("i"), array("q"), array("d")
        self._null_at = array("q")  # places in _values
        self._row_ids: list[int] = []
        self._row_values: list[float] = []

    def __len__(self) -> int:
        return len(self.counts)

    def add(self, payload: bytes) -> None:
        """One HistoryRecord; ValueError when it is none, and then nothing of it is kept."""
        if not self._fast(payload):
            self.slow(payload)

    def _commit(self, ids: list[int], values: list[float], step: float) -> None:
        self._ids.fromlist(ids)
        self._values.fromlist(values)
        self.counts.append(len(ids))
        self.record_steps.append(step)

    def _column(self, name: str) -> int:
        column = self._by_name.get(name)
        if column is None:
            if len(self.names) >= MAX_NAMES and name not in RESERVED:
                return _DROPPED
            column = self._by_name[name] = len(self.names)
            self.names.append(plain(name))
        return column

    def _register(self, part: bytes) -> int:
        """The column of an item by the bytes of its name; -1 when the row must go the general way."""
        try:
            path = _path(part)
        except ValueError:
            return _SLOW
        column = _SLOW if _is_part(path) else self._column(".".join(path))
        if column != _DROPPED:
            self._by_part[part] = column
        return column

    def _fast(self, payload: bytes) -> bool:
        """Whether the row was one of short numeric items; each piece must end exactly where its lengths say."""
        parts = payload.split(_VALUE_TAG)
        head, known = parts[0], self._by_part
        ids: list[int] = []
        raws: list[bytes] = []
        dropped, part, end = 0, b"", 0
        try:
            for part in parts[1:]:
                end = part[0] + 1
                whole = head[1]
                if head[0] != 10 or whole > 127 or whole != len(head) + end:
                    return False
                column = known.get(head[2:], _NEW)
                if column < 0:
                    if column == _NEW:
                        column = self._register(head[2:])
                    if column == _SLOW:
                        return False
                if column >= 0:
                    raws.append(part[1:end])
                    ids.append(column)
                else:
                    dropped += 1
                head = part[end:]  # empty where the part is too short, which ends in an IndexError or in the test below
            if len(part) < end:
                return False
            values = list(map(float, raws))
            step = _last_step(head) if head else math.nan
        except (IndexError, ValueError):
            return False
        self.dropped += dropped
        self._commit(ids, values, step)
        return True

    def slow(self, payload: bytes) -> None:
        """The general way: any order, any lengths, nested values, histograms."""
        items: list[tuple[list[str], bytes]] = []
        step = math.nan
        for number, value in fields(payload):
            if number == 1:
                key, nested, raw = "", [], b""
                for inner, part in fields(as_bytes(value)):
                    if inner == 1:
                        key = as_bytes(part).decode("utf-8", "replace")
                    elif inner == 2:
                        nested.append(as_bytes(part).decode("utf-8", "replace"))
                    elif inner == 16:
                        raw = as_bytes(part)
                items.append((nested or [key], raw))
            elif number == 2:
                step = _step(as_bytes(value))
        self.add_items(items, step)

    def add_items(self, items: list[tuple[list[str], bytes]], step: float = math.nan) -> None:
        """A row given as (name parts, value_json)."""
        self._row_ids, self._row_values = [], []
        pieces: dict[str, dict[str, bytes]] = {}
        media = {tuple(path[:-1]) for path, raw in items if path[-1] == "_type" and raw[:1] == b'"'}
        for path, raw in items:
            if media and not _is_part(path) and any(tuple(path[:k]) in media for k in range(1, len(path))):
                self._text(".".join(path))  # height of an image, rows of a table
            elif _is_part(path):
                packed = path[-2] == "packedBins"
                parents, last = (path[:-2], "packedBins." + path[-1]) if packed else (path[:-1], path[-1])
                pieces.setdefault(".".join(parents), {})[last] = raw
            else:
                self._value(".".join(path), raw)
        for stem, parts in pieces.items():
            if parts.get("_type", b"").startswith(b'"'):
                self._typed(stem, _assembled(parts) if stem.startswith(_SUMMARISED) else {})
            else:  # a user's own dict that happens to use these words
                for last, raw in parts.items():
                    self._value(f"{stem}.{last}", raw)
        self._commit(self._row_ids, self._row_values, step)

    def add_object(self, row: dict[str, Any]) -> None:
        """A row given as one JSON object (`wandb-history.jsonl`)."""
        self._row_ids, self._row_values = [], []
        for name, value in row.items():
            self._python(str(name), value)
        self._commit(self._row_ids, self._row_values, math.nan)

    def _put(self, name: str, value: float) -> int:
        column = self._column(name)
        if column == _DROPPED:
            self.dropped += 1
        else:
            self._row_ids.append(column)
            self._row_values.append(value)
        return column

    def _flag(self, name: str, value: float) -> None:
        column = self._column(name)
        if column == _DROPPED:
            self.dropped += 1
            return
        self._flag_ids.append(column)
        self._flag_rows.append(len(self.counts))
        self._flags.append(value)

    def _null(self, name: str) -> None:
        column = self._put(name, math.nan)
        if column != _DROPPED:
            self.nulls[column] = self.nulls.get(column, 0) + 1
            self._null_at.append(len(self._values) + len(self._row_values) - 1)

    def _text(self, name: str) -> None:
        if len(self.texts) < MAX_NAMES:
            self.texts.setdefault(plain(name))

    def _value(self, name: str, raw: bytes) -> None:
        number = _number(raw)
        if number is not None:
            self._put(name, number)
        elif raw == b"null":
            self._null(name)
        elif raw in _FLAGS:
            self._flag(name, _FLAGS[raw])
        elif raw[:1] in (b'"', b"["):
            self._text(name)
        elif raw[:1] == b"{":
            self._nested(name, raw)
        else:
            self.unreadable += 1

    def _nested(self, name: str, raw: bytes) -> None:
        if raw.startswith(b'{"_type"') and not name.startswith(_SUMMARISED):
            self._text(name)
        elif len(raw) > MAX_JSON:
            self.unreadable += 1
        else:
            try:
                value = json.loads(raw, parse_int=float)
            except (ValueError, RecursionError):
                self.unreadable += 1
            else:
                self._python(name, value)

    def _python(self, name: str, value: Any) -> None:
        """A parsed value; nested names are joined with dots, in order."""
        stack = [(name, value, 0)]
        while stack:
            name, value, depth = stack.pop()
            if isinstance(value, bool):
                self._flag(name, float(value))
            elif isinstance(value, (int, float)):
                self._put(name, _as_float(value))
            elif value is None:
                self._null(name)
            elif isinstance(value, dict) and "_type" not in value and depth < _MAX_DEPTH:
                stack += [(f"{name}.{key}", inner, depth + 1) for key, inner in reversed(value.items())]
            elif isinstance(value, dict) and "_type" in value:
                self._typed(name, value)
            elif isinstance(value, str) and (number := _SPECIAL.get(b'"%s"' % value[:16].encode("utf-8", "replace"))) is not None:
                self._put(name, number)
            else:
                self._text(name)

    def _typed(self, name: str, value: dict[str, Any]) -> None:
        """A media value: dropped, but for the gradients' histograms, of which min, max and norm are kept."""
        found = _histogram(value) if name.startswith(_SUMMARISED) else None
        if found is None:
            self._text(name)
            return
        for suffix, number in zip(("min", "max", "norm"), found, strict=True):
            self._put(f"{name}/{suffix}", number)

    def columns(self, *, nulls: bool = True) -> Iterator[tuple[str, Steps, Floats]]:
        """(name, row numbers, values) of each column with numbers, or of true and false only, in order of first sight.

        Without `nulls`, those in columns of numbers are left out; they are NaN otherwise.
        """
        ids = np.frombuffer(self._ids, np.int32) if self._ids else np.empty(0, np.int32)
        values = np.frombuffer(self._values, np.float64) if self._values else np.empty(0)
        rows = np.repeat(np.arange(len(self.counts)), np.frombuffer(self.counts, np.int64)) if self.counts else np.empty(0, np.int64)
        flags = np.frombuffer(self._flag_ids, np.int32) if self._flag_ids else np.empty(0, np.int32)
        flag_rows = np.frombuffer(self._flag_rows, np.int64) if self._flag_rows else np.empty(0, np.int64)
        flag_values = np.frombuffer(self._flags, np.float64) if self._flags else np.empty(0)
        order, flag_order = np.argsort(ids, kind="stable"), np.argsort(flags, kind="stable")
        ends = np.cumsum(np.bincount(ids, minlength=len(self.names))).tolist()
        flag_ends = np.cumsum(np.bincount(flags, minlength=len(self.names))).tolist()
        start = flag_start = 0
        for column, name in enumerate(self.names):
            end, flag_end = ends[column], flag_ends[column]
            if end - start > self.nulls.get(column, 0):
                take = order[start:end]
                if not nulls and column in self.nulls:
                    take = take[~np.isin(take, np.frombuffer(self._null_at, np.int64))]
                yield name, rows[take], values[take]
            elif flag_end > flag_start:
                take = flag_order[flag_start:flag_end]
                yield name, flag_rows[take], flag_values[take]
            start, flag_start = end, flag_end

    def kept_nulls(self) -> dict[str, int]:
        """Nulls that stand in columns of numbers, by name."""
        if not self.nulls:
            return {}
        sizes = np.bincount(np.frombuffer(self._ids, np.int32), minlength=len(self.names))
        return {self.names[c]: n for c, n in self.nulls.items() if sizes[c] > n}

    def mixed_flags(self) -> int:
        """How many true and false stand in columns of numbers; they are left out."""
        if not self._flag_ids:
            return 0
        sizes = np.bincount(np.frombuffer(self._ids, np.int32) if self._ids else np.empty(0, np.int32), minlength=len(self.names))
        for column, n in self.nulls.items():
            sizes[column] -= n
        return int(np.count_nonzero(sizes[np.frombuffer(self._flag_ids, np.int32)]))


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int of more than 308 digits
        return math.inf if value > 0 else -math.inf


def _step(data: bytes) -> float:
    return float(signed(message(data).get(1, 0)))


def _last_step(head: bytes) -> float:
    """HistoryStep {1 num} after the last item: 12 LL 08 varint, or 12 00 for step 0; ValueError for what the general way must take."""
    if head[0] != 18:
        raise ValueError("something else than a step")
    if len(head) > 3 and head[1] == len(head) - 2 and head[2] == 8:
        number, pos = varint(head, 3)
        if pos == len(head):
            return float(signed(number))
    step = math.nan
    for number, value in fields(head):
        if number == 1:
            raise ValueError("an item without a value")
        if number == 2:
            step = _step(as_bytes(value))
    return step


def _assembled(parts: dict[str, bytes]) -> dict[str, Any]:
    """The pieces that a core writer makes of one histogram, as one object again."""
    out: dict[str, Any] = {}
    for last, raw in parts.items():
        if len(raw) > MAX_JSON:
            continue
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if last.startswith("packedBins."):
            out.setdefault("packedBins", {})[last[11:]] = value
        else:
            out[last] = value
    return out


def _histogram(value: dict[str, Any]) -> tuple[float, float, float] | None:
    """Smallest and largest edge, and the Euclidean norm, taking values as spread evenly within each bin; None if it is no histogram.

    The norm is right to some per cent when many bins are filled and too high when nearly all values stand in one bin.
    """
    counts, edges, packed = value.get("values"), value.get("bins"), value.get("packedBins")
    try:
        if value.get("_type") != "histogram" or not isinstance(counts, list):
            return None
        if isinstance(packed, dict):
            bottom, width = float(packed["min"]), float(packed["size"])
            edges = [bottom + width * k for k in range(len(counts) + 1)]
        n = np.array(counts, np.float64)
        e = np.array(edges, np.float64)
    except (TypeError, ValueError, KeyError, OverflowError):
        return None
    if n.ndim != 1 or e.ndim != 1 or len(n) < 1 or len(e) != len(n) + 1:
        return None
    with np.errstate(all="ignore"):
        square = np.sum(n * (e[:-1] ** 2 + e[:-1] * e[1:] + e[1:] ** 2) / 3)  # the mean of x² over each bin
        return float(e[0]), float(e[-1]), float(np.sqrt(square))
