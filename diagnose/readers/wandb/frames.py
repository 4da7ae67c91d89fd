"""The framing of a `.wandb` file: blocks, chunks and checksums become whole records.

A LevelDB log with two changes: a header of 7 bytes, and a plain CRC-32 (zlib's) over type byte and data. Blocks are 32768
bytes, a chunk never crosses one, fewer than 7 bytes left in a block are padding. The file is read in windows of whole
blocks, so memory does not grow with it. Nothing here knows what a record means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

from diagnose.model import Problem

MAGIC = b":W&B" + struct.pack("<H", 0xBEE1)  # then one byte: version 0 (wandb/sdk/internal/datastore.py, core/pkg/leveldb)
HEADER = 7
BLOCK = 32768
_WINDOW = 256 * BLOCK  # 8 MiB, whole blocks
_PROBE_BLOCKS = 64  # looked at with both origins when something is odd: 2 MiB
_PROBES = 4  # oddities that are worth a probe; more are damage
_SHOWN = 20  # places of damage that are named; the others are summed up
_CHUNK = struct.Struct("<IHB")  # crc, length, type
_SEEDS = tuple(crc32(bytes([kind])) for kind in range(5))
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class OtherOrigin(Exception):
    """The blocks of this file start after the header, as Go cores up to 0.17.5 wrote them."""


@dataclass(slots=True)
class Damage:
    """What could not be read, by place."""

    name: str
    spans: list[list[int]] = field(default_factory=list)  # start, end of the skipped stretch, records lost for sure
    reasons: list[str] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    zeros: list[int] | None = None  # start, end of a stretch of zeros that may reach the end

    def skip(self, start: int, end: int, why: str, records: int = 0) -> None:
        """A stretch that is lost; one that touches the last one joins it."""
        if self.spans and start <= self.spans[-1][1]:
            self.spans[-1][1] = max(end, self.spans[-1][1])
            self.spans[-1][2] += records
        else:
            self.spans.append([start, end, records])
            self.reasons.append(why)

    def zero(self, start: int, end: int) -> None:
        """A stretch of zeros."""
        if self.zeros is not None and start <= self.zeros[1] + HEADER:
            self.zeros[1] = end
            return
        self.close_zeros(at_end=False)
        self.zeros = [start, end]

    def close_zeros(self, *, at_end: bool) -> None:
        """Zeros at the end cost nothing; zeros before data stand where records were."""
        if self.zeros is None:
            return
        (start, end), self.zeros = self.zeros, None
        if at_end:
            said = f"{end - start} zero bytes at the end, as a preallocated file has; nothing is lost"
            self.notes.append(Problem(f"{self.name}@{start}", said))
        else:
            self.skip(start, end, "zeros instead of records")

    def problems(self) -> tuple[Problem, ...]:
        """One problem a place, in order, and one for all beyond the first twenty."""
        out = []
        for (start, end, records), why in zip(self.spans[:_SHOWN], self.reasons, strict=False):
            lost = f", with them {records} unfinished record{'s' * (records != 1)}" if records else ""
            out.append(Problem(f"{self.name}@{start}", f"{why}; {end - start} bytes were skipped{lost}"))
        rest = self.spans[_SHOWN:]
        if rest:
            size = sum(end - start for start, end, _ in rest)
            out.append(Problem(f"{self.name}@{rest[0][0]}", f"damaged at {len(rest)} more places; {size} bytes were skipped there"))
        return (*out, *self.notes)


def _odd(window: bytes, pos: int, end: int) -> str:
    """Why the chunk at `pos` can't be used, or nothing when it is sound."""
    crc, length, kind = _CHUNK.unpack_from(window, pos)
    if not crc and not length and not kind:
        return "zero"
    if not FULL <= kind <= LAST:
        return f"a chunk of unknown type {kind}"
    stop = pos + HEADER + length
    if stop > end:
        return "long"
    return "" if crc32(window[pos + HEADER : stop], _SEEDS[kind]) == crc else "a wrong checksum"


def _sound_bytes(file: BinaryIO, origin: int, first: int) -> int:
    """Bytes in sound chunks when blocks begin at `origin`, over some blocks from number `first` on."""
    file.seek(origin + first * BLOCK)
    window = file.read(_PROBE_BLOCKS * BLOCK)
    total = 0
    for block in range(0, len(window), BLOCK):
        end = min(block + BLOCK, len(window))
        pos = block + (HEADER - origin if first == 0 and block == 0 else 0)
        while end - pos >= HEADER and not _odd(window, pos, end):
            size = HEADER + int(_CHUNK.unpack_from(window, pos)[1])
            total += size
            pos += size
    return total


def _starts_after_header(path: Path, place: int) -> bool:
    with path.open("rb") as file:
        first = max(0, place // BLOCK - 1)
        return _sound_bytes(file, HEADER, first) > _sound_bytes(file, 0, first)


@dataclass(slots=True)
class _Pieces:
    """A record that is being put together from its chunks."""

    parts: list[bytes] = field(default_factory=list)
    start: int = 0
    damage: Damage = field(default_factory=lambda: Damage(""))

    def take(self, kind: int, data: bytes, place: int) -> bytes | None:
        """The whole record once its last chunk is there."""
        if kind in (FULL, FIRST):
            if self.parts:
                self.drop(place, "a record without its end")
            if kind == FULL:
                return data
            self.parts, self.start = [data], place
        elif not self.parts:  # after a skip: the rest of a record whose beginning is lost
            self.damage.skip(place, place + HEADER + len(data), "a record without its beginning")
        else:
            self.parts.append(data)
            if kind == LAST:
                whole, self.parts = b"".join(self.parts), []
                return whole
        return None

    def drop(self, place: int, why: str) -> None:
        """The unfinished record is lost."""
        if self.parts:
            self.damage.skip(self.start, place, why, 1)
            self.parts = []


def records(path: Path, origin: int, damage: Damage) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of each whole record in order, from blocks that start at `origin`; what is odd goes to `damage`.

    After a damaged chunk the rest of its block can't be trusted: reading goes on at the next block with the first record
    that begins there. With origin 0, the first oddities make a probe of the other origin, which may end in `OtherOrigin`.
    """
    pieces = _Pieces(damage=damage)
    probes = _PROBES if origin == 0 else 0
    with path.open("rb") as file:
        file.seek(origin)
        base, pos = origin, HEADER - origin
        while window := file.read(_WINDOW):
            size = len(window)
            for block in range(0, size, BLOCK):
                end = min(block + BLOCK, size)
                pos = max(pos, block)
                while end - pos >= HEADER:
                    crc, length, kind = _CHUNK.unpack_from(window, pos)
                    stop = pos + HEADER + length
                    data = window[pos + HEADER : stop]
                    if not FULL <= kind <= LAST or stop > end or crc32(data, _SEEDS[kind]) != crc:
                        if probes and _starts_after_header(path, base + pos):
                            raise OtherOrigin
                        probes = max(0, probes - 1)
                        _step_over(window, base, (pos, end), pieces, at_end=end < block + BLOCK)
                        pos = end
                        break
                    if damage.zeros is not None:
                        damage.close_zeros(at_end=False)
                    whole = data if kind == FULL and not pieces.parts else pieces.take(kind, data, base + pos)
                    if whole is not None:
                        yield (base + pos if kind == FULL else pieces.start), whole
                    pos = stop
                else:
                    _tail(window, base, (pos, end), pieces, at_end=end < block + BLOCK)
            base, pos = base + size, 0
    _finish(base, pieces)


def _step_over(window: bytes, base: int, span: tuple[int, int], pieces: _Pieces, *, at_end: bool) -> None:
    """The rest of a block is skipped: zeros, a cut at the end of the file, or damage."""
    pos, end = span
    why = _odd(window, pos, end)
    if why == "zero":
        if pieces.parts:
            pieces.drop(base + pos, "a record without its end")
        rest = window[pos:end]
        if rest.count(0) == len(rest):
            pieces.damage.zero(base + pos, base + end)
        else:
            pieces.damage.skip(base + pos, base + end, "an empty chunk header")
    elif why == "long" and at_end:
        size = base + end - (pieces.start if pieces.parts else base + pos)
        pieces.damage.notes.append(_cut(pieces, base + pos, size))
        pieces.parts = []
    else:
        begun = len(pieces.parts) > 0
        said = "a chunk longer than its block" if why == "long" else why
        pieces.damage.skip(pieces.start if begun else base + pos, base + end, said, int(begun))
        pieces.parts = []


def _tail(window: bytes, base: int, span: tuple[int, int], pieces: _Pieces, *, at_end: bool) -> None:
    """Fewer than 7 bytes: padding inside the file, a cut chunk header at its end."""
    pos, end = span
    left = window[pos:end]
    if at_end and left.strip(b"\0"):
        pieces.damage.notes.append(_cut(pieces, base + pos, base + end - (pieces.start if pieces.parts else base + pos)))
        pieces.parts = []
    elif at_end and left:
        pieces.damage.zero(base + pos, base + end)


def _cut(pieces: _Pieces, place: int, size: int) -> Problem:
    where = pieces.start if pieces.parts else place
    said = f"the file ends inside a record; its {size} bytes are lost, and what was not written yet"
    return Problem(f"{pieces.damage.name}@{where}", said)


def _finish(end: int, pieces: _Pieces) -> None:
    pieces.damage.close_zeros(at_end=True)
    if pieces.parts:
        pieces.damage.notes.append(_cut(pieces, end, end - pieces.start))
