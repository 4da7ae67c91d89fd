"""TensorBoard event files (`*tfevents*`) of torch, tensorboardX, TensorFlow, Lightning, HF, DeepSpeed and all others.

Every number becomes a point under its tag: simple values, and tensors of one element in every type. Of each histogram
`<tag>/min`, `/max`, `/mean`, `/std`, `/norm` (root of the sum of squares) are kept, and `/zeros`, the share of values that are 0
where the buckets tell it. TF2's bucket tables hold no sums, so their mean, std and norm are taken from the bucket centres.
Hyperparameters and configurations written as text become settings. Images, audio and graphs are not read.

Sub-directories that writers make belong to the run above them: see `_home`. Nothing is stitched: a file that a restart wrote
is a series of its own, in the order of the file.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from struct import unpack_from
from typing import Any

from diagnose.model import Event, Frozen, Problem, Setting, Source
from diagnose.parts import RawRun, RawSeries, Reader
from diagnose.readers.tensorboard import wire
from diagnose.readers.tensorboard.crc import checksum, masked
from diagnose.readers.tensorboard.frames import FRAME, HEADER
from diagnose.readers.tensorboard.log import GZIP, Log, read_log

_EMPTY = ".profile-empty"  # Keras writes it so that the profiler finds a run; it never holds a summary
_HEAD = 1 << 16  # bytes looked at to claim a file or to find its home
_VERSION = b"brain.Event:"
_SPLITS = frozenset({"train", "training", "validation", "val", "valid", "eval", "evaluation", "test"})
_FOLDERS = frozenset({"tb", "tensorboard", "tfevents", "tb_logs"})  # of one run's event files; DeepSpeed puts a job's name below
_RANK = re.compile(r"rank[_-]?(\d{1,6})$", re.I)
_SECOND = re.compile(r"(.*tfevents\.\d+)")
_SAMPLES = "Train/Samples/"  # DeepSpeed's monitor: the step of these is the number of samples


# -- is it mine, and whose is it


def _head(path: Path, most: int = _HEAD) -> bytes:
    with path.open("rb") as file:
        head = file.read(most)
    if head[:2] == GZIP:
        return zlib.decompressobj(wbits=31).decompress(head, most)
    return head


def _framed(head: bytes) -> bool:
    return len(head) >= HEADER and masked(checksum(head[:8])) == unpack_from("<I", head, 8)[0]


def _claims(path: Path) -> bool:
    try:
        name = path.name
        if name.endswith(_EMPTY) or not path.is_file():
            return False
        head = _head(path, 4096 if "tfevents" in name else 64)
        framed, says = _framed(head), _VERSION in head[:64]
        if "tfevents" in name:
            return framed or says or len(head) < HEADER or not any(head)
        return framed and says
    except (OSError, ValueError, zlib.error):
        return "tfevents" in path.name and path.name.endswith(".gz") and path.is_file()


def _first_tags(path: Path) -> list[bytes]:
    """The tags in the first 64 KiB of a file, in order."""
    tags: list[bytes] = []
    try:
        head = _head(path)
        at = 0
        while at + FRAME <= len(head):
            length = unpack_from("<Q", head, at)[0]
            if at + FRAME + length > len(head):
                break
            payload = head[at + HEADER : at + HEADER + length]
            parsed = wire.event(payload)
            spans = [s.tag for s in parsed.slots] + [o.tag for o in parsed.others]
            tags += [payload[slice(*span)] for span in spans]
            at += FRAME + length
    except (OSError, ValueError, zlib.error):
        pass
    return tags


def _has_events(folder: Path) -> bool:
    try:
        return any("tfevents" in p.name and not p.name.endswith(_EMPTY) and p.is_file() for p in folder.iterdir())
    except OSError:
        return False


def _part_of(folder: str, tag: str) -> str | None:
    """The key under which `add_scalars(tag, {key: ...})` made this folder, if it did: torch names it `<tag>_<key>`."""
    for stem in (tag.replace("/", "_") + "_", tag.replace(" ", "_").replace("/", "_") + "_"):
        if tag and folder.startswith(stem) and len(folder) > len(stem):
            return folder[len(stem) :]
    return None


def _home(path: Path) -> Path:
    """The run's directory: the file's own, or one above it by these rules, applied again to what they give (three times at most).

    `train`, `validation`, `eval`, `test`, ... and `rank_N` belong to the directory above. So does what `add_scalars` and
    `add_hparams` made: a directory below one with event files, named by its only tag or holding hyperparameters. So do
    `tb` and `tensorboard`, and the only directory below one of these (DeepSpeed's job name).
    """
    folder = path.parent
    for _ in range(3):
        above = folder.parent
        if above == folder or not folder.name:
            break
        if not (_by_name(folder) or (folder == path.parent and _has_events(above) and _made_by_writer(path))):
            break
        folder = above
    return folder


def _by_name(folder: Path) -> bool:
    if folder.name.lower() in _SPLITS | _FOLDERS or _RANK.match(folder.name):
        return True
    if folder.parent.name.lower() not in _FOLDERS:
        return False
    try:
        return [p.name for p in folder.parent.iterdir()] == [folder.name]
    except OSError:
        return False


def _made_by_writer(path: Path) -> bool:
    tags = [t.decode("utf-8", "replace") for t in _first_tags(path)]
    if any(t == "_hparams_/session_start_info" for t in tags):
        return True
    return bool(tags) and len(set(tags)) == 1 and _part_of(path.parent.name, tags[0]) is not None


# -- what does it say


def _read(paths: Sequence[Path]) -> RawRun:
    chosen, problems = _distinct([Path(p) for p in paths])
    logs = sorted((read_log(p) for p in chosen), key=_order)
    series: list[RawSeries] = []
    events: list[Event] = []
    for k, log in enumerate(logs):
        found = _series(log, k)
        series += found
        later = any(o.path.parent == log.path.parent and (len(o.points.tags) or o.starts) for o in logs[:k])
        events += [e for n, e in enumerate(log.starts) if later or n]
        events += log.events
        problems += log.problems
    settings, changed = _settings(logs)
    return RawRun(
        tuple(series), settings=settings, events=(*events, *changed), problems=tuple(problems),
        sources=tuple(Source(str(log.path), "tensorboard", log.version) for log in logs),
        clean_end=True if logs and logs[-1].stopped else None,  # torch never writes STOP, so its absence proves nothing
        facts=Frozen(_facts(logs, series)),
    )  # fmt: skip


def _distinct(paths: list[Path]) -> tuple[list[Path], list[Problem]]:
    """Each file once, without stubs, and without the packed copy of a file that is there too."""
    unique = {path.resolve(): path for path in reversed(paths)}
    kept, problems = [], []
    for target, path in reversed(unique.items()):
        if path.name.endswith(_EMPTY):
            continue
        if path.suffix == ".gz" and target.with_suffix("") in unique:
            problems.append(Problem(str(path), f"is a packed copy of {path.stem} beside it; not read"))
            continue
        kept.append(path)
    return kept, problems


def _order(log: Log) -> tuple[str, str, float, str]:
    """By directory, then the second in the name, then the first wall time: names of one second sort by process, not by time."""
    second = _SECOND.match(log.path.name)
    first = log.first_time
    return str(log.path.parent), second[1] if second else log.path.name, first if math.isfinite(first) else math.inf, log.path.name


def _series(log: Log, source: int) -> list[RawSeries]:
    inner = log.path.parent.parts[len(_home(log.path).parts) :]
    rank = next((int(m[1]) for part in inner if (m := _RANK.match(part))), None)
    inner = tuple(p for p in inner if not _RANK.match(p) and p.lower() not in _FOLDERS and not _is_job(p, log.path))
    found = []
    for raw, steps, times, values in log.points.series():
        name, group = raw.decode("utf-8", "replace"), "/".join(inner)
        part = _part_of(inner[-1], name) if inner else None
        if part is not None:
            name, group = f"{name}/{part}", "/".join(inner[:-1])
        if name == "hp_metric":  # Lightning writes -1 when no metric was given
            said = values != -1
            columns = (_frozen(steps[said]), _frozen(values[said]), _frozen(times[said]))
        else:
            columns = (steps, values, times)
        if len(columns[0]):
            axis = "samples" if name.startswith(_SAMPLES) else "step"
            found.append(RawSeries(name, columns[0], columns[1], times=columns[2], rank=rank, axis=axis, group=group, source=source))
    return found


def _is_job(part: str, path: Path) -> bool:
    return path.parent.name == part and path.parent.parent.name.lower() in _FOLDERS


def _frozen(column: Any) -> Any:
    column.flags.writeable = False
    return column


def _settings(logs: Sequence[Log]) -> tuple[tuple[Setting, ...], list[Event]]:
    """Later files win; what they change is an event."""
    settings: dict[str, Setting] = {}
    changed: list[Event] = []
    for log in logs:
        for name, setting in log.settings.items():
            before = settings.get(name)
            if before is not None and before.value != setting.value and str(before.value) != str(setting.value):
                said = f"{name} was {str(before.value)[:60]} and is {str(setting.value)[:60]} in {log.path.name}"
                changed.append(Event("config", said, where=setting.where))
            settings[name] = setting
    return tuple(settings.values()), changed[:100]


def _facts(logs: Sequence[Log], series: Sequence[RawSeries]) -> dict[str, Any]:
    names = {s.name for s in series}
    writers = [log.writer for log in logs if log.writer]
    facts: dict[str, Any] = {"events": sum(log.records for log in logs)} if logs else {}
    if writers:
        facts["writer"] = writers[0]
    framework = _framework(names, logs, writers[0] if writers else "")
    if framework:
        facts["framework"] = framework
    other = [tag for log in logs for tag in log.other_tags if tag not in names]
    if other:
        facts["not_numeric"] = list(dict.fromkeys(other))[:100]
    return facts


def _framework(names: set[str], logs: Sequence[Log], writer: str) -> str:
    """Who wrote it, only when the tags or the writer's own name show it."""
    tags = names | {tag.decode("utf-8", "replace") for log in logs for tag in log.points.tags}
    texts = {tag for log in logs for tag in log.texts}
    if any(n.startswith(_SAMPLES) for n in names):
        return "deepspeed"
    if "args/text_summary" in texts and {"model_config/text_summary", "train/total_flos", "train/epoch"} & (texts | names):
        return "hf"
    if "hp_metric" in tags:
        return "lightning"
    if "lm loss vs samples" in names or "lm-loss-training/lm loss vs samples" in names:
        return "megatron"
    if writer.startswith("tensorflow"):
        return "tensorflow"
    return "pytorch" if writer == "tensorboard.summary.writer.event_file_writer" else ""


READER = Reader("tensorboard", "TensorBoard event files", _claims, _read, home=_home, priority=90)
