"""Configuration beside a run: `ds_config.json` and any JSON with DeepSpeed's keys, `args.json`, `config.json`,
`training_args.json`, `config.yaml`, `hparams.yaml`.

Settings only, with dotted names as spelled in the file, so `optimizer.params.lr`. Nothing in a file is executed: YAML tags
that the safe loader does not know are kept as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from diagnose.model import Problem, Setting, Source
from diagnose.parts import RawRun, Reader

_LARGEST_JSON = 1 << 20  # bytes; model configs with a label list reach 500 kB
_LARGEST_YAML = 1 << 18  # bytes; the pure Python loader reads about 100 kB a second
_HEAD = 1 << 16
_DEEPEST = 12  # levels of names
_MOST = 5000  # settings of one file; also the end of YAML's aliases of aliases
_LONGEST_TEXT = 2000  # characters of one value

_JSON_NAMES = frozenset({"args.json", "config.json", "training_args.json", "ds_config.json", "deepspeed_config.json", "hparams.json"})
_YAML_NAMES = frozenset({"config.yaml", "config.yml", "hparams.yaml", "hparams.yml"})
# keys that only DeepSpeed's configuration has at its top (deepspeed/runtime/constants.py)
_DEEPSPEED = frozenset(
    {"zero_optimization", "train_micro_batch_size_per_gpu", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"}
)
_DEEPSPEED |= {"csv_monitor", "wall_clock_breakdown", "steps_per_print", "comms_logger", "flops_profiler", "prescale_gradients"}
_NOT_OURS = ('"log_history"', '"stateful_callbacks"', '"cells"', '"nbformat"')  # trainer_state.json, notebooks


def claims(path: Path) -> bool:
    """A known name that holds one mapping, or a small JSON mapping with DeepSpeed's keys."""
    try:
        if path.suffix.lower() not in (".json", ".yaml", ".yml") or not path.is_file():
            return False
        size = path.stat().st_size
        if path.name.lower() in _YAML_NAMES:
            return 0 < size <= _LARGEST_YAML and _looks_like_mapping(_start(path))
        return path.suffix.lower() == ".json" and 0 < size <= _LARGEST_JSON and _is_ours(_start(path), path.name.lower(), size)
    except (OSError, ValueError, RecursionError):
        return False


def _is_ours(text: str, name: str, size: int) -> bool:
    if not text.lstrip().startswith("{") or any(mark in text for mark in _NOT_OURS):
        return False
    if size > _HEAD:  # the end is not seen: only the name can tell
        return name in _JSON_NAMES
    value = json.loads(text)
    return isinstance(value, dict) and (name in _JSON_NAMES or not _DEEPSPEED.isdisjoint(value))


def _start(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_HEAD).decode("utf-8-sig", "replace")


def _looks_like_mapping(text: str) -> bool:
    """The first line that says something is `key:`; a list or a stream of log lines is not ours."""
    said = (s for s in text.splitlines() if s.strip() and not s.startswith(("#", "---", "%")))
    return bool(re.match(r"[\w\"'][\w .\"'/-]{0,80}:(?: |$)", next(said, "")))


@cache
def _loader() -> Any:
    """PyYAML's safe loader that keeps unknown tags as text and reads `1e-3` as the number it is."""
    import yaml  # 20 ms, for runs that have a YAML file

    class KeepsTags(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        pass

    def text(loader: Any, suffix: str, node: Any) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return node.value or suffix
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return loader.construct_mapping(node, deep=True)

    KeepsTags.add_multi_constructor("", text)
    KeepsTags.add_multi_constructor("!", text)
    KeepsTags.add_multi_constructor("tag:yaml.org,2002:python/", text)
    KeepsTags.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))
    return KeepsTags


def _parsed(path: Path, text: str) -> Any:
    if path.suffix.lower() == ".json":
        return json.loads(text)
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # a subclass of the safe loader
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")[:200]) from error


def _leaves(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Dotted names and values, in the order of the file. W&B's `{value: x}` is x."""
    if isinstance(value, dict) and set(value) <= {"value", "desc"} and "value" in value and name:
        value = value["value"]
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), inner, depth + 1)
    elif name:
        yield name, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [v if isinstance(v, int | float | bool) or v is None else _short(v) for v in value[:_MOST]]
    return value if isinstance(value, int | float | bool) or value is None else _short(value)


def _short(value: Any) -> str:
    if isinstance(value, dict | list | tuple | set):
        return f"{len(value)} entries"  # nested deeper than a setting can hold; aliases may make it endless
    return str(value)[:_LONGEST_TEXT]


class _Places:
    """The line of each key: keys come in the order of the file, so one pass finds them all."""

    def __init__(self, text: str, json_keys: bool) -> None:
        self._text, self._json = text, json_keys
        self._at, self._line, self._misses = 0, 1, 0

    def line(self, key: str) -> int | None:
        """The line where the key stands next, or None where it can't be found cheaply."""
        if self._misses > 20:  # a search that fails reads to the end
            return None
        found = self._text.find(f'"{key}"' if self._json else f"{key}:", self._at)
        if found < 0:
            self._misses += 1
            return None
        self._line += self._text.count("\n", self._at, found)
        self._at = found
        return self._line


def _file(path: Path, problems: list[Problem]) -> list[Setting]:
    is_json = path.suffix.lower() == ".json"
    try:
        with path.open("rb") as file:
            raw = file.read((_LARGEST_JSON if is_json else _LARGEST_YAML) + 1)
        if len(raw) > (_LARGEST_JSON if is_json else _LARGEST_YAML):
            raise ValueError(f"over {len(raw) - 1} bytes")
        text = raw.decode("utf-8-sig", "replace")
        value = _parsed(path, text)
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(where=path.name, what=f"the settings can't be read ({type(error).__name__}: {str(error)[:200]})"))
        return []
    if not isinstance(value, dict):
        problems.append(Problem(where=path.name, what="the settings are no mapping; they are left out"))
        return []
    out: list[Setting] = []
    places, open_names = _Places(text, is_json), [""]
    for name, leaf in _leaves("", value):
        if len(out) >= _MOST:
            problems.append(Problem(where=path.name, what=f"over {_MOST} settings; the rest is left out"))
            break
        parts = name.split(".")
        shared = next((i for i, (a, b) in enumerate(zip(parts, open_names, strict=False)) if a != b), min(len(parts), len(open_names)))
        line = None
        for key in parts[shared:]:  # parents that open here, then the key itself
            line = places.line(key)
        open_names = parts
        out.append(Setting(name, leaf, spelled=name, where=f"{path.name}:{line}" if line else path.name))
    return out


def read(paths: Sequence[Path]) -> RawRun:
    """Reads configuration files; a file that is none is a problem, never an error."""
    problems: list[Problem] = []
    settings = tuple(s for p in paths for s in _file(Path(p), problems))
    return RawRun(settings=settings, problems=tuple(problems), sources=tuple(Source(str(p), "config_files") for p in paths))


READER = Reader("config_files", "configuration file (JSON, YAML)", claims, read, priority=40, companion=True)
