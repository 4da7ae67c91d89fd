"""The end of a log without its numbers: a traceback, an NCCL timeout, an out-of-memory line, a job that Slurm ended.

People paste what they see last. Such text holds no metric, and still tells how the run ended, on which rank and where in the code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from diagnose import texts
from diagnose.console import Facts
from diagnose.transcript import Page, console_reader

_TELLING = frozenset(
    ("traceback", "oom", "nccl-timeout", "host-oom", "disk-full", "time-limit", "preempted", "cancelled", "hardware", "scale-floor")
)
_NOT_LOGS = frozenset(
    (
        ".py",
        ".ipynb",
        ".json",
        ".jsonl",
        ".csv",
        ".tsv",
        ".html",
        ".htm",
        ".xml",
        ".yaml",
        ".yml",
        ".toml",
        ".rst",
        ".js",
        ".c",
        ".cpp",
        ".h",
    )
)


def claims(path: Path) -> bool:
    """Text in whose first or last 64 KiB a program ends with an error that is known."""
    try:
        if path.suffix.lower() in _NOT_LOGS:
            return False
        pieces = [texts.head(path)]
        if (size := path.stat().st_size) > texts.BLOCK:
            with path.open("rb") as file:
                file.seek(max(0, size - texts.BLOCK))
                pieces.append(file.read(texts.BLOCK).decode("utf-8", "replace"))
        if "\0" in pieces[0][:1024]:
            return False
        return any(_tells(path, piece) for piece in pieces)
    except Exception:  # a test that is False in doubt
        return False


def _tells(path: Path, text: str) -> bool:
    facts = Facts(path)
    for i, line in enumerate(text.splitlines(), 1):
        rest, rank, time = texts.peel(line)
        facts.take(texts.Line(i, rest, rank, time))
    facts.close()
    return any(e.kind in _TELLING for e in facts.events)


class Ending:
    """No line of its own: the facts that any console tells are all there is."""

    def take(self, line: texts.Line, page: Page) -> bool:
        """Never: the facts were looked for before."""
        return False

    def close(self, page: Page) -> None:
        """Nothing is open."""


READER = replace(
    console_reader("crash", "the end of a run in words (traceback, NCCL, Slurm)", bool, Ending, priority=5, fallback=True), claims=claims
)
