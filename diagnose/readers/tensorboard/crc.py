"""CRC-32C as TensorBoard's records carry it: masked, after the length and after the payload.

All records of a window are checked with *one* pass over its bytes. CRC is linear: there is one word `RESET` such that the
checksum of any message followed by (its own checksum xor RESET) is 0, the state in which the next message starts. With every
stored checksum so replaced, the window's checksum is 0 exactly when all agree; one wrong record always shows, several
can hide each other with probability 2^-32. Who wants to know which one is wrong asks for each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]

POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed (RFC 3720, appendix B.4)
MASK_DELTA = 0xA282EAD8  # added by every TFRecord writer, so that checksums of data that hold checksums stay useful
_ONES = 0xFFFFFFFF
_LONG = 4096  # bytes; without the package, longer records are summed one by one: a numpy call a byte costs more than they do


def _tables() -> NDArray[np.uint32]:
    """Row k, entry b: what the byte b does to the checksum when k more bytes follow it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(POLYNOMIAL), first >> 1).astype(np.uint32)
    rows = [first]
    for _ in range(7):
        rows.append((first[rows[-1] & 255] ^ (rows[-1] >> 8)).astype(np.uint32))
    return np.array(rows)


TABLES = _tables()


def _slow(data: bytes | memoryview | Bytes) -> int:
    table = _slow_table
    state = _ONES
    for byte in bytes(data):
        state = table[(state ^ byte) & 255] ^ (state >> 8)
    return state ^ _ONES


_slow_table: list[int] = TABLES[0].tolist()

_native: Callable[..., int] | None
try:
    from crc32c import crc32c as _native  # the processor's own instruction
except ImportError:  # a platform without a wheel: slower, same answers
    _native = None


def checksum(data: bytes | memoryview | Bytes) -> int:
    """CRC-32C of some bytes."""
    return _native(data) if _native is not None else _slow(data)


def masked(crc: int) -> int:
    """The checksum as it is stored."""
    return (((crc >> 15) | (crc << 17)) + MASK_DELTA) & _ONES


def masked_array(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The same for many."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(MASK_DELTA)


def _unmasked_array(stored: NDArray[np.uint32]) -> NDArray[np.uint32]:
    rotated = stored - np.uint32(MASK_DELTA)
    return (rotated >> np.uint32(17)) | (rotated << np.uint32(15))


def _reset() -> int:
    """What must stand behind an empty message for its checksum to be 0: four bytes back through the table from all ones."""
    state = _ONES
    top = {int(entry) >> 24: index for index, entry in enumerate(_slow_table)}
    for _ in range(4):
        index = top[state >> 24]
        state = (((state ^ _slow_table[index]) << 8) | index) & _ONES
    return state ^ _ONES


RESET = _reset()
ZERO_LENGTH = masked(_slow(bytes(8)))  # of an empty record, 0x07980329; eight zeros are followed by four more in padding


def words(data: Bytes) -> NDArray[np.uint32]:
    """The little-endian word at every byte offset, as a view."""
    return np.ndarray((max(len(data) - 3, 0),), "<u4", data, 0, (1,))


def of_eight(data: Bytes, at: Places) -> NDArray[np.uint32]:
    """The stored form of the checksums of the eight bytes at each place."""
    state = np.zeros(len(at), np.uint32)
    for k in range(8):
        byte = data[at + k] ^ np.uint8(255) if k < 4 else data[at + k]
        state ^= TABLES[7 - k][byte]
    return masked_array(state ^ np.uint32(_ONES))


def all_agree(data: Bytes, starts: Places, lengths: Places) -> bool:
    """Whether both checksums of all records are right; the records follow each other without a gap from `starts[0]` on."""
    if not len(starts):
        return True
    if _native is None:
        return _all_agree_slowly(data, starts, lengths)
    first, end = int(starts[0]), int(starts[-1] + lengths[-1]) + 16
    scratch = data[first:end].copy()
    stored = words(scratch)
    for places in (starts - first + 8, starts - first + 12 + lengths):
        stored[places] = _unmasked_array(stored[places]) ^ np.uint32(RESET)
    return _native(scratch) == 0


def _all_agree_slowly(data: Bytes, starts: Places, lengths: Places) -> bool:
    stored = words(data)
    if not bool(np.all(of_eight(data, starts) == stored[starts + 8])):
        return False
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] <= _LONG]
    at, sizes = starts[order] + 12, lengths[order]
    state = np.full(len(order), _ONES, np.uint32)
    alive = len(order)
    for k in range(int(sizes[0]) if alive else 0):
        alive = int(np.searchsorted(-sizes, -k, side="left"))  # records longer than k bytes stand in front
        part = state[:alive]
        state[:alive] = TABLES[0][(part ^ data[at[:alive] + k]) & np.uint32(255)] ^ (part >> np.uint32(8))
    if not bool(np.all(masked_array(state ^ np.uint32(_ONES)) == stored[at + sizes])):
        return False
    for k in np.flatnonzero(lengths > _LONG).tolist():
        begin, size = int(starts[k]) + 12, int(lengths[k])
        if masked(_slow(data[begin : begin + size])) != int(stored[begin + size]):
            return False
    return True
