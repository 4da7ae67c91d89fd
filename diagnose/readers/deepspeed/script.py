"""Lines of DeepSpeed's example scripts beside the engine's: DeepSpeed-Chat's rewards, latencies, perplexities and epochs."""

from __future__ import annotations

import re

from diagnose.readers.deepspeed.columns import Said
from diagnose.texts import NUM, number
from diagnose.transcript import Page

_REWARD = re.compile(rf"average reward score: (?P<v>{NUM})")
_LATENCY = re.compile(rf"(?P<key>[A-Za-z0-9][\w ]{{0,40}})=(?P<v>{NUM})s? ?")
_PPL = re.compile(rf"ppl: (?P<ppl>{NUM})(?:, loss: (?P<loss>{NUM}))?")
_CHOSEN = re.compile(rf"chosen_last_scores \(higher is better\) : (?P<chosen>{NUM}), acc \(higher is better\) : (?P<acc>{NUM})")
_EPOCH_LOSS = re.compile(rf"Epoch (?P<at>\d{{1,9}})/\d{{1,9}} with loss (?P<loss>{NUM})")
_MODEL = re.compile(rf"(?P<key>Latency|TFLOPs|Samples/sec|Time/seq):? (?P<v>{NUM})")
_EVALUATING = re.compile(r"\*{3,9} Evaluating (?P<what>[\w ]{1,40}), Epoch \d{1,9}/\d{1,9} \*{3,9}")
_BEGINNING = re.compile(r"Beginning of Epoch \d{1,9}/(?P<epochs>\d{1,9}), (?P<key>Total \w{1,20} Batches) (?P<n>\d{1,12})")


class Script:
    """Reads the lines of DeepSpeed's own example scripts."""

    def take(self, said: Said, out: Page) -> bool:
        """Whether the line holds a metric of such a script."""
        return self._chat(said, out)

    def _chat(self, said: Said, out: Page) -> bool:
        """DeepSpeed-Chat lines that name no step take that of the last line that did."""
        text, line = said.text, said.line
        step = out.hint if out.hint is not None else out.step or 0
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

    def _evaluation(self, said: Said, out: Page) -> bool:
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
