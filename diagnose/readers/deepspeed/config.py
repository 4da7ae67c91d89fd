"""Settings in the console: the engine's dump, its `json = {…}` block, Megatron's argument block, launcher and optimizer lines."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from diagnose.model import Problem
from diagnose.readers.deepspeed.gathered import Gathered, Said, parsed, shallow
from diagnose.texts import Line

_DUMPED = re.compile(r"  (?P<key>\w{1,80}) (?:\.{1,80} | )?(?P<value>\S.*)$")  # `  gradient_clipping ............ 1.0`
_JSON = re.compile(r"  ?json ?= ?\{\s*$")  # DeepSpeedConfig.print_user_config
_ARGUMENT = re.compile(r"  (?P<key>[A-Za-z]\w{0,80}) \.{2,80} (?P<value>.*)$")  # Megatron: dots up to column 48
_ARGUMENTS = re.compile(r"-{5,80} (?:end of )?arguments -{5,80}")
_ASSIGNED = re.compile(r"(?<= )(?=\w{1,60}=)")  # between the pairs of `enabled=True loss_scale=0.0`
_GROUPS = re.compile(r"\s{0,8}self\.(?P<key>\w{1,40}world_size|sequence_parallel_size)=(?P<value>\d{1,9})\b")
_MEGATRON_WORLD = re.compile(r"using world size: (?P<world>\d{1,9})(?P<rest>.*)")
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
    _arguments: bool = False

    def take(self, said: Said, out: Gathered) -> bool:
        """Whether the line belongs to a dump."""
        if self._key is not None and self._continued(said, out):
            return True
        if said.origin == "config.py" or said.text.startswith("  json"):
            return self._dump_line(said, out)
        if self._argument(said, out):
            return True
        return self._fact(said, out)

    def close(self, out: Gathered) -> None:
        """Says so when a block was never closed (the log was cut)."""
        if self._key is not None and self._start is not None:
            out.problems.append(Problem(where=out.where(self._start), what=f"the block '{self._key or 'json'}' has no end; it is left out"))
        self._key = None

    def _continued(self, said: Said, out: Gathered) -> bool:
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

    def _finish(self, out: Gathered) -> None:
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
            out.problems.append(Problem(where=out.where(start), what=f"the block '{key or 'json'}' is no JSON; it is left out"))

    def _nest(self, key: str, value: Any, line: Line, out: Gathered) -> None:
        if isinstance(value, str) and re.match(r"\w{1,60}=", value) and " " in value:
            for part in _balanced(value):
                name, _, inner = part.partition("=")
                out.nest(f"{key}.{name}", parsed(inner), line)
        elif value != {}:
            out.nest(key, value, line)

    def _dump_line(self, said: Said, out: Gathered) -> bool:
        found = None if (is_json := _JSON.match(said.text)) else _DUMPED.match(said.text)
        if is_json or (found and found["value"].rstrip() == "{"):
            self._key, self._start, self._lines = (found["key"] if found else ""), said.line, ["{"]
            return True
        if not found:
            return self._fact(said, out)
        self._nest(found["key"], parsed(found["value"]), said.line, out)
        return True

    def _argument(self, said: Said, out: Gathered) -> bool:
        if said.text.startswith("-") and _ARGUMENTS.search(said.text):
            self._arguments = "end of" not in said.text
            return True
        if self._arguments and (found := _ARGUMENT.match(said.text)):
            out.setting(found["key"], _flat(parsed(found["value"])), said.line)
            return True
        return False

    def _fact(self, said: Said, out: Gathered) -> bool:
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
        elif "using world size:" in text and (found := _MEGATRON_WORLD.search(text)):
            out.setting("world_size", int(found["world"]), said.line)
            for name, value in re.findall(r"(\w[\w-]{0,40}size): (\d{1,9})", found["rest"]):
                out.setting(name, int(value), said.line)
            taken = True
        elif text.startswith("cmd = "):
            self._command(said, out)
            taken = True
        return taken

    def _command(self, said: Said, out: Gathered) -> None:
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
