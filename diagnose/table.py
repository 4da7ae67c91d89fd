"""The run table: one run's raw points, settings, events and problems; its schema, validation and Parquet form.

The only file that knows Arrow. Arrow and pandas are imported when a table is written or asked for, never before.
`docs/table.md` is the specification. Nothing is stitched here: superseded points of earlier attempts are kept.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diagnose.errors import BadTable
from diagnose.model import Event, Floats, Frozen, Problem, Setting, Source, Steps

SCHEMA = "diagnose.table/1"
COLUMNS = (
    ("metric", "dictionary<string>"),
    ("logged_as", "dictionary<string>"),
    ("step", "int64"),
    ("value", "float64"),
    ("time", "timestamp[us, UTC]"),
    ("rank", "int32"),
    ("attempt", "int16"),
    ("source", "int16"),
)
_MAX_TIME_S = 9.2e12  # int64 microseconds end there


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The raw points of one metric from one source, in the order (attempt, step, position in the file)."""

    metric: str
    logged_as: str
    steps: Steps
    values: Floats
    attempts: NDArray[np.int16]
    times: Floats | None = None  # seconds since 1970, UTC; NaN where unknown
    rank: int | None = None
    source: int = 0

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training run with everything its logs say. `facts` are plain values: framework, key, clean_end, started, ..."""

    name: str
    path: str = ""
    step_unit: str = "step"
    series: tuple[Series, ...] = ()
    settings: tuple[Setting, ...] = field(default=(), kw_only=True)
    events: tuple[Event, ...] = field(default=(), kw_only=True)
    sources: tuple[Source, ...] = field(default=(), kw_only=True)
    problems: tuple[Problem, ...] = field(default=(), kw_only=True)
    facts: Mapping[str, Any] = field(default_factory=Frozen, kw_only=True)

    @property
    def points(self) -> int:
        """The number of logged values."""
        return sum(len(s) for s in self.series)

    def columns(self) -> dict[str, Any]:
        """The table as arrays: metric and logged_as as lists of str, the rest as numpy arrays; sorted as in the file."""
        ordered = sorted(self.series, key=lambda s: (s.metric, -1 if s.rank is None else s.rank, s.source, s.logged_as))
        total = self.points
        return {
            "metric": [s.metric for s in ordered],
            "logged_as": [s.logged_as for s in ordered],
            "lengths": np.array([len(s) for s in ordered], np.int64),
            "step": np.concatenate([s.steps for s in ordered]) if total else np.empty(0, np.int64),
            "value": np.concatenate([s.values for s in ordered]) if total else np.empty(0),
            "time": np.concatenate([_times(s) for s in ordered]) if total else np.empty(0),
            "rank": np.array([-1 if s.rank is None else s.rank for s in ordered], np.int64),
            "attempt": np.concatenate([s.attempts for s in ordered]) if total else np.empty(0, np.int16),
            "source": np.array([s.source for s in ordered], np.int16),
        }

    def to_pandas(self) -> Any:
        """The run table as a pandas DataFrame with the columns of `docs/table.md`."""
        return _arrow_table(self).to_pandas()

    def save(self, path: str | Path) -> None:
        """Writes the Parquet file (zstd, dictionary tags) atomically: a killed write leaves nothing under the final name."""
        import pyarrow.parquet as pq

        target = Path(path)
        handle, scratch = tempfile.mkstemp(dir=target.parent or Path(), prefix=f".{target.name}.", suffix=".part")
        os.close(handle)
        try:
            pq.write_table(_arrow_table(self), scratch, compression="zstd", use_dictionary=["metric", "logged_as"])
            os.chmod(scratch, 0o666 & ~_umask())
            os.replace(scratch, target)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Reads a run table back; BadTable when the file is not one, or is of a newer schema."""
        return _load(Path(path))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _times(series: Series) -> Floats:
    return np.full(len(series), np.nan) if series.times is None else series.times


def attempts_of(steps: Steps) -> NDArray[np.int16]:
    """The attempt of each point of one series in file order: rises by one when the step goes back."""
    back = np.zeros(len(steps), np.int64)
    if len(steps) > 1:
        back[1:] = steps[1:] < steps[:-1]
    return np.minimum(np.cumsum(back), 32767).astype(np.int16)


def _arrow_table(run: Run) -> Any:
    import pyarrow as pa

    cols = run.columns()
    lengths = cols["lengths"]
    metrics, metric_codes = np.unique(np.array(cols["metric"] or [""], object).astype(str), return_inverse=True)
    tags, tag_codes = np.unique(np.array(cols["logged_as"] or [""], object).astype(str), return_inverse=True)
    empty = not cols["metric"]
    codes = [np.empty(0, np.int32) if empty else np.repeat(c.astype(np.int32), lengths) for c in (metric_codes, tag_codes)]
    ranks = np.repeat(cols["rank"], lengths) if not empty else np.empty(0, np.int64)
    micros = np.round(np.where(_usable(cols["time"]), cols["time"], 0.0) * 1e6).astype(np.int64)
    arrays = [
        pa.DictionaryArray.from_arrays(pa.array(codes[0]), pa.array([] if empty else metrics.tolist(), pa.string())),
        pa.DictionaryArray.from_arrays(pa.array(codes[1]), pa.array([] if empty else tags.tolist(), pa.string())),
        pa.array(cols["step"], pa.int64()),
        pa.array(cols["value"], pa.float64(), from_pandas=False),
        pa.array(micros, pa.timestamp("us", tz="UTC"), mask=~_usable(cols["time"])),
        pa.array(ranks.astype(np.int32), pa.int32(), mask=ranks < 0),
        pa.array(cols["attempt"], pa.int16()),
        pa.array(np.repeat(cols["source"], lengths) if not empty else np.empty(0, np.int16), pa.int16()),
    ]
    table = pa.Table.from_arrays(arrays, names=[name for name, _ in COLUMNS])
    return table.replace_schema_metadata({"diagnose": json.dumps(_metadata(run), sort_keys=True)})


def _usable(times: Floats) -> NDArray[np.bool_]:
    return np.isfinite(times) & (np.abs(np.where(np.isfinite(times), times, 0.0)) < _MAX_TIME_S)


def _metadata(run: Run) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": run.name,
        "path": run.path,
        "step_unit": run.step_unit,
        "facts": _plain(dict(run.facts)),
        "sources": [asdict(s) for s in run.sources],
        "settings": [_plain({"name": s.name, "value": s.value, "spelled": s.spelled, "where": s.where}) for s in run.settings],
        "events": [
            _plain({k: getattr(e, k) for k in ("kind", "says", "where", "step", "time", "rank")} | {"numbers": dict(e.numbers)})
            for e in run.events
        ],
        "problems": [asdict(p) for p in run.problems],
    }


def _plain(value: Any) -> Any:
    """JSON-safe copies; non-finite floats as {"float": "nan"} so that they come back as they were."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.floating, np.integer, np.bool_)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"float"}:
            return float(value["float"])
        return {k: _revive(v) for k, v in value.items()}
    return [_revive(v) for v in value] if isinstance(value, list) else value


def _load(path: Path) -> Run:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        why = str(error).rsplit("': ", 1)[-1].rstrip(".")  # Arrow's words without the path, which is told already
        raise BadTable(
            f"not a readable Parquet file ({why}).", where=str(path), hint="Make it with `diagnose read RUN -o FILE`."
        ) from error
    raw = (table.schema.metadata or {}).get(b"diagnose")
    if raw is None or [f.name for f in table.schema] != [n for n, _ in COLUMNS]:
        raise BadTable("a Parquet file, but not a run table.", where=str(path), hint="Make one with `diagnose read RUN -o FILE`.")
    meta = _revive(json.loads(raw))
    if meta.get("schema") != SCHEMA:
        raise BadTable(f"its schema is {meta.get('schema')!r}; this version reads {SCHEMA!r}.", where=str(path))
    return Run(
        meta["name"],
        meta["path"],
        meta["step_unit"],
        _series(table),
        settings=tuple(Setting(s["name"], s["value"], spelled=s["spelled"], where=s["where"]) for s in meta["settings"]),
        events=tuple(Event(**{**e, "numbers": Frozen(e["numbers"])}) for e in meta["events"]),
        sources=tuple(Source(**s) for s in meta["sources"]),
        problems=tuple(Problem(**p) for p in meta["problems"]),
        facts=Frozen(meta["facts"]),
    )


def _series(table: Any) -> tuple[Series, ...]:
    if not table.num_rows:
        return ()
    cols = {}
    for name in ("metric", "logged_as"):
        column = table.column(name).combine_chunks().dictionary_encode()
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        cols[name] = (np.asarray(column.indices), column.dictionary.to_pylist())
    rank = table.column("rank").fill_null(-1).to_numpy()
    source = table.column("source").to_numpy()
    key = np.stack(
        [cols["metric"][0].astype(np.int64), cols["logged_as"][0].astype(np.int64), rank.astype(np.int64), source.astype(np.int64)]
    )
    cut = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(axis=0)) + 1
    bounds = [0, *cut.tolist(), table.num_rows]
    steps, values = table.column("step").to_numpy(), table.column("value").to_numpy()
    attempt, time = table.column("attempt").to_numpy(), table.column("time")
    known = np.asarray(time.is_valid())
    seconds = np.where(known, np.asarray(time.cast("int64").fill_null(0)) / 1e6, np.nan)
    out = []
    for a, b in itertools.pairwise(bounds):
        out.append(
            Series(
                cols["metric"][1][key[0, a]],
                cols["logged_as"][1][key[1, a]],
                frozen(steps[a:b]),
                frozen(values[a:b]),
                frozen(attempt[a:b]),
                frozen(seconds[a:b]) if known[a:b].any() else None,
                None if rank[a] < 0 else int(rank[a]),
                int(source[a]),
            )
        )
    return tuple(out)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only contiguous copy of the array (or the array itself when it is both already)."""
    out = np.ascontiguousarray(array)
    if out.flags.writeable:
        out = out.copy() if out is array else out
        out.flags.writeable = False
    return out


def ordered(
    metric: str,
    logged_as: str,
    steps: Steps,
    values: Floats,
    times: Floats | None,
    *,
    rank: int | None,
    source: int,
    attempts: NDArray[np.int16] | None = None,
) -> Series:
    """A series from points in file order: attempts are counted, then points sorted by (attempt, step), ties in file order."""
    attempts = attempts_of(steps) if attempts is None else attempts
    order = np.lexsort((steps, attempts))
    return Series(
        metric,
        logged_as,
        frozen(steps[order]),
        frozen(values[order].astype(np.float64)),
        frozen(attempts[order]),
        None if times is None else frozen(times[order]),
        rank,
        source,
    )


def same(one: Run, other: Run) -> bool:
    """Whether two runs hold the same data, NaN equal to NaN: the round trip's test."""
    left, right = _metadata(one), _metadata(other)
    a, b = one.columns(), other.columns()
    arrays = all(
        np.array_equal(a[k], b[k], equal_nan=k in ("value", "time")) for k in ("lengths", "step", "value", "rank", "attempt", "source")
    )
    close = np.allclose(a["time"], b["time"], atol=1e-6, rtol=0, equal_nan=True) if len(a["time"]) == len(b["time"]) else False
    return left == right and arrays and close and a["metric"] == b["metric"] and a["logged_as"] == b["logged_as"]


def names(series: Iterable[Series] | Sequence[Series]) -> tuple[str, ...]:
    """The canonical names, each once, in order."""
    return tuple(dict.fromkeys(s.metric for s in series))
