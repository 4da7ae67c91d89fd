"""From coded bytes to float64: one number a row, whole columns at once; and what a histogram says.

Codes are numpy's own for what numpy knows, `bfloat16`, `e5m2` and `e4m3` for what it doesn't, and `varint <code>` for the
elements of packed integer lists (half and bfloat16 stand there as their bits).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from diagnose.model import Floats
from diagnose.readers.tensorboard import wire

Rows = NDArray[np.uint8]


def integers(rows: Rows) -> NDArray[np.uint64]:
    """Varints of one width, a row each."""
    value = np.zeros(len(rows), np.uint64)
    for k in range(rows.shape[1]):
        value |= (rows[:, k] & np.uint8(127)).astype(np.uint64) << np.uint64(7 * k)
    return value


def _e4m3_table() -> Floats:
    """All 256 values of FLOAT8_E4M3FN: bias 7, no infinities, NaN at 0x7F and 0xFF (Micikevicius et al. 2022, table 1)."""
    bits = np.arange(256)
    power, part = (bits >> 3) & 15, bits & 7
    size = np.where(power == 0, part * 2.0**-9, (8 + part) * 2.0 ** (power - 10.0))
    value: Floats = np.where(bits & 128, -size, size)
    value[[0x7F, 0xFF]] = np.nan
    return value


_E4M3 = _e4m3_table()


def _of_bits(code: str, bits: NDArray[np.uint64]) -> Floats:
    if code == "|b1":
        return np.asarray(bits != 0, np.float64)
    if code == "bfloat16":
        return np.asarray((bits.astype(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32), np.float64)
    if code == "<f2":
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    return np.asarray(bits.astype(f"<u{code[-1]}").view(code), np.float64)


def numbers(code: str, rows: Rows) -> Floats:
    """The numbers whose coded bytes are the rows; all rows are of one width."""
    if code.startswith("varint "):
        return _of_bits(code[7:], integers(rows))
    rows = np.ascontiguousarray(rows)
    if code == "bfloat16":
        return _of_bits(code, rows.view("<u2").ravel().astype(np.uint64))
    if code == "e5m2":  # the upper half of a float16
        return (rows.ravel().astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float64)
    if code == "e4m3":
        return _E4M3[rows.ravel()]
    with np.errstate(invalid="ignore"):  # a signalling NaN is NaN
        return rows.view(code).ravel().astype(np.float64)


def _doubles(data: bytes, found: list[tuple[int, int, int]], number: int) -> Floats:
    """A repeated double, packed or not."""
    packed = [data[a:b] for key, a, b in found if key >> 3 == number and key & 7 in (1, 2)]
    joined = b"".join(packed)
    return np.frombuffer(joined[: len(joined) // 8 * 8], "<f8")


Summary = dict[str, float]
SUMMARIES = ("min", "max", "mean", "std", "norm", "zeros")


def of_histogram(data: bytes, place: wire.Span) -> Summary:
    """What a HistogramProto says: its own extremes and sums are exact, whatever its buckets are."""
    found = wire.fields(data, *place)
    one = {key >> 3: float(np.frombuffer(data[a:b], "<f8")[0]) for key, a, b in found if key & 7 == 1 and key >> 3 <= 5}
    low, high, count, total, squares = (one.get(k, 0.0) for k in range(1, 6))
    if not count > 0:
        return {}
    said = _moments(low, high, count, total, squares)
    right, held = _doubles(data, found, 6), _doubles(data, found, 7)
    if len(right) and len(right) == len(held):
        left = np.concatenate([[low], right[:-1]])
        zeros = _zeros(low, high, left, right, held)
        if zeros is not None:
            said["zeros"] = zeros
    return said


def of_table(data: bytes, place: wire.Span) -> Summary:
    """What a TF2 histogram says, a tensor [k, 3] of left edge, right edge and count.

    Minimum and maximum are the outer edges of buckets that hold something, which TF2 sets to the exact extremes. Mean, spread
    and norm are approximate: every value is taken to be the centre of its bucket (30 buckets by default, so the spread is off
    by about 1 % for a bell curve).
    """
    dtype, dims, content, found = wire.tensor_parts(data, place)
    code, width, number = ("<f8", 8, 6) if dtype == 2 else ("<f4", 4, 5)
    raw = data[content[0] : content[1]] or b"".join(data[a:b] for key, a, b in found if key >> 3 == number)
    flat = np.frombuffer(raw[: len(raw) // width * width], code).astype(np.float64)
    if dtype not in (1, 2) or len(dims) != 2 or dims[1] != 3 or len(flat) != dims[0] * 3 or not len(flat):
        return {}
    left, right, held = flat.reshape(-1, 3).T
    some = held > 0
    count = float(np.sum(held[some]))
    if not count > 0:
        return {}
    centre = (left[some] + right[some]) / 2
    low, high = float(left[some][0]), float(right[some][-1])
    with np.errstate(all="ignore"):
        said = _moments(low, high, count, float(np.sum(held[some] * centre)), float(np.sum(held[some] * centre**2)))
    zeros = _zeros(low, high, left, right, held)
    if zeros is not None:
        said["zeros"] = zeros
    return said


def _moments(low: float, high: float, count: float, total: float, squares: float) -> Summary:
    mean = total / count
    spread = squares / count - mean * mean
    norm = math.sqrt(squares) if squares >= 0 else math.nan
    return {"min": low, "max": high, "mean": mean, "std": math.nan if math.isnan(spread) else math.sqrt(max(spread, 0.0)), "norm": norm}


_NARROW = 1e-6  # of the largest value; the buckets beside 0 of TF and torch are 1e-12 wide, TF2's are 1/30 of the range


def _zeros(low: float, high: float, left: Floats, right: Floats, held: Floats) -> float | None:
    """The share of values that are 0, or None when the bucket that holds 0 is too wide to tell."""
    count = float(np.sum(held))
    if low > 0 or high < 0:
        return 0.0
    if low == high == 0:
        return 1.0
    k = int(np.searchsorted(right, 0.0, side="right"))  # the first bucket whose right edge lies above 0
    if k == len(right):
        k -= 1  # the last bucket holds its right edge
    if held[k] == 0:
        return 0.0
    if not left[k] <= 0 <= right[k] or not right[k] - left[k] <= _NARROW * max(abs(low), abs(high)):
        return None
    return float(held[k]) / count
