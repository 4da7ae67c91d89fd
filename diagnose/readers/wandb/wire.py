"""Protobuf's wire format, decoded by hand: no generated classes, since field 26 of `Record` changed its type over the years.

Field numbers are those of wandb_internal.proto, wandb 0.12 to 0.31.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_MAX_SHIFT = 63  # a varint has ten bytes at most


def varint(data: bytes, pos: int) -> tuple[int, int]:
    """The number at `pos` and the place after it; ValueError when it is cut or too long."""
    value = shift = 0
    while pos < len(data):
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, pos
        shift += 7
        if shift > _MAX_SHIFT:
            break
    raise ValueError("a varint without its end")


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) in order: int for varints, bytes for everything else; ValueError where the bytes are no message."""
    pos = 0
    while pos < len(data):
        tag, pos = varint(data, pos)
        kind = tag & 7
        if kind == VARINT:
            value, pos = varint(data, pos)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            size, pos = varint(data, pos)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if pos + size > len(data):
            raise ValueError("a field longer than its message")
        yield tag >> 3, data[pos : pos + size]
        pos += size


def message(data: Any) -> dict[int, Any]:
    """The last value of each field; an int where a message was expected is a ValueError."""
    return dict(fields(as_bytes(data)))


def as_bytes(value: Any) -> bytes:
    """A length-delimited field; ValueError when the wire type was another one."""
    if not isinstance(value, bytes):
        raise ValueError("a number where bytes were expected")
    return value


def text(value: Any) -> str:
    """A string field; bytes that are no UTF-8 are replaced."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def signed(value: Any) -> int:
    """An int32 or int64 field: negative numbers come as ten bytes of two's complement."""
    if not isinstance(value, int):
        return 0
    return value - (1 << 64) if value >= 1 << 63 else value


def seconds(value: Any) -> float | None:
    """A google.protobuf.Timestamp {1 seconds, 2 nanos} as seconds since 1970; None when it is empty or damaged."""
    try:
        parts = message(value)
    except ValueError:
        return None
    when = signed(parts.get(1, 0)) + signed(parts.get(2, 0)) * 1e-9
    return when if when > 0 else None
