"""CSV and TSV with a header and a step or epoch column: Lightning's `metrics.csv`, Keras's CSVLogger, home-made logs.

Sparse rows are normal (Lightning writes training, validation and epoch rows apart): an empty cell is "not logged here", `nan`
is NaN, `NA` is absent. A header that appears again is a new process that appends. Never claimed without a step column.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from diagnose import texts
from diagnose.model import Frozen, Problem, Source
from diagnose.parts import RawRun, RawSeries, Reader

STEP_COLUMNS = (
    ("step", "step"), ("global_step", "step"), ("iteration", "step"), ("iter", "step"), ("steps", "step"), ("_step", "step"),
    ("train/global_step", "step"), ("trainer/global_step", "step"), ("update", "step"), ("batch", "step"), ("samples", "samples"),
    ("tokens", "tokens"), ("epoch", "epoch"),
)  # fmt: skip
_ABSENT = frozenset({"", "na", "n/a", "none", "null"})
_WORDS = {
    "nan": float("nan"),
    "inf": float("inf"),
    "infinity": float("inf"),
    "-inf": float("-inf"),
    "-infinity": float("-inf"),
    "+inf": float("inf"),
}
_MOST_COLUMNS = 20_000


def number(cell: str) -> float | None:
    """A cell's number, comma decimals included; None when the cell is empty or holds words."""
    text = cell.strip().strip('"')
    low = text.lower()
    if low in _ABSENT:
        return None
    if low in _WORDS:
        return _WORDS[low]
    try:
        return float(text)
    except ValueError:
        return texts.number(text) if text[:1] in "+-.0123456789" else None


def _separator(header: str) -> str:
    return max("\t;,", key=header.count)


def _step_column(header: Sequence[str]) -> tuple[int, str] | None:
    low = [h.strip().strip('"').lower() for h in header]
    return next(((low.index(k), axis) for k, axis in STEP_COLUMNS if k in low), None)


def claims(path: Path) -> bool:
    """A header of words with a step column, and rows of as many cells that hold numbers."""
    try:
        lines = [s for s in texts.head(path).splitlines() if s.strip()]
        if len(lines) < 2:
            return False
        separator = _separator(lines[0])
        header = next(csv.reader([lines[0]], delimiter=separator))
        column = _step_column(header)
        if len(header) < 2 or column is None or any(number(h) is not None for h in header):
            return False
        rows = list(csv.reader(lines[1:12], delimiter=separator))
        good = [
            r for r in rows if len(r) == len(header) and number(r[column[0]]) is not None and sum(number(c) is not None for c in r) >= 2
        ]
        return len(good) >= 0.5 * len(rows)
    except Exception:
        return False


def _texts(path: Path, problems: list[Problem]) -> Iterator[str]:
    for line in texts.lines(path, problems):
        yield line.text


def _rows(path: Path, problems: list[Problem]) -> Iterator[list[str]]:
    lines = (t for t in _texts(path, problems) if t.strip())
    first = next(lines, "")
    separator = _separator(first)

    def both() -> Iterable[str]:
        yield first
        yield from lines

    reader = csv.reader(both(), delimiter=separator)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            problems.append(Problem(f"{path}:{reader.line_num}", f"a row that is no CSV is left out ({error})"))


def _read_one(path: Path, source: int, problems: list[Problem]) -> list[RawSeries]:
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    header: list[str] = []
    column: tuple[int, str] | None = None
    axis, short, fill = "row", 0, 0
    for count, row in enumerate(_rows(path, problems)):
        names = [c.strip().strip('"') for c in row]
        if not header or names == header or (_step_column(row) is not None and not any(number(c) is not None for c in row)):
            header, column = names[:_MOST_COLUMNS], _step_column(row)
            axis = column[1] if column else "row"
            continue
        if len(row) != len(header):
            short += 1
            if len(row) > len(header):
                continue
        step = number(row[column[0]]) if column and column[0] < len(row) else float(count)
        if step is None or not abs(step) < 2**62:
            fill += 1
            continue
        for i, cell in enumerate(row[: len(header)]):
            if column and i == column[0]:
                continue
            value = number(cell)
            if value is not None:
                steps.setdefault(header[i], []).append(int(step))
                values.setdefault(header[i], []).append(value)
    if short:
        problems.append(Problem(str(path), f"{short} rows have another number of cells than the header"))
    if fill:
        problems.append(Problem(str(path), f"{fill} rows have no step and are left out"))
    return [RawSeries(n, np.array(steps[n], np.int64), np.array(values[n]), axis=axis, source=source) for n in steps]


def read(paths: Sequence[Path]) -> RawRun:
    """All rows of the files, in order."""
    problems: list[Problem] = []
    series = [s for source, path in enumerate(paths) for s in _read_one(path, source, problems)]
    lightning = any(p.name == "metrics.csv" and p.parent.name.startswith("version_") for p in paths)
    return RawRun(tuple(series), problems=tuple(problems), sources=tuple(Source(str(p), "csv") for p in paths),
                  facts=Frozen(framework="lightning") if lightning else Frozen())  # fmt: skip


def home(path: Path) -> Path:
    """`X/lightning_logs/version_0/metrics.csv` lives in its version folder; everything else in its own folder."""
    return path.parent


READER = Reader("csv", "CSV with a step column", claims, read, home=home, priority=30, key=lambda path: path.name)
