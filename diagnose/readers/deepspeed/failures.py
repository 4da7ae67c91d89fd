"""How a run ended and where it began again: tracebacks, exit codes, out of memory, checkpoints."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from diagnose.model import Frozen
from diagnose.readers.deepspeed.gathered import Gathered, Said
from diagnose.texts import NUM, number

_ERROR = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,120})(?::(?: (?P<message>.*))?)?$")
_LAUNCHERS = ("ChildFailedError", "CalledProcessError")  # the launcher's own end: says that a rank failed, not why
_EXIT = re.compile(r"exits with return code = (?P<code>-?\d{1,9})")
_ELASTIC_EXIT = re.compile(r"failed \(exitcode: (?P<code>-?\d{1,9})\) local_rank: (?P<rank>\d{1,6})")
_GOOD_EXIT = re.compile(r"Process (?P<pid>\d{1,12}) exits successfully")
_TRIED = re.compile(rf"[Tt]ried to allocate (?P<size>{NUM}) (?P<unit>[KMG]i?B)")
_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0}
_SAVED = re.compile(
    r"Saving model checkpoint: |zero checkpoint saved |\[Torch\] Checkpoint \S{1,400} is ready now|successfully saved checkpoint"
    r"|^saving (?:the final )?model \.\.\."
)
_LOADED = re.compile(
    r"\[Torch\] Loading checkpoint from |successfully loaded checkpoint|loading \d{1,6} zero partition checkpoints"
    r"|rank: \d{1,6} loading checkpoint|Loading checkpoint from |Resuming (?:training )?from|Continuing training from checkpoint"
)
_STEP_IN_NAME = re.compile(r"(?:global_?step_?|iteration |iter_|checkpoint-)(?P<at>\d{1,18})")
_LONGEST_TRACEBACK = 400  # lines; ranks without a prefix interleave, a lost end must not swallow the log
_MOST_TYPES = 8  # different errors kept of ranks that can't be told apart
_MOST_OOM = 64


@dataclass(slots=True)
class Failures:
    """Reads ends and beginnings. The first error of each rank is an event; the launcher's own error counts only alone."""

    _open: dict[int | None, int] = field(default_factory=dict)  # lines read of the open traceback of a rank
    _seen: dict[int | None, set[str]] = field(default_factory=dict)
    _launcher: tuple[str, Said] | None = None
    _moments: dict[tuple[str, int | None], None] = field(default_factory=dict)
    _good: int = 0
    _good_event: int = -1
    _oom: dict[int | None, int] = field(default_factory=dict)

    def take(self, said: Said, out: Gathered) -> bool:
        """Whether the line is about an end or a checkpoint, and nothing else."""
        text = said.text
        if "out of memory" in text:
            self._out_of_memory(said, out)
        if self._open and said.line.rank in self._open and self._traceback(said, out):
            return True
        if text.startswith("Traceback (most recent call last):"):
            self._open[said.line.rank] = 0
            return True
        if "exit" in text and self._exit(said, out):
            return True
        return ("heckpoint" in text or "esuming" in text or text.startswith("saving ")) and self._checkpoint(said, out)

    def _traceback(self, said: Said, out: Gathered) -> bool:
        rank, text = said.line.rank, said.text
        self._open[rank] += 1
        if self._open[rank] > _LONGEST_TRACEBACK:
            del self._open[rank]
            return False
        if text[:1].isspace() or said.origin:
            return not said.origin
        found = _ERROR.match(text[:2000])
        if not found or (found["message"] is None and not found["type"][0].isupper() and "." not in found["type"]):
            return False
        if found["type"].lower() in ("traceback", "step", "loss", "epoch"):
            return False
        del self._open[rank]
        says = text.strip()
        if found["type"].rsplit(".", 1)[-1] in _LAUNCHERS:
            self._launcher = self._launcher or (says, said)
            return True
        seen = self._seen.setdefault(rank, set())
        if (rank is None and found["type"] not in seen and len(seen) < _MOST_TYPES) or not seen:
            out.event("traceback", says, said.line, step=out.step, rank=rank)
        seen.add(found["type"])
        out.clean_end = False
        return "loss scale already at minimum" not in text

    def _out_of_memory(self, said: Said, out: Gathered) -> None:
        rank = said.line.rank
        if rank in self._oom or len(self._oom) >= _MOST_OOM or "CUDA" not in said.text:
            return
        self._oom[rank] = 1
        numbers = {}
        if found := _TRIED.search(said.text):
            numbers["tried_gib"] = (number(found["size"]) or 0.0) * _GIB[found["unit"][0]]
        out.event("oom", said.text.strip(), said.line, step=out.step, rank=rank, numbers=numbers)

    def _exit(self, said: Said, out: Gathered) -> bool:
        if found := _GOOD_EXIT.search(said.text):
            self._good += 1
            if self._good_event < 0:
                self._good_event = out.event("exit", "a process exits successfully", said.line, step=out.step, numbers={"exit_code": 0.0})
            out.clean_end = out.clean_end is not False
        elif found := _EXIT.search(said.text) or _ELASTIC_EXIT.search(said.text):
            code = int(found["code"])
            rank = int(found["rank"]) if "rank" in found.groupdict() else said.line.rank
            out.event("exit", said.text.strip(), said.line, step=out.step, rank=rank, numbers={"exit_code": float(code)})
            out.clean_end = code == 0 and out.clean_end is not False
        else:
            return False
        return True

    def _checkpoint(self, said: Said, out: Gathered) -> bool:
        kind = "checkpoint" if _SAVED.search(said.text) else "resume" if _LOADED.search(said.text) else ""
        if not kind:
            return False
        found = _STEP_IN_NAME.search(said.text)
        step = int(found["at"]) if found else out.step
        if (kind, step) not in self._moments and len(self._moments) < 100_000:  # each rank and each file of it says so
            self._moments[(kind, step)] = None
            out.event(kind, said.text.strip(), said.line, step=step)
        return True

    def close(self, out: Gathered) -> None:
        """The launcher's error where nothing better was found; how many processes ended well."""
        if self._launcher and not any(self._seen.values()):
            says, said = self._launcher
            out.event("traceback", says, said.line, step=out.step)
            out.clean_end = False
        if self._good_event >= 0:
            event = out.events[self._good_event]
            numbers = Frozen({"exit_code": 0.0, "processes": float(self._good)})
            out.events[self._good_event] = replace(event, says=f"{self._good} processes exit successfully", numbers=numbers)
