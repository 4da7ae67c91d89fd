"""Framing of an event file: `length u64 | its masked CRC-32C | payload | its masked CRC-32C`, back to back, no header.

A file is read in windows, so that memory does not grow with it. In a whole window the lengths are walked and all checksums
are compared at once. Only where that fails, every place that could be a record is found by its length's checksum (32 bits:
a false hit is one in 4 billion), and the walk goes from one to the next: a wrong payload costs its record, a wrong length
costs the bytes up to the next record. Every byte that is not read is said with its place. Time is linear in any bytes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedIOBase
from struct import Struct

import numpy as np

from diagnose.model import Problem
from diagnose.readers.tensorboard.crc import ZERO_LENGTH, Bytes, Places, all_agree, checksum, masked, of_eight, words

WINDOW = 8 << 20  # bytes; larger ones are not faster (the decoding of one fits the processor's cache)
FRAME = 16  # bytes around a payload
HEADER = 12
_LONGEST = 1 << 31  # bytes; a protobuf message can't be larger
_SAID = 20  # problems of one kind that are said one by one
_LENGTH = Struct("<Q").unpack_from
_WORD = Struct("<I").unpack_from


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The payloads of whole, checked records in a buffer that the next window overwrites; `base` is its place in the file."""

    data: Bytes
    base: int
    starts: Places
    lengths: Places


@dataclass(slots=True)
class Damage:
    """What could not be read of a file."""

    name: str
    problems: list[Problem] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    bytes_unread: int = 0

    def say(self, at: int, kind: str, what: str, unread: int = 0) -> None:
        """Notes one damaged place; many of a kind are counted only."""
        self.bytes_unread += unread
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if self.counts[kind] <= _SAID:
            self.problems.append(Problem(f"{self.name}@{at}", what))

    def all(self) -> list[Problem]:
        """The problems, with a last line for those that were only counted."""
        more = [Problem(self.name, f"{n - _SAID} more places with {kind}") for kind, n in self.counts.items() if n > _SAID]
        return self.problems + more


def headers(data: Bytes) -> tuple[list[int], list[int]]:
    """Every place whose next twelve bytes are a length and its checksum, and the lengths there."""
    if len(data) < HEADER or not data.any():
        return [], []
    word = words(data)
    count = len(data) - HEADER + 1
    at = np.flatnonzero(word[4 : 4 + count] == 0)  # a length below 4 GiB
    stored = word[at + 8]
    keep = (word[at] != 0) | (stored == ZERO_LENGTH)
    at, stored = at[keep], stored[keep]
    keep = of_eight(data, at) == stored
    at = at[keep]
    lengths = word[at].astype(np.int64)
    keep = lengths < _LONGEST
    return at[keep].tolist(), lengths[keep].tolist()


class Frames:
    """All readable records of a file, window by window."""

    def __init__(self, stream: BufferedIOBase, size: int, damage: Damage) -> None:
        self._stream, self._size, self._damage = stream, size, damage
        self._bytes = bytearray(max(min(WINDOW, size), FRAME))
        self._data: Bytes = np.frombuffer(self._bytes, np.uint8)  # the same memory
        self._base = self._filled = 0
        self._final = False
        self._lost: int | None = None  # where in the file reading stopped; None while records follow each other
        self._cut = 0  # payload length that the record at `_lost` would have
        self._effort = 0  # bytes of wrong payloads summed so far: bounded, or headers made to overlap would cost n^2
        self._jump: int | None = None  # where to go on behind a record larger than the window

    def __iter__(self) -> Iterator[Window]:
        while not self._final or self._filled:
            self._fill()
            first, sizes, used = self._walk()
            if not all_agree(self._data, first, sizes):
                first, sizes, used = first[:0], sizes[:0], 0
            if used < self._filled and not (self._incomplete(used) and used):
                more, larger, used = self._search(used)
                first = np.concatenate([first, np.array(more, np.int64)])
                sizes = np.concatenate([sizes, np.array(larger, np.int64)])
            if len(first):
                yield Window(self._data, self._base, first + HEADER, sizes)
            self._forward(used)
        self._finish()

    def _fill(self) -> None:
        view = memoryview(self._bytes)
        while self._filled < len(view) and self._base + self._filled < self._size:
            got = self._stream.readinto(view[self._filled :])
            if not got:
                self._size = self._base + self._filled  # it became shorter while it was read
            self._filled += got or 0
        self._filled = min(self._filled, self._size - self._base)
        self._final = self._base + self._filled >= self._size

    def _forward(self, used: int) -> None:
        if self._jump is not None:
            self._base, self._filled, self._final = self._jump, 0, self._jump >= self._size
            self._stream.seek(self._jump)
            self._jump = None
            return
        rest = self._filled - used
        self._data[:rest] = self._data[used : self._filled].copy()
        self._base += used
        self._filled = rest

    def _walk(self) -> tuple[Places, Places, int]:
        """Follows the lengths, checking nothing: starts, lengths, and where the last whole record ends."""
        starts: list[int] = []
        at, end, data, add, length_at = 0, self._filled, self._bytes, starts.append, _LENGTH
        last = end - FRAME if self._lost is None else -1
        while at <= last:
            add(at)
            at += length_at(data, at)[0] + FRAME
        if at > end:
            at = starts.pop()
        edges = np.array([*starts, at], np.int64)
        return edges[:-1], np.diff(edges) - FRAME, at

    def _incomplete(self, at: int) -> bool:
        """Whether a record begins here that more of the file will complete in one window."""
        if self._final:
            return False
        if self._filled - at < HEADER:
            return True
        length = self._length(at)
        return length is not None and length + FRAME <= len(self._data) and self._base + at + FRAME + length <= self._size

    def _length(self, at: int) -> int | None:
        """The length in the header at this place of the buffer, if its checksum is right."""
        head = self._data[at : at + HEADER].tobytes()
        good = len(head) == HEADER and masked(checksum(head[:8])) == _WORD(head, 8)[0]
        return int(_LENGTH(head, 0)[0]) if good else None

    def _lose(self, at: int, cut: int = 0) -> None:
        if self._lost is None:
            self._lost, self._cut = self._base + at, cut

    def _found(self, at: int) -> None:
        if self._lost is not None:
            count = self._base + at - self._lost
            self._damage.say(self._lost, "unreadable bytes", f"{count} bytes are no records; reading goes on behind them", count)
            self._lost = None

    def _search(self, at: int) -> tuple[list[int], list[int], int]:
        """Record by record from place to place where one could begin; gives the good ones and how far it came."""
        found, sizes = headers(self._data[at : self._filled])
        places = [at + p for p in found]
        starts: list[int] = []
        lengths: list[int] = []
        k, end = 0, self._filled
        while at < end:
            k = bisect_left(places, at, k)
            if k == len(places) or places[k] > at:
                if end - at < HEADER and not self._final:
                    return starts, lengths, at  # a header may stand across the window's end
                self._lose(at)
                at = places[k] if k < len(places) else end if self._final else max(at, end - HEADER + 1)
                continue
            length = sizes[k]
            after = at + FRAME + length
            if self._base + after > self._size:
                self._lose(at, cut=length)
                at += 1
            elif length + FRAME > len(self._data):
                if self._over(at, after):
                    return starts, lengths, at
                at += 1
            elif after > end or (not self._final and after + HEADER > end and at > 0):
                return starts, lengths, at
            elif self._agrees(at, length):
                self._found(at)
                starts.append(at)
                lengths.append(length)
                at = after
            else:
                self._effort += length
                at = self._skip(at, after, self._follows(places, after) or self._effort > 2 * self._size + WINDOW)
        return starts, lengths, at

    def _agrees(self, at: int, length: int) -> bool:
        (stored,) = _WORD(self._bytes, at + HEADER + length)
        return bool(masked(checksum(self._data[at + HEADER : at + HEADER + length])) == stored)

    def _follows(self, places: list[int], after: int) -> bool:
        """Whether a record or the file's end stands behind a wrong payload, so that its frame is whole."""
        k = bisect_left(places, after)
        return (k < len(places) and places[k] == after) or after == self._filled or self._filled - after < HEADER

    def _skip(self, at: int, after: int, whole: bool) -> int:
        """Leaves out one record with a wrong payload; if its frame is broken too, the next one may begin inside it."""
        if not whole:
            self._lose(at)
            return at + 1
        self._found(at)
        what = f"a record of {after - at - FRAME} bytes has a wrong checksum and is left out"
        self._damage.say(self._base + at, "wrong checksums", what, after - at)
        return after

    def _over(self, at: int, after: int) -> bool:
        """Goes over a record that is larger than a window, if another one or the end stands behind it."""
        target = self._base + after
        self._stream.seek(target)
        head = self._stream.read(HEADER)
        self._stream.seek(self._base + self._filled)
        good = len(head) == HEADER and masked(checksum(head[:8])) == _WORD(head, 8)[0]
        if not good and target + len(head) < self._size:
            self._lose(at)
            return False
        self._found(at)
        self._damage.say(self._base + at, "large records", f"a record of {after - at - FRAME} bytes is not looked into", after - at)
        self._jump = target
        return True

    def _finish(self) -> None:
        if self._lost is None:
            return
        count = self._size - self._lost
        if self._only_zeros(self._lost):
            what = f"ends in {count} zero bytes (padding)"
        elif self._cut:
            what = f"the file ends inside a record of {self._cut} bytes; {count} bytes unread"
        elif count < HEADER:
            what = f"the file ends inside a record's header; {count} bytes unread"
        else:
            what = f"{count} bytes up to the end are no records"
        self._damage.say(self._lost, "an end that can't be read", what, count)

    def _only_zeros(self, at: int) -> bool:
        self._stream.seek(at)
        while chunk := self._stream.read(min(1 << 20, max(self._size - at, 0))):
            at += len(chunk)
            if chunk.count(0) != len(chunk):
                return False
        return True
