"""Settings in the console: the engine's dump, its `json = {…}` block, launcher and optimizer lines."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from diagnose.readers.deepspeed.columns import Said, nest
from diagnose.texts import Line, parsed, shallow
from diagnose.transcript import Page

_DUMPED = re.compile(r"  (?P<key>\w{1,80}) (?:\.{1,80} | )?(?P<value>\S.*)$")  # `  gradient_clipping ............ 1.0`
_JSON = re.compile(r"  ?json ?= ?\{\s*$")  # DeepSpeedConfig.print_user_config
_ASSIGNED = re.compile(r"(?<= )(?=\w{1,60}=)")  # between the pairs of `enabled=True loss_scale=0.0`
_GROUPS = re.compile(r"\s{0,8}self\.(?P<key>\w{1,40}world_size|sequence_parallel_size)=(?P<value>\d{1,9})\b")
_LAUNCHER_FLAG = re.compile(r" --(?P<key>[A-Za-z][\w-]{0,60})(?: (?P<value>(?!--)\S{1,200}))?")
_FLOATS = re.compile(r"(?<=[\s:\[])([+-]?)(?:infinity|inf)(?=[\s,\]}]|$)")  # the dump's `infinity` is not JSON
_MOST_LINES = 3000  # of one block; the longest dump in the public logs has 250

# one line, one fact: the pattern, and the name under which it is kept (the config's own spelling where there is one)
_FACTS: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (cue, re.compile(pattern), name)
    for cue, pattern, name in (
        ("Basic Optimizer", r"DeepSpeed Basic Optimizer = (?P<v>\S{1,200})", "DeepSpeed Basic Optimizer"),
        ("Final Optimizer", r"DeepSpeed Final Optimizer = (?P<v>\S{1,200})", "DeepSpeed Final Optimizer"),
        ("configured LR", r"DeepSpeed using configured LR scheduler = (?P<v>\S{1,200})", "DeepSpeed LR Scheduler"),
        ("ZeRO stage", r"Creating torch\.\w{1,20} ZeRO stage (?P<v>\d) optimizer", "zero_optimization_stage"),
        ("ZeRO stage", r"Creating torch\.(?P<v>\w{1,20}) ZeRO stage \d optimizer", "dtype"),
        ("world_size", r"dist_world_size=(?P<v>\d{1,9})", "world_size"),
        ("world_size", r"Config mesh_device \S{1,80} world_size = (?P<v>\d{1,9})", "world_size"),
        ("WORLD INFO", r"WORLD INFO DICT: (?P<v>\{.{0,4000})", "WORLD INFO DICT"),
        ("model parameter", r"model parameter = (?P<v>[\d.]{1,20})", "model parameter"),
    )
)
_VERSION = re.compile(r"DeepSpeed info: version=(?P<v>[\w.+-]{1,60})")


@dataclass(slots=True)
class ConfigDump:
    """Reads settings; holds the block that is open. Lines with another logger header pass through an open block."""

    _key: str | None = None
    _start: Line | None = None
    _lines: list[str] = field(default_factory=list)

    def take(self, said: Said, out: Page) -> bool:
        """Whether the line belongs to a dump."""
        if self._key is not None and self._continued(said, out):
            return True
        if said.origin == "config.py" or said.text.startswith("  json"):
            return self._dump_line(said, out)
        return self._fact(said, out)

    def close(self, out: Page) -> None:
        """Says so when a block was never closed (the log was cut)."""
        if self._key is not None and self._start is not None:
            out.problem(f"the block '{self._key or 'json'}' has no end; it is left out", self._start)
        self._key = None

    def _continued(self, said: Said, out: Page) -> bool:
        if said.origin:
            if said.origin == "config.py":  # another dump begins: this one was torn apart
                self.close(out)
            return False
        self._lines.append(said.text)
        if said.text.rstrip() in ("}", "})"):  # in column 0: the end
            self._finish(out)
        elif len(self._lines) > _MOST_LINES:
            self.close(out)
        return True

    def _finish(self, out: Page) -> None:
        text = "\n".join(self._lines)
        key, start = self._key or "", self._start
        self._key, self._lines = None, []
        assert start is not None  # set together with the key
        value: Any = None
        try:
            value = json.loads(_FLOATS.sub(r"\1Infinity", text)) if shallow(text) else None
        except (ValueError, RecursionError):
            value = parsed(text)
        if isinstance(value, dict):
            self._nest(key, value, start, out)
        else:
            out.problem(f"the block '{key or 'json'}' is no JSON; it is left out", start)

    def _nest(self, key: str, value: Any, line: Line, out: Page) -> None:
        if isinstance(value, str) and re.match(r"\w{1,60}=", value) and " " in value:
            for part in _balanced(value):
                name, _, inner = part.partition("=")
                nest(out, f"{key}.{name}", parsed(inner), line)
        elif value != {}:
            nest(out, key, value, line)

    def _dump_line(self, said: Said, out: Page) -> bool:
        found = None if (is_json := _JSON.match(said.text)) else _DUMPED.match(said.text)
        if is_json or (found and found["value"].rstrip() == "{"):
            self._key, self._start, self._lines = (found["key"] if found else ""), said.line, ["{"]
            return True
        if not found:
            return self._fact(said, out)
        self._nest(found["key"], parsed(found["value"]), said.line, out)
        return True

    def _fact(self, said: Said, out: Page) -> bool:
        text = said.text
        taken = False
        for cue, pattern, name in _FACTS:
            if cue in text and (found := pattern.search(text)):
                out.setting(name, _flat(parsed(found["v"])), said.line)
                taken = True
        if "DeepSpeed info:" in text and (found := _VERSION.search(text)):
            out.version = out.version or found["v"]
            taken = True
        elif "self." in text and (found := _GROUPS.match(text)):
            out.setting(found["key"], int(found["value"]), said.line)
            taken = True
        elif text.startswith("cmd = "):
            self._command(said, out)
            taken = True
        return taken

    def _command(self, said: Said, out: Page) -> None:
        """The launcher's command line: every `--flag value` is a setting of the script."""
        out.setting("cmd", said.text[6:].strip(), said.line)
        for found in _LAUNCHER_FLAG.finditer(said.text):
            out.setting(found["key"], True if found["value"] is None else _flat(parsed(found["value"])), said.line)


def _flat(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, dict) else value


def _balanced(text: str) -> list[str]:
    """The pairs of `a=1 b=Config(x=2, y=3) c=None`, split only where no bracket is open."""
    out: list[str] = []
    depth = 0
    for part in _ASSIGNED.split(text):
        if depth > 0 and out:
            out[-1] += part
        else:
            out.append(part)
        depth += sum(part.count(c) for c in "([{") - sum(part.count(c) for c in ")]}")
    return [p.strip() for p in out]
