"""Which files are one run, and how what several readers found becomes one run table.

Files are claimed by content. A run lives in the home that its reader names; a home below another one joins it when the
upper one holds logs or configuration of its own and nothing else of that format lies below it (a DeepSpeed console with its
CSV and TensorBoard monitors and its `ds_config.json` is *one* run). Files of one home with different keys (two W&B ids, two
consoles) are different runs. Companions (configuration files) belong to every run of their directory and never are one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnose import metrics, registry, settings
from diagnose.errors import NothingReadable
from diagnose.model import Event, Frozen, Problem, Setting, Source, Steps
from diagnose.parts import RawRun, RawSeries, Reader
from diagnose.table import Run, Series, attempts_of, ordered
from diagnose.transcript import transcribe

MAX_FILES = 200_000  # of a folder; what lies beyond is said, not read
MAX_DEPTH = 16
_NEVER = frozenset(
    [
        ".pt",
        ".pth",
        ".bin",
        ".safetensors",
        ".ckpt",
        ".npz",
        ".npy",
        ".png",
        ".jpg",
        ".jpeg",
        ".gif",
        ".svg",
        ".pdf",
        ".mp4",
        ".py",
        ".pyc",
        ".so",
        ".md",
        ".html",
        ".css",
        ".js",
        ".ipynb",
        ".whl",
        ".onnx",
    ]
)  # files that no log format uses; named so that a folder of checkpoints is not opened file by file
_SKIP_DIRS = frozenset({".git", "__pycache__", "node_modules", ".venv", "site-packages", "latest-run"})


@dataclass(frozen=True, slots=True)
class Target:
    """One run to read: its name, where it lives, and which reader reads which file."""

    name: str
    home: Path
    files: tuple[tuple[str, Path], ...]

    @property
    def size(self) -> int:
        """Bytes of all files, for spreading work."""
        return sum(_size(path) for _, path in self.files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def claimed_by(path: Path) -> tuple[Reader, ...]:
    """The readers of a file, content tests first; the first one names its home and key. Empty when none claims it.

    A file has one reader, save for console text: there every dialect that is spoken in it is asked, and where none of them brings
    the loss (an engine's lines beside a user's own prints) the general ones too.
    """
    known = registry.readers().found
    for reader in known:
        if not reader.fallback and reader.claims(path):
            if reader.dialect is None or reader.companion:
                return (reader,)
            spoken = [r for r in known if r.dialect is not None and not r.fallback and (r is reader or r.claims(path))]
            general = [r for r in known if r.fallback and r.dialect is not None] if all(r.partial for r in spoken) else []
            return (*spoken, *general)
    return tuple(r for r in known if r.fallback and r.claims(path))


def discover(paths: Sequence[str | Path]) -> tuple[Target, ...]:
    """The runs below the paths, in order of name; NothingReadable names a path that holds none, and what was tried."""
    targets: list[Target] = []
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = _in_folder(path)
            if not found:
                raise NothingReadable("no file below it is a log that can be read.", where=str(path), hint=_tried())
            targets += found
        elif path.exists():
            targets.append(_one_file(path))
        else:
            raise NothingReadable("there is no such file or directory.", where=str(path), hint="Check the path.")
    return tuple(targets)


def _tried() -> str:
    return "Tried: " + ", ".join(r.title for r in registry.readers() if not r.companion) + "."


def _one_file(path: Path) -> Target:
    readers = claimed_by(path) if path.is_file() else ()
    if not readers or readers[0].companion:
        what, hint = _foreign(path)
        raise NothingReadable(what, where=str(path), hint=hint or _tried())
    beside = []
    folder = readers[0].home(path)
    for place in dict.fromkeys((path.parent, folder)):
        beside += [p for p in _files_of(place) if p != path]
    companions = [(r.id, p) for p in beside if (r := _companion(p)) is not None]
    return Target(path.name, path.parent, (*((r.id, path) for r in readers), *companions))


_UNPACK = "Unpack it and name the log."
_SIGNATURES: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer: the log itself was not fetched.", "Fetch it with `git lfs pull`."),
    (b"\x1f\x8b", "a file compressed with gzip.", _UNPACK),
    (b"PK\x03\x04", "a zip archive.", _UNPACK),
    (b"PK\x05\x06", "an empty zip archive.", ""),
    (b"\xfd7zXZ\x00", "a file compressed with xz.", _UNPACK),
    (b"\x28\xb5\x2f\xfd", "a file compressed with zstd.", _UNPACK),
    (b"BZh", "a file compressed with bzip2.", _UNPACK),
    (b"\x89PNG", "a PNG image, not a log.", ""),
    (b"\xff\xd8\xff", "a JPEG image, not a log.", ""),
    (b"%PDF-", "a PDF document, not a log.", ""),
    (b"\x7fELF", "a program, not a log.", ""),
)


def _foreign(path: Path) -> tuple[str, str]:
    """What a file is that no reader claims, and what to do about it where that is evident."""
    if not path.is_file():
        return "not a file.", ""
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError as error:
        return f"can't be read: {error.strerror or error}.", "Check its permissions."
    if not head:
        return "an empty file.", ""
    known = next(((what, hint) for start, what, hint in _SIGNATURES if head.startswith(start)), None)
    return known or ("not a log in a known format.", "")


def _companion(path: Path) -> Reader | None:
    if path.suffix.lower() not in (".json", ".yaml", ".yml"):
        return None
    return next((r for r in claimed_by(path) if r.companion), None)


def _files_of(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(e.path) for e in entries if e.is_file(follow_symlinks=True) and not e.name.startswith("."))
    except OSError:
        return []


def _walk(root: Path) -> Iterable[Path]:
    count, base = 0, len(root.parts)
    for folder, dirs, names in os.walk(root, followlinks=False):
        here = Path(folder)
        dirs[:] = sorted(d for d in dirs if d not in _SKIP_DIRS) if len(here.parts) - base < MAX_DEPTH else []
        for name in sorted(names):
            path = here / name
            if path.suffix.lower() in _NEVER or name.startswith(".") or not os.path.isfile(path):  # False where Path.is_file raises
                continue
            count += 1
            if count > MAX_FILES:
                return
            yield path


def _in_folder(root: Path) -> list[Target]:
    logs: list[tuple[Reader, Path, Path]] = []  # reader, file, home
    companions: list[tuple[Reader, Path]] = []
    shared: dict[Path, tuple[Reader, ...]] = {}
    for path in _walk(root):
        readers = claimed_by(path)
        if not readers:
            continue
        shared[path] = readers
        reader = readers[0]
        if reader.companion:
            companions.append((reader, path))
        else:
            home = reader.home(path)
            logs.append(
                (reader, path, home if root == home or root in home.parents else max(root, path.parent, key=lambda p: len(p.parts)))
            )
    owned = {path.parent for reader, path, _ in logs if reader.exclusive}
    logs = [x for x in logs if x[0].exclusive or not any(p in owned for p in x[1].parents)]
    homes = _joined(root, logs, {p.parent for _, p in companions})
    groups: dict[tuple[Path, str], list[tuple[Reader, Path]]] = {}
    keys: dict[Path, dict[str, set[str]]] = {}
    for reader, path, home in logs:
        top = homes[home]
        keys.setdefault(top, {}).setdefault(reader.id, set()).add(reader.key(path))
    for reader, path, home in logs:
        top = homes[home]
        many = any(len(k) > 1 for k in keys[top].values())
        label = f"{reader.id}:{reader.key(path)}" if many else ""
        groups.setdefault((top, label), []).append((reader, path))
    return [
        _target(root, home, label, [(r, path) for _, path in files for r in shared[path]], companions)
        for (home, label), files in sorted(groups.items(), key=lambda g: (str(g[0][0]), g[0][1]))
    ]


def _joined(root: Path, logs: Sequence[tuple[Reader, Path, Path]], configured: set[Path]) -> dict[Path, Path]:
    """Each home's final home: the nearest one above that holds logs or configuration and has no other of its format below."""
    formats: dict[Path, set[str]] = {}
    for reader, _, home in logs:
        formats.setdefault(home, set()).add(reader.id)
    out = {}
    for home, mine in formats.items():
        out[home] = home
        for above in list(home.parents)[:3]:
            if above != root and root not in above.parents:
                break
            if above not in formats and above not in configured:
                continue
            rivals = [h for h in formats if h != home and (above == h or above in h.parents) and formats[h] & mine]
            if not rivals:
                out[home] = above
            break
    return out


def _target(root: Path, home: Path, label: str, files: list[tuple[Reader, Path]], companions: list[tuple[Reader, Path]]) -> Target:
    near = {home, *(path.parent for _, path in files), *(p.parent.parent for _, p in files if p.parent != home and home in p.parents)}
    own = [(r.id, p) for r, p in companions if p.parent in near]
    name = home.name if home == root else str(home.relative_to(root))
    key = label.partition(":")[2]
    return Target(f"{name}/{key}" if key else name or str(home), home, (*((r.id, p) for r, p in files), *own))


# -- from what the readers found to one table


def read(target: Target) -> Run:
    """Reads all files of a target and assembles them; a reader that fails costs its files, and says so."""
    raws, problems = read_raw(target)
    return assemble(raws, name=target.name, path=str(target.home), problems=problems)


def read_raw(target: Target) -> tuple[list[RawRun], list[Problem]]:
    """What the readers found, one a reader or a set of dialects that share files, and what failed."""
    asked: dict[Path, list[str]] = {}
    for reader_id, path in target.files:
        asked.setdefault(path, []).append(reader_id)
    together: dict[tuple[str, ...], list[Path]] = {}
    for path, ids in asked.items():
        together.setdefault(tuple(ids), []).append(path)
    known = {r.id: r for r in registry.readers()}
    raws, problems = [], []
    for names, paths in together.items():
        try:
            readers = [known[n] for n in names]
            raws.append(readers[0].read(paths) if len(readers) == 1 else transcribe(paths, readers))
        except Exception as error:
            where = ", ".join(str(p) for p in paths[:3])
            what = f"the {'+'.join(names)} reader failed ({type(error).__name__}: {error}); its files are left out"
            problems.append(Problem(where, what))
    return raws, problems


def assemble(raws: Sequence[RawRun], *, name: str, path: str = "", problems: Iterable[Problem] = ()) -> Run:
    """One run table from what several readers found about one run: names mapped, sample axes turned into steps, attempts counted."""
    sources: list[Source] = []
    found: list[tuple[RawSeries, int]] = []
    odd = list(problems)
    logged: list[Setting] = []
    events: list[Event] = []
    facts: dict[str, Any] = {}
    for raw in sorted(raws, key=lambda r: not r.series):  # companions last: what the run itself said wins
        found += [(s, len(sources) + s.source) for s in raw.series]
        sources += raw.sources
        logged = [*raw.settings, *logged] if not raw.series else [*logged, *raw.settings]
        events += raw.events
        odd += raw.problems
        facts = {**raw.facts, **facts}
        if raw.key:
            facts.setdefault("key", raw.key)
        if raw.clean_end is not None:
            facts.setdefault("clean_end", raw.clean_end)
    per_step = _samples_per_step(found, logged)
    if per_step:
        facts["samples_per_step"] = per_step
    unit = _main_axis(found, per_step)
    series = _merge(found, unit, per_step)
    return Run(
        name,
        path,
        unit,
        series,
        settings=tuple(logged),
        events=tuple(events),
        sources=tuple(sources),
        problems=tuple(odd),
        facts=Frozen(facts),
    )


def _axis(series: RawSeries) -> str:
    if series.axis == "step" and series.name.startswith("Train/Samples/"):
        return "samples"  # the DeepSpeed monitor counts samples in every writer (formats: monitor files)
    return series.axis


def _samples_per_step(found: Sequence[tuple[RawSeries, int]], logged: Sequence[Setting]) -> int | None:
    """Samples of one optimizer step, from the configuration when the sample axis agrees with it, else from the axis itself."""
    axes = [s.steps for s, _ in found if _axis(s) == "samples" and len(s.steps) > 2]
    if not axes:
        return None
    gaps = np.concatenate([np.diff(a) for a in axes])
    gaps = gaps[gaps > 0]
    batch = settings.canonical(logged).get("batch.global")
    if batch is not None and isinstance(batch.value, (int, float)) and batch.value >= 1:
        size = int(batch.value)
        if len(gaps) and float(np.mean(gaps % size == 0)) > 0.9:
            return size
    return int(np.gcd.reduce(gaps)) if len(gaps) and int(np.gcd.reduce(gaps)) > 0 else None


def _main_axis(found: Sequence[tuple[RawSeries, int]], per_step: int | None) -> str:
    """The axis of the training loss, else the axis with most points; samples become steps when the batch is known."""
    weights: dict[str, float] = {}
    for series, _ in found:
        axis = "step" if per_step and _axis(series) == "samples" else _axis(series)
        bonus = 1e9 if metrics.canonical(series.name, series.group) == "loss/train" else 0.0
        weights[axis] = weights.get(axis, 0.0) + len(series.steps) + bonus * (axis != "row") * bool(len(series.steps))
    weights = {a: w for a, w in weights.items() if a != "row" or len(weights) == 1}
    return max(weights, key=lambda a: (weights[a], a)) if weights else "step"


def _merge(found: Sequence[tuple[RawSeries, int]], unit: str, per_step: int | None) -> tuple[Series, ...]:
    """Series by (metric, tag, rank, group): files of one writer are joined, and attempts go on counting from file to file."""
    groups: dict[tuple[str, str, int | None, str], list[tuple[RawSeries, int, Steps]]] = {}
    for series, source in found:
        steps, axis = series.steps, _axis(series)
        if axis == "samples" and per_step:
            steps, axis = steps // per_step, "step"
        name = metrics.canonical(series.name, "" if series.group == "system" else series.group)
        if series.group == "system":
            name = series.name
        elif axis not in (unit, "row"):
            name = f"{name} by {axis}"
        elif axis == "row" and unit != "row":
            name = f"{name} by row"
        groups.setdefault((name, series.name, series.rank, series.group), []).append((series, source, steps))
    out: list[Series] = []
    for (name, tag, rank, _), parts in groups.items():
        attempt, top = 0, None
        for series, source, steps in sorted(parts, key=lambda p: p[1]):
            if not len(steps):
                continue
            attempt += int(top is not None and int(steps[0]) <= top)
            counted = np.minimum(attempts_of(steps).astype(np.int64) + attempt, 32767).astype(np.int16)
            out.append(ordered(name, tag, steps, series.values, series.times, rank=rank, source=source, attempts=counted))
            attempt, top = int(counted[-1]), int(steps.max())
    return tuple(sorted(out, key=lambda s: (s.metric, -1 if s.rank is None else s.rank, s.source, s.logged_as)))


def renamed(run: Run, name: str) -> Run:
    """The same run under another name."""
    return replace(run, name=name)
