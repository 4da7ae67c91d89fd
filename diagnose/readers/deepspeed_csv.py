"""DeepSpeed's CSV monitor: one file a tag, `<output_path>/<job_name>/Train_Samples_lr.csv`, header `step,lr`.

The step counts samples, in the files of elapsed times too. Every process start writes the header again: rows stay in the
order of the file, and the event `restart` marks the place. `Train/Samples/train_loss` is written by the pipeline engine and
by releases up to 0.18.2 only.

Home: `<out>/<job>/file.csv` lives in the parent of `<job>`, and where that is only a folder for monitors (`csv`,
`csv_monitor`, `monitor`, `logs`, `tb`, `tensorboard`), in *its* parent.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from diagnose.model import Event, Frozen, Problem, Source
from diagnose.parts import RawRun, RawSeries, Reader
from diagnose.texts import head, number

_MONITOR_FOLDERS = frozenset({"csv", "csv_monitor", "monitor", "logs", "tb", "tensorboard"})
_PREFIXES = {"Train_Samples": "Train/Samples/", "Train_Eigenvalues": "Train/Eigenvalues/", "Train": "Train/"}  # engine.py's tags
_LONGEST = 4096  # bytes of a row; real ones have two numbers
_MOST_NOTES = 20  # of one file
_GREATEST_STEP = 2**53  # beyond it a float no longer counts


def _last_part(header: str) -> str | None:
    """The last part of the tag, which the header `step,<last part>` names."""
    step, comma, name = header.strip().removeprefix("\ufeff").partition(",")
    return name.strip() if comma and step == "step" and name.strip() and "," not in name else None


def _prefix(path: Path, name: str) -> str | None:
    """What stands before the last part in the file's name; None when the name does not end in it."""
    ending = "_" + name.replace(" ", "_")
    return path.stem.removesuffix(ending) if path.stem.endswith(ending) else None


def claims(path: Path) -> bool:
    """Whether `Train_….csv` has a header `step,X` and its name ends in X."""
    try:
        if path.suffix != ".csv" or not path.name.startswith("Train_") or not path.is_file():
            return False
        name = _last_part(head(path, _LONGEST).split("\n", 1)[0])
        return name is not None and _prefix(path, name) is not None
    except (OSError, ValueError):
        return False


def home(path: Path) -> Path:
    """The directory of the run: see the module."""
    above = path.parent.parent
    return above.parent if above.name.lower() in _MONITOR_FOLDERS else above


def tag(path: Path, name: str) -> str:
    """`Train/Samples/lr` for `Train_Samples_lr.csv` with the header `step,lr`; the file's stem where that is ambiguous."""
    prefix = _prefix(path, name)
    return _PREFIXES[prefix] + name if prefix in _PREFIXES else path.stem


def _rows(path: Path, problems: list[Problem]) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            line, whole = 0, True
            while raw := file.readline(_LONGEST):
                line += whole
                whole_before, whole = whole, raw.endswith(b"\n")
                if whole_before and (whole or len(raw) < _LONGEST):  # not a piece of an overlong row
                    yield line, raw.replace(b"\0", b"").decode("utf-8", "replace").strip().removeprefix("\ufeff")
    except OSError as error:
        problems.append(Problem(where=path.name, what=f"reading stopped early ({error})"))


def _file(path: Path, source: int, problems: list[Problem], events: list[Event]) -> RawSeries | None:
    steps, values = array("q"), array("d")
    name: str | None = None
    bad = starts = 0
    restarts: list[Event] = []
    for line, row in _rows(path, problems):
        if (found := _last_part(row)) is not None:
            starts += 1
            name = name or found
            if starts > 1:
                says = f"process start {starts} writes into the same file"
                restarts.append(Event("restart", says, where=f"{path.name}:{line}", numbers=Frozen(start=float(starts))))
            continue
        left, _, right = row.partition(",")
        step, value = number(left), number(right)
        if step is None or value is None or not step.is_integer() or not abs(step) < _GREATEST_STEP:
            if row:
                bad += 1
                if bad <= _MOST_NOTES:
                    problems.append(Problem(where=f"{path.name}:{line}", what=f"no row of step and value: {row[:60]!r}"))
            continue
        steps.append(int(step))
        values.append(value)
    if bad > _MOST_NOTES:
        problems.append(Problem(where=path.name, what=f"{bad - _MOST_NOTES} more rows are no rows of step and value"))
    if len(restarts) > len(events):  # every file of the monitor repeats its header; the fullest account stands for all
        events[:] = restarts
    if not steps or name is None:
        return None
    columns = np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64)
    for column in columns:
        column.flags.writeable = False
    return RawSeries(tag(path, name), *columns, axis="samples", source=source)


def read(paths: Sequence[Path]) -> RawRun:
    """Reads the files of one monitor; one series a file."""
    problems: list[Problem] = []
    events: list[Event] = []
    series = [_file(Path(p), i, problems, events) for i, p in enumerate(paths)]
    return RawRun(
        tuple(s for s in series if s is not None),
        events=tuple(events),
        problems=tuple(problems),
        sources=tuple(Source(str(p), "deepspeed_csv") for p in paths),
        facts=Frozen(framework="deepspeed"),
    )


READER = Reader("deepspeed_csv", "DeepSpeed CSV monitor", claims, read, home=home, priority=75)
