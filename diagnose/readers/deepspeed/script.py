"""Lines of the training script beside the engine's: Megatron-DeepSpeed pairs, DeepSpeed-Chat, and whatever names a step.

The engine does not print the loss; the script does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from diagnose.readers.deepspeed.gathered import Gathered, Said
from diagnose.texts import NUM, Line, Miner, number

_ITERATION = re.compile(r"\biteration\s{1,20}(?P<at>\d{1,18})/\s{0,20}(?P<total>\d{1,18}) \|(?P<body>.*)")
_CELL = re.compile(  # 2019 had no colon
    rf"\s{{0,4}}+(?P<key>[^|:\d][^|:]{{0,80}}?):?\s{{1,30}}+(?P<value>{NUM})%?(?:[A-Za-z/]{{0,12}})\s{{0,4}}$"
)
_VALIDATION = re.compile(r"validation(?P<set>-[\w.-]{1,60})? loss at (?:iteration (?P<at>\d{1,18})|[^|]{1,80}) \|(?P<body>.*)")
_MEMORY = re.compile(r"\(after (?P<at>\d{1,18}) iterations\) memory \(MB\) \|(?P<body>.*)")
_REWARD = re.compile(rf"average reward score: (?P<v>{NUM})")
_LATENCY = re.compile(rf"(?P<key>[A-Za-z0-9][\w ]{{0,40}})=(?P<v>{NUM})s? ?")
_PPL = re.compile(rf"ppl: (?P<ppl>{NUM})(?:, loss: (?P<loss>{NUM}))?")
_CHOSEN = re.compile(rf"chosen_last_scores \(higher is better\) : (?P<chosen>{NUM}), acc \(higher is better\) : (?P<acc>{NUM})")
_EPOCH_LOSS = re.compile(rf"Epoch (?P<at>\d{{1,9}})/\d{{1,9}} with loss (?P<loss>{NUM})")
_MODEL = re.compile(rf"(?P<key>Latency|TFLOPs|Samples/sec|Time/seq):? (?P<v>{NUM})")
_EVALUATING = re.compile(r"\*{3,9} Evaluating (?P<what>[\w ]{1,40}), Epoch \d{1,9}/\d{1,9} \*{3,9}")
_BEGINNING = re.compile(r"Beginning of Epoch \d{1,9}/(?P<epochs>\d{1,9}), (?P<key>Total \w{1,20} Batches) (?P<n>\d{1,12})")
_BAR = re.compile(r"(?<![\d/])(?P<at>\d{1,9})/(?P<total>\d{1,9}) \[\d")  # tqdm
_HF_ROW = re.compile(r"\{'(?:loss|eval_\w{1,60}|train_\w{1,60}|reward)': .{0,4000}")
_HF_PAIR = re.compile(rf"'(?P<key>[\w/.-]{{1,80}})': '?(?P<value>{NUM})'?(?=[,}}])")
_SKIPPED = "number of skipped iterations"


@dataclass(slots=True)
class Script:
    """Reads the script's metric lines; knows which losses an iteration line used to have."""

    miner: Miner = field(default_factory=Miner)
    _losses: dict[str, None] = field(default_factory=dict)
    _at: int = 0
    _bars: dict[int, int] = field(default_factory=dict)
    _bar: int | None = None

    def take(self, said: Said, out: Gathered) -> bool:
        """Whether the line holds a metric of the script."""
        text = said.text
        if "iteration" in text and "|" in text and self._megatron(said, out):
            return True
        if self._chat(said, out) or self._trainer(said, out):
            return True
        points = self.miner.feed(said.line)
        for p in points:
            line = said.line if p.line == said.line.number else Line(p.line, "", p.rank, p.time)
            out.point(p.name, p.step, p.value, line, axis=p.axis, group=p.group, rank=p.rank)
        if points and points[-1].axis == "step":
            self._named(points[-1].step, out)
        elif "|ppo_ep: " in text and self.miner.step is not None:  # known, though not yet recurred
            self._named(self.miner.step, out)
        return bool(points)

    def _named(self, step: int, out: Gathered) -> None:
        """A script's step counts for lines that name none, unless progress lines count otherwise (micro-steps, from 0)."""
        values = out.columns_at("skipped", "step")
        if not values or (out.step is not None and out.step < step <= out.step + 1):
            out.step = step

    def close(self, lines_read: int, out: Gathered) -> None:
        """Takes what the miner has left of a short file."""
        for p in self.miner.close(lines_read):
            out.point(p.name, p.step, p.value, Line(p.line, "", p.rank, p.time), axis=p.axis, group=p.group, rank=p.rank)

    def _trainer(self, said: Said, out: Gathered) -> bool:
        """Hugging Face rows, whose step is that of the progress bar; bars of other work (fewer redraws) are passed over."""
        text = said.text
        if "it" in text and " [" in text and (bar := _BAR.search(text)):
            total = int(bar["total"])
            if total in self._bars or len(self._bars) < 1000:
                self._bars[total] = self._bars.get(total, 0) + 1
            if self._bars.get(total) == max(self._bars.values()):
                self._bar = int(bar["at"])
                if not out.columns_at("skipped", "step"):
                    out.step = self._bar
        if "{'" not in text or not (row := _HF_ROW.search(text)):
            return False
        for pair in _HF_PAIR.finditer(row.group()):
            if (value := number(pair["value"])) is None:
                continue
            if self._bar is None:
                out.row(pair["key"], value, said.line)
            else:
                out.point(pair["key"], self._bar, value, said.line)
        return True

    def _megatron(self, said: Said, out: Gathered) -> bool:
        text = said.text
        if found := _ITERATION.search(text):
            self._iteration(found, said, out)
        elif found := _VALIDATION.search(text):
            step = int(found["at"]) if found["at"] else out.step
            for key, value in _cells(found["body"]):
                if step is not None:
                    out.point(key, step, value, said.line, group=f"validation{found['set'] or ''}")
            out.event("eval", f"validation at iteration {step}", said.line, step=step)
        elif found := _MEMORY.search(text):
            for key, value in _cells(found["body"]):
                out.point(f"memory (MB)/{key}", int(found["at"]), value, said.line, rank=said.rank)
        else:
            return False
        return True

    def _iteration(self, found: re.Match[str], said: Said, out: Gathered) -> None:
        """One line of pairs. A loss that earlier lines had and this one lacks was NaN: Megatron prints a loss only if
        it compares greater than 0. It is not NaN where every iteration of the interval was skipped.
        """
        at = int(found["at"])
        cells = dict(_cells(found["body"]))
        for key, value in cells.items():
            out.point(key, at, value, said.line)
        all_skipped = cells.get(_SKIPPED, 0.0) >= max(1, at - self._at) and at > self._at
        complete = found["body"].rstrip().endswith("|")  # else the file ends inside the line
        for key in self._losses:
            if key not in cells and complete and not all_skipped:
                out.point(key, at, float("nan"), said.line)
        for key in cells:
            if re.search(r"\bloss$", key.replace("_", " ")) and "scale" not in key:
                self._losses[key] = None
        out.setting("train_iters", int(found["total"]), said.line)
        out.step = self._at = at

    def _chat(self, said: Said, out: Gathered) -> bool:
        """DeepSpeed-Chat lines that name no step take that of the last line that did."""
        text, line = said.text, said.line
        step = self.miner.step if self.miner.step is not None else out.step or 0
        if "average reward score" in text and (found := _REWARD.search(text)):
            out.point("average reward score", step, number(found["v"]) or 0.0, line)
        elif "|E2E latency=" in text:
            for pair in _LATENCY.finditer(text):
                out.point(pair["key"].strip(), step, number(pair["v"]) or 0.0, line)
        elif text.startswith("Beginning of Epoch ") and (found := _BEGINNING.match(text)):
            out.setting(found["key"], int(found["n"]), line)
            out.setting("epochs", int(found["epochs"]), line)
        elif text.startswith("Epoch ") and (found := _EPOCH_LOSS.match(text)):
            out.point("loss", int(found["at"]), number(found["loss"]) or 0.0, line, axis="epoch", group="epoch")
        elif text.startswith("Model Parameters: "):
            for pair in _MODEL.finditer(text):
                out.row(pair["key"], number(pair["v"]) or 0.0, line)
        else:
            return self._evaluation(said, out)
        return True

    def _evaluation(self, said: Said, out: Gathered) -> bool:
        text, line = said.text, said.line
        if text.startswith("ppl: ") and (found := _PPL.match(text)):
            for key in ("ppl", "loss"):
                if found[key] and (value := number(found[key])) is not None:
                    out.point(key, out.step or 0, value, line, group="eval")
        elif "chosen_last_scores" in text and (found := _CHOSEN.search(text)):
            out.point("chosen_last_scores", out.step or 0, number(found["chosen"]) or 0.0, line, group="eval")
            out.point("acc", out.step or 0, number(found["acc"]) or 0.0, line, group="eval")
        elif "Evaluating" in text and (found := _EVALUATING.search(text)):
            out.event("eval", found["what"], line, step=out.step)
        else:
            return False
        return True


def _cells(body: str) -> list[tuple[str, float]]:
    """The `key: number` cells between bars; a cell without a number, or cut short by the end of the file, is left out."""
    found = [f for cell in body.split("|")[:-1] if (f := _CELL.match(cell[:160]))]
    return [(f["key"].strip(), value) for f in found if (value := number(f["value"])) is not None]
