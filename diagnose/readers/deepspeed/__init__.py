"""DeepSpeed's console text, from 0.2 to 0.19.

Knows the engine's lines (progress, throughput, overflow and loss scale, timers, pipeline, comms, memory, configuration,
launcher) and DeepSpeed-Chat's. The engine does not print the loss: the script's own lines are read by whatever dialect knows
them, else by recurrence. Names stay as logged: `skipped` is cumulative, `loss scale` is what overflow and scale lines say where
nothing else logs it, `lr[1]` is the second parameter group where it differs from the first. Timers are `time (ms)/fwd`; they name
no step, so they count rows, except where there is one timer line a step and progress lines agree with that. Placeholders
(`loss scale: -1.0`, `grad norm: 0.000` for a whole Megatron run) are handed over too.

Since 0.17.6 the engine's lines need `"log_level": "info"`: their absence proves nothing. The monitor's files are read
elsewhere: CSV by `deepspeed_csv`, TensorBoard by the TensorBoard reader, where its tags are `Train/Samples/*` and the
step counts samples.
"""

from __future__ import annotations

import re

from diagnose.readers.deepspeed.columns import Said
from diagnose.readers.deepspeed.config import ConfigDump
from diagnose.readers.deepspeed.engine import Engine
from diagnose.readers.deepspeed.script import Script
from diagnose.texts import Line
from diagnose.transcript import Page, console_reader

_HEADER = re.compile(r" ?\[(?P<level>[A-Z]{4,8})\] \[(?P<file>[\w.-]{1,80}):\d{1,6}:[\w<>]{1,80}\] ?")
_RANK = re.compile(r"(?:\[Rank (?P<a>-?\d{1,6})\]|rank=(?P<b>\d{1,6})) ")
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


class DeepSpeed:
    """One file, line by line. A line goes to the first part that knows it."""

    def __init__(self) -> None:
        self._config, self._engine, self._script = ConfigDump(), Engine(), Script()

    def take(self, line: Line, page: Page) -> bool:
        """Whether the line is DeepSpeed's."""
        said = _said(line)
        if not said.text or said.text.isspace():
            return True  # the header of a message that begins with a line feed
        return any(part.take(said, page) for part in (self._config, self._engine, self._script))

    def close(self, page: Page) -> None:
        """What only the whole file tells."""
        self._config.close(page)
        self._engine.close(page)


def _said(line: Line) -> Said:
    """The line without logger header and `[Rank N]`."""
    text, origin, level, rank = line.text, "", "", line.rank
    if found := _HEADER.match(text):
        text, origin, level = text[found.end() :], found["file"], found["level"]
    if found := _RANK.match(text):
        text = text[found.end() :]
        said = int(found["a"] or found["b"] or -1)
        rank = said if said >= 0 and rank is None else rank
    return Said(line, text, rank, origin, level)


READER = console_reader("deepspeed", "DeepSpeed console log", _OURS, DeepSpeed, priority=70, partial=True, framework="deepspeed")
