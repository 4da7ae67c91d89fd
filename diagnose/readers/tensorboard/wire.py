"""Protobuf's wire format and the messages of an event file, as places in the bytes: nothing is copied or converted here.

An event is parsed into *slots*: where its time and step stand, and for each number where its tag and its value stand and how
the value is coded. One parsed record is the pattern for all others of its length, see `points`. Messages and numbers of
fields are those of tensorboard's event.proto, summary.proto, tensor.proto and types.proto.
"""

from __future__ import annotations

from dataclasses import dataclass, field

Span = tuple[int, int]
NOWHERE: Span = (0, 0)


class Malformed(Exception):
    """Bytes that are no message, though their checksum is right."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise Malformed


def signed(value: int) -> int:
    """An int64 from its two's complement."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, at: int, end: int) -> list[tuple[int, int, int]]:
    """All fields of a message in order: the key (number and wire type in one), and where the content stands."""
    found = []
    while at < end:
        key = data[at]
        at += 1
        if key >= 128:
            key, at = varint(data, at - 1)
        wire, begin = key & 7, at
        if wire == 2:
            length = data[at]
            at += 1
            if length >= 128:
                length, at = varint(data, at - 1)
            begin = at
            at += length
        elif wire == 0:
            while data[at] >= 128:
                at += 1
            at += 1
            if at - begin > 10:
                raise Malformed
        elif wire == 5:
            at += 4
        elif wire == 1:
            at += 8
        else:
            raise Malformed
        if at > end or key < 8:
            raise Malformed
        found.append((key, begin, at))
    return found


@dataclass(frozen=True, slots=True)
class Slot:
    """One number of an event: where its tag and its bytes stand, and how they are coded (see `numbers.CODES`)."""

    tag: Span
    code: str
    at: Span


@dataclass(frozen=True, slots=True)
class Other:
    """A value that is not one number: `kind` is histo, tensor, strings, image, audio, obsolete or empty."""

    tag: Span
    kind: str
    at: Span
    dtype: int = 0
    dims: tuple[int, ...] = ()


@dataclass(slots=True)
class Parsed:
    """An event by places. `plain` says that other records may differ from it in time, step, tags and numbers only."""

    wall: int = -1  # -1: not there, which means 0.0
    step: Span = NOWHERE
    slots: list[Slot] = field(default_factory=list)
    others: list[Other] = field(default_factory=list)
    metadata: list[tuple[Span, Span]] = field(default_factory=list)  # tag, SummaryMetadata
    file_version: Span = NOWHERE
    session: Span = NOWHERE
    writer: Span = NOWHERE
    broken: bool = False  # no event, though its checksum may be right

    @property
    def plain(self) -> bool:
        """Whether it holds numbers only, so that it can be a pattern."""
        return not (self.broken or self.others or self.session != NOWHERE or self.file_version != NOWHERE or self.writer != NOWHERE)


def event(data: bytes) -> Parsed:
    """Parses one payload; what is no event holds nothing and is `broken`."""
    parsed = Parsed()
    try:
        for key, begin, end in fields(data, 0, len(data)):
            if key == 0x09:
                parsed.wall = begin
            elif key == 0x10:
                parsed.step = (begin, end)
            elif key == 0x2A:
                for inner, first, last in fields(data, begin, end):
                    if inner == 0x0A:
                        _value(data, first, last, parsed)
            elif key == 0x1A:
                parsed.file_version = (begin, end)
            elif key == 0x3A:
                parsed.session = (begin, end)
            elif key == 0x52:
                parsed.writer = (begin, end)
    except (IndexError, Malformed):
        return Parsed(broken=True)
    return parsed


_KINDS = {0x15: "simple", 0x42: "tensor", 0x2A: "histo", 0x22: "image", 0x32: "audio", 0x1A: "obsolete"}


def _value(data: bytes, at: int, end: int, parsed: Parsed) -> None:
    tag = node = metadata = NOWHERE
    kind, place = "empty", NOWHERE
    for key, begin, last in fields(data, at, end):
        if key == 0x0A:
            tag = (begin, last)
        elif key in _KINDS:  # of a oneof the last one counts
            kind, place = _KINDS[key], (begin, last)
        elif key == 0x4A:
            metadata = (begin, last)
        elif key == 0x3A:
            node = (begin, last)
    if tag[0] == tag[1]:
        tag = node  # tensor summaries before 2017 have their tag there
    if metadata != NOWHERE:
        parsed.metadata.append((tag, metadata))
    if kind == "simple":
        parsed.slots.append(Slot(tag, "<f4", place))
    elif kind == "tensor":
        _tensor(data, tag, place, parsed)
    else:
        parsed.others.append(Other(tag, kind, place))


# DataType: bytes in tensor_content, how they are coded there, the field of the *_val list, and how its elements are coded
_DTYPES: dict[int, tuple[int, str, int, str]] = {
    1: (4, "<f4", 5, "<f4"),
    2: (8, "<f8", 6, "<f8"),
    3: (4, "<i4", 7, "varint <i4"),
    4: (1, "|u1", 7, "varint |u1"),
    5: (2, "<i2", 7, "varint <i2"),
    6: (1, "|i1", 7, "varint |i1"),
    9: (8, "<i8", 10, "varint <i8"),
    10: (1, "|b1", 11, "varint |b1"),
    14: (2, "bfloat16", 13, "varint bfloat16"),
    17: (2, "<u2", 7, "varint <u2"),
    19: (2, "<f2", 13, "varint <f2"),
    22: (4, "<u4", 16, "varint <u4"),
    23: (8, "<u8", 17, "varint <u8"),
    24: (1, "e5m2", 18, "e5m2"),
    25: (1, "e4m3", 18, "e4m3"),
}
STRING = 7
_WIDTHS = {"<f4": 4, "<f8": 8, "e5m2": 1, "e4m3": 1}  # of elements in *_val lists that are no varints


def tensor_parts(data: bytes, place: Span) -> tuple[int, tuple[int, ...], Span, list[tuple[int, int, int]]]:
    """Of a TensorProto: dtype, dimensions, where tensor_content stands, and all fields."""
    dtype, content = 0, NOWHERE
    dims: tuple[int, ...] = ()
    found = fields(data, *place)
    for key, begin, end in found:
        if key == 0x08:
            dtype = varint(data, begin)[0]
        elif key == 0x12:
            dims = _dims(data, begin, end)
        elif key == 0x22:
            content = (begin, end)
    return dtype, dims, content, found


def _dims(data: bytes, at: int, end: int) -> tuple[int, ...]:
    sizes = []
    for key, begin, last in fields(data, at, end):
        if key == 0x12:
            size = 0
            for inner, first, _ in fields(data, begin, last):
                if inner == 0x08:
                    size = signed(varint(data, first)[0])
            sizes.append(size)
    return tuple(sizes)


def _tensor(data: bytes, tag: Span, place: Span, parsed: Parsed) -> None:
    dtype, dims, content, found = tensor_parts(data, place)
    coded = _DTYPES.get(dtype)
    if coded is None or any(size != 1 for size in dims):
        parsed.others.append(Other(tag, "strings" if dtype == STRING else "tensor", place, dtype, dims))
        return
    width, raw, number, element = coded
    if content[0] != content[1]:
        if content[1] - content[0] == width:
            parsed.slots.append(Slot(tag, raw, content))
        else:
            parsed.others.append(Other(tag, "tensor", place, dtype, dims))
        return
    first = first_of_list(data, found, number, element)
    if first is None:
        parsed.others.append(Other(tag, "empty", place, dtype, dims))
    else:
        parsed.slots.append(Slot(tag, element, first))


def first_of_list(data: bytes, found: list[tuple[int, int, int]], number: int, element: str) -> Span | None:
    """Where the first element of a repeated field stands, packed or not; None when there is none."""
    width = _WIDTHS.get(element)
    for key, begin, end in found:
        if key >> 3 != number or begin == end:
            continue
        if width is not None:
            return (begin, begin + width) if end - begin >= width else None
        last = varint(data, begin)[1]
        return (begin, last) if key & 7 in (0, 2) and last <= end else None
    return None
