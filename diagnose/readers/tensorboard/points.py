"""From checked records to points: all records of one length and one pattern are decoded at once, the others one by one.

The pattern is the first record of a length, parsed. Another one matches when all bytes outside its time, step, tags and
numbers are the same and its varints are as long; then what stands there is read as columns. Nothing is assumed of a record
that was not compared: what fits no pattern is parsed alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from diagnose.model import Floats, Steps
from diagnose.readers.tensorboard import wire
from diagnose.readers.tensorboard.crc import Bytes, Places
from diagnose.readers.tensorboard.frames import Window
from diagnose.readers.tensorboard.numbers import integers, numbers
from diagnose.readers.tensorboard.wire import Parsed

_PATTERNS = 16  # of one length in one window; a writer has two or three, and each costs a comparison of all
_FEW = 6  # records; parsing so many one by one is as fast as comparing columns
_WIDE = 512  # bytes; longer records hold histograms, images or graphs
_SAME_TAG = 4  # comparisons of whole columns before tags are looked up one by one

Record = tuple[int, bytes, Parsed]  # place in the file, payload, its parts
_DOUBLE = struct.Struct("<d").unpack_from
_FLOAT = struct.Struct("<f").unpack_from


class Points:
    """The points of one file under the tags as logged, in the order of the file."""

    def __init__(self) -> None:
        self.tags: dict[bytes, int] = {}
        self._columns: list[tuple[NDArray[np.uint32], Steps, Floats, Floats]] = []
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.uint32], Steps, Floats, Floats]] = []
        self._rows: list[tuple[int, int, int, float, float]] = []

    def add(self, place: int, tag: bytes, step: int, time: float, value: float) -> None:
        """One point; `place` orders it among those of its window."""
        self._rows.append((place, self.tags.setdefault(tag, len(self.tags)), step, time, value))

    def add_all(self, places: Places, tags: NDArray[np.uint32], steps: Steps, times: Floats, values: Floats) -> None:
        """Many points at once."""
        self._parts.append((places, tags, steps, times, values))

    def end_window(self) -> None:
        """Brings the points of one window into their order."""
        if self._rows:
            place, tag, step, time, value = zip(*self._rows, strict=True)
            ids = np.array(tag, np.uint32)
            self._parts.append((np.array(place, np.int64), ids, np.array(step, np.int64), np.array(time), np.array(value, np.float64)))
            self._rows = []
        if not self._parts:
            return
        places, tags, steps, times, values = (np.concatenate(c) for c in zip(*self._parts, strict=True))
        self._parts = []
        order = np.argsort(places, kind="stable")
        self._columns.append((tags[order], steps[order], times[order], values[order]))

    @property
    def first_time(self) -> float:
        """The wall time of the first point, NaN without one."""
        return float(self._columns[0][2][0]) if self._columns else float("nan")

    def series(self) -> Iterator[tuple[bytes, Steps, Floats, Floats]]:
        """Tag, steps, times and values, in the order in which the tags first came; arrays are read-only."""
        if not self._columns:
            return
        tags, steps, times, values = (np.concatenate(c) for c in zip(*self._columns, strict=True))
        self._columns = [(tags, steps, times, values)]
        small = tags.astype(np.uint16) if len(self.tags) <= 1 << 16 else tags  # numpy sorts 16 bits by radix
        order = np.argsort(small, kind="stable")
        steps, times, values = steps[order], times[order], values[order]
        for column in (steps, times, values):
            column.flags.writeable = False
        ends = np.cumsum(np.bincount(tags, minlength=len(self.tags))).tolist()
        begins = [0, *ends[:-1]]
        found = [(int(order[b]), name, b, e) for name, b, e in zip(self.tags, begins, ends, strict=True) if e > b]
        for _, name, begin, end in sorted(found):
            yield name, steps[begin:end], times[begin:end], values[begin:end]


def decode(window: Window, points: Points) -> Iterator[Record]:
    """Adds the numbers of a window and gives every record that holds anything else, and one of each pattern (for its metadata)."""
    order = np.argsort(window.lengths, kind="stable")
    sizes = window.lengths[order]
    edges = np.flatnonzero(np.diff(sizes)) + 1
    for rows in np.split(order, edges):
        size = int(window.lengths[rows[0]]) if len(rows) else 0
        if not size:
            continue  # an empty event says nothing
        if size > _WIDE or len(rows) < _FEW:
            yield from _one_by_one(window, window.starts[rows], size, points)
        else:
            yield from _by_pattern(window, window.starts[rows], size, points)
    points.end_window()


def _one_by_one(window: Window, starts: Places, size: int, points: Points) -> Iterator[Record]:
    for start in starts.tolist():
        record = _parse(window, start, size)
        _add(record, points)
        if not record[2].plain or record[2].metadata:
            yield record


def _parse(window: Window, start: int, size: int) -> Record:
    payload = window.data[start : start + size].tobytes()
    return window.base + start, payload, wire.event(payload)


def _add(record: Record, points: Points) -> None:
    place, payload, parsed = record
    step, time = step_of(payload, parsed), time_of(payload, parsed)
    for k, slot in enumerate(parsed.slots):
        points.add(place + k, payload[slice(*slot.tag)], step, time, _number(payload, slot))


def step_of(payload: bytes, parsed: Parsed) -> int:
    """The step of an event; 0 when it isn't there."""
    return wire.signed(wire.varint(payload, parsed.step[0])[0]) if parsed.step[1] else 0


def time_of(payload: bytes, parsed: Parsed) -> float:
    """The wall time of an event in seconds; 0 when it isn't there."""
    return float(_DOUBLE(payload, parsed.wall)[0]) if parsed.wall >= 0 else 0.0


def _number(payload: bytes, slot: wire.Slot) -> float:
    if slot.code == "<f4":
        return float(_FLOAT(payload, slot.at[0])[0])
    return float(numbers(slot.code, np.frombuffer(payload[slice(*slot.at)], np.uint8).reshape(1, -1))[0])


def _by_pattern(window: Window, starts: Places, size: int, points: Points) -> Iterator[Record]:
    shifted: Bytes = np.lib.stride_tricks.as_strided(window.data, (len(window.data) - size + 1, size), (1, 1), writeable=False)
    rows = shifted[starts]
    for _ in range(_PATTERNS):
        if len(starts) < _FEW:
            break
        record = _parse(window, int(starts[0]), size)
        parsed = record[2]
        yield record
        if not parsed.plain:
            _add(record, points)
            rows, starts = rows[1:], starts[1:]
            continue
        same = _matches(rows, parsed)
        some = rows if same.all() else rows[same]
        _columns(window.base + starts[same], some, parsed, points)
        rows, starts = rows[~same], starts[~same]
    yield from _one_by_one(window, starts, size, points)


def _matches(rows: Bytes, parsed: Parsed) -> NDArray[np.bool_]:
    """Which rows differ from the first one only where a pattern may."""
    first = rows[0]
    mask = np.full(len(first), 255, np.uint8)
    if parsed.wall >= 0:
        mask[parsed.wall : parsed.wall + 8] = 0
    mask[slice(*parsed.step)] = 128  # of a varint, whether it goes on
    for slot in parsed.slots:
        mask[slice(*slot.tag)] = 0
        mask[slice(*slot.at)] = 128 if slot.code.startswith("varint") else 0
    fixed = np.flatnonzero(mask)
    same = np.ones(len(rows), bool)
    for k in fixed.tolist():
        column = rows[:, k]
        same &= (column == first[k]) if mask[k] == 255 else (column & 128) == (first[k] & 128)
    return same


def _columns(places: Places, rows: Bytes, parsed: Parsed, points: Points) -> None:
    count = len(rows)
    wall = parsed.wall
    times = numbers("<f8", rows[:, wall : wall + 8]) if wall >= 0 else np.zeros(count)
    steps = integers(rows[:, slice(*parsed.step)]).view(np.int64)
    for k, slot in enumerate(parsed.slots):
        values = numbers(slot.code, rows[:, slice(*slot.at)])
        points.add_all(places + k, _tag_ids(rows[:, slice(*slot.tag)], points.tags), steps, times, values)


def _tag_ids(rows: Bytes, tags: dict[bytes, int]) -> NDArray[np.uint32]:
    """The number of each row's tag; new tags get the next number."""
    ids = np.zeros(len(rows), np.uint32)
    if not rows.shape[1]:
        ids[:] = tags.setdefault(b"", len(tags))
        return ids
    left = np.arange(len(rows))
    for _ in range(_SAME_TAG):
        if not len(left):
            return ids
        part = rows[left] if len(left) < len(rows) else rows
        same = (part == part[0]).all(axis=1)
        ids[left[same]] = tags.setdefault(part[0].tobytes(), len(tags))
        left = left[~same]
    names = np.ascontiguousarray(rows[left]).view(f"V{rows.shape[1]}").ravel().tolist()
    for name in set(names).difference(tags):
        tags[name] = len(tags)
    ids[left] = np.fromiter(map(tags.__getitem__, names), np.uint32, len(names))
    return ids
