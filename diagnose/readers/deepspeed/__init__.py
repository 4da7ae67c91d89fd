"""DeepSpeed's console text, from 0.2 to 0.19, with the script's own metric lines in it.

Knows the engine's lines (progress, throughput, overflow and loss scale, timers, pipeline, comms, memory, configuration,
launcher), Megatron-DeepSpeed's and DeepSpeed-Chat's lines, and finds other `key: value` series by recurrence. Names stay as
logged: `skipped` is cumulative, `loss scale` is what overflow and scale lines say where nothing else logs it, `lr[1]` is
the second parameter group where it differs from the first. Timers are `time (ms)/fwd`; they name no step, so they count rows,
except where there is one timer line a step and progress lines agree with that. Placeholders (`loss scale: -1.0`,
`grad norm: 0.000` for a whole Megatron run) are handed over too.

Since 0.17.6 the engine's lines need `"log_level": "info"`: their absence proves nothing. The monitor's files are read
elsewhere: CSV by `deepspeed_csv`, TensorBoard by the TensorBoard reader, where its tags are `Train/Samples/*` and the
step counts samples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diagnose.model import Frozen, Problem, Source
from diagnose.parts import RawRun, RawSeries, Reader
from diagnose.readers.deepspeed.config import ConfigDump
from diagnose.readers.deepspeed.engine import Engine
from diagnose.readers.deepspeed.failures import Failures
from diagnose.readers.deepspeed.gathered import Gathered, Said
from diagnose.readers.deepspeed.script import Script
from diagnose.texts import Line, head, lines

_HEADER = re.compile(r" ?\[(?P<level>[A-Z]{4,8})\] \[(?P<file>[\w.-]{1,80}):\d{1,6}:[\w<>]{1,80}\] ?")
_RANK = re.compile(r"(?:\[Rank (?P<a>-?\d{1,6})\]|rank=(?P<b>\d{1,6})) ")
_FILE_RANK = re.compile(r"(?i)\brank[_-]?(?P<rank>\d{1,6})\b")

_COMPRESSED = re.compile(r"(?i)\.(?:gz|bz2|xz)$|\.\d{1,3}$")  # and rotations
_STREAM = re.compile(r"(?i)(?:^|[._-])(?:rank[_-]?\d{1,6}|stdout|stderr|out|err|log|txt)(?=$|[._-])")

_OURS = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] \[[A-Z]{4,8}\] \[[\w.-]{1,80}:\d{1,6}:[\w<>]{1,80}\]"  # DeepSpeed's logger
    r"|\[(?:deepspeed|deepscale)\] (?:OVERFLOW|fp16 dynamic)"
    r"|(?:Running|Curr)\w{0,30}SamplesPerSec=\d|/\d{1,12}, SamplesPerSec=\d"
    r"|time \(ms\) \| (?:fwd|bwd|forward|backward|optimizer)_\w{1,40}: \d"
    r"|comm op: \w{1,40} \| time \(ms\): \d|Comm\. Op {4,40}Message Size {4,40}Count"
    r"|epoch: \d{1,9}\|step: \d{1,12}\|ppo_ep: \d|\|E2E latency=\d"  # DeepSpeed-Chat
    r"|Beginning of Epoch \d{1,9}/\d{1,9}, Total (?:Micro|Generation) Batches \d"
    r"|DeepSpeed C\+\+/CUDA extension op report"
)
_NOT_CONSOLE = (".md", ".py", ".rst", ".ipynb", ".json", ".csv", ".yaml", ".yml", ".html", ".xml")  # they quote logs
_NOT_TEXT = (b":W&B", b"SQLite", b"PAR1", b"PK\x03\x04", b"\x89HDF", b"\x80\x02", b"\x93NUM")


def claims(path: Path) -> bool:
    """Whether the first 64 KiB hold a line of DeepSpeed's own shape; the name only excludes."""
    try:
        if path.suffix.lower() in _NOT_CONSOLE or "tfevents" in path.name or not path.is_file():
            return False
        with path.open("rb") as file:
            if file.read(8).startswith(_NOT_TEXT):
                return False
        return bool(_OURS.search(head(path)))
    except (OSError, ValueError):
        return False


def key(path: Path) -> str:
    """What the file's name says beside rank, stream, rotation and suffix: files that agree in it are one run."""
    name = path.name
    while (shorter := _COMPRESSED.sub("", name)) != name:
        name = shorter
    return _STREAM.sub("", name).strip("._-")


def _said(line: Line, file_rank: int | None) -> Said:
    """The line without logger header and `[Rank N]`."""
    text, origin, level = line.text, "", ""
    if found := _HEADER.match(text):
        text, origin, level = text[found.end() :], found["file"], found["level"]
    rank = line.rank if line.rank is not None else file_rank
    if found := _RANK.match(text):
        text = text[found.end() :]
        said = int(found["a"] or found["b"] or -1)
        rank = said if said >= 0 and rank is None else rank
    if line.rank is None and file_rank is not None:
        line = replace(line, rank=file_rank)
    return Said(line, text, rank, origin, level)


def _file(path: Path) -> Gathered:
    """One file, line by line. A line goes to the first part that knows it."""
    out = Gathered(path.name)
    named = _FILE_RANK.search(path.name)
    file_rank = int(named["rank"]) if named else None
    config, engine, script, failures = ConfigDump(), Engine(), Script(), Failures()
    parts = (config, engine, failures, script)
    count = 0
    for line in lines(path, out.problems):
        count = line.number
        if line.time is not None:
            out.first_time = line.time if out.first_time is None else out.first_time
            out.last_time = line.time
        said = _said(line, file_rank)
        if said.text and not said.text.isspace():
            for part in parts:
                if part.take(said, out):
                    break
    script.close(count, out)
    for closing in (config, engine, failures):
        closing.close(out)
    if script.miner.repeats:
        what = f"{script.miner.repeats} lines that repeat another rank's were left out"
        out.problems.append(Problem(where=path.name, what=what))
    if script.miner.overflowed:
        out.problems.append(Problem(where=path.name, what=f"over {script.miner.most_templates} shapes of line; the rest was not searched"))
    return out


def read(paths: Sequence[Path]) -> RawRun:
    """Reads console files of one run in the order given."""
    found = [_file(Path(p)) for p in paths]
    series: list[RawSeries] = [s for i, f in enumerate(found) for s in f.series(i)]
    facts: dict[str, Any] = {"framework": "deepspeed"}
    times = [t for f in found for t in (f.first_time, f.last_time) if t is not None]
    if times:
        facts["started"], facts["ended"] = min(times), max(times)
    settings = tuple(s for f in found for s in f.settings.values())
    sizes = [s.value for s in settings if s.name == "world_size" and isinstance(s.value, int)]
    if sizes:
        facts["world_size"] = max(sizes)
    ends = [f.clean_end for f in found if f.clean_end is not None]
    return RawRun(
        tuple(series),
        settings=settings,
        events=tuple(e for f in found for e in f.events),
        problems=tuple(p for f in found for p in f.problems),
        sources=tuple(Source(str(p), "deepspeed", f.version) for p, f in zip(paths, found, strict=True)),
        clean_end=all(ends) if ends else None,
        facts=Frozen(facts),
    )


READER = Reader("deepspeed", "DeepSpeed console log", claims, read, key=key, priority=70)
