"""The files beside the log: configuration, metadata, console copy, and the JSON lines of very old SDKs."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diagnose.readers.wandb.console import Console
from diagnose.readers.wandb.rows import MAX_JSON, plain

_MAX_YAML = 256 << 10  # bytes: PyYAML reads some 100 kB/s; real files have 1 to 40 kB
_MAX_METADATA = 1 << 20
_MAX_SETTINGS = 20_000
_MAX_DEPTH = 32
_MAX_TEXT = 100_000  # characters of one value
_HYDRA = re.compile(r"^\+{0,2}([A-Za-z_][\w./-]{0,200})=(.*)$", re.DOTALL)


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, scalar or list of scalars) of a nested value, in order; bounded in number and depth."""
    stack, budget = [(name, value, 0)], _MAX_SETTINGS
    while stack and budget:
        name, value, depth = stack.pop()
        budget -= 1
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            inner = [(f"{name}.{key}" if name else str(key), v, depth + 1) for key, v in value.items()]
            stack += reversed(inner[:_MAX_SETTINGS])
        elif isinstance(value, (list, tuple)) and depth < _MAX_DEPTH and any(isinstance(v, (dict, list, tuple)) for v in value):
            stack += reversed([(f"{name}.{k}", v, depth + 1) for k, v in enumerate(value[:_MAX_SETTINGS])])
        elif isinstance(value, (list, tuple)):
            yield plain(name), [_scalar(v) for v in value[:_MAX_SETTINGS]]
        else:
            yield plain(name), _scalar(value)


def _scalar(value: Any) -> Any:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value) if abs(value) < 10**300 else "a very large number"
    return plain(str(value)[:_MAX_TEXT])


def small_text(path: Path, limit: int) -> str | None:
    """The text of a file; None when there is none, or it is longer than it should be."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError:
        return None
    return data.decode("utf-8", "replace") if len(data) <= limit else None


def config_yaml(path: Path) -> dict[str, Any] | None:
    """`config.yaml` of both shapes, `key: {desc, value}` and `key: {value}`; None when unreadable. Unknown tags are text."""
    content = small_text(path, _MAX_YAML)
    if content is None:
        return None
    import yaml

    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
        tree = _from_node(node, yaml.SafeLoader(""), [_MAX_SETTINGS])
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if not isinstance(tree, dict):
        return None
    out = {}
    for key, value in tree.items():
        if key not in ("wandb_version", "_wandb"):
            out[key] = value["value"] if isinstance(value, dict) and "value" in value and set(value) <= {"desc", "value"} else value
    return out


def _from_node(node: Any, loader: Any, budget: list[int], depth: int = 0) -> Any:
    """A composed YAML node as a plain value. Our own walk, since aliases can make a small file an endless tree."""
    budget[0] -= 1
    if node is None or budget[0] < 0 or depth > _MAX_DEPTH:
        return None
    kind = type(node).__name__
    if kind == "MappingNode":
        return {str(_from_node(k, loader, budget, depth + 1)): _from_node(v, loader, budget, depth + 1) for k, v in node.value}
    if kind == "SequenceNode":
        return [_from_node(v, loader, budget, depth + 1) for v in node.value]
    make = {"bool": loader.construct_yaml_bool, "int": loader.construct_yaml_int, "null": loader.construct_yaml_null, "float": _yaml_float}
    construct = make.get(node.tag.rpartition(":")[2]) if node.tag.startswith("tag:yaml.org,2002:") else None
    if construct is None:
        return node.value
    try:
        return construct(node)
    except (ValueError, KeyError, IndexError, OverflowError):
        return node.value


def _yaml_float(node: Any) -> float:
    value = node.value.replace("_", "").lower()
    return float(value.replace(".inf", "inf").replace(".nan", "nan"))


def metadata(path: Path) -> dict[str, Any]:
    """`wandb-metadata.json` as an object; empty when there is none or it is damaged."""
    content = small_text(path, _MAX_METADATA)
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def arguments(args: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(name, value) of `--name value`, `--name=value`, `--switch` and `name=value`, with numbers as numbers."""
    words = [str(a)[:_MAX_TEXT] for a in args[:_MAX_SETTINGS]]
    k = 0
    while k < len(words):
        word = words[k]
        k += 1
        if not word.startswith("--"):
            if hit := _HYDRA.match(word):
                yield plain(hit[1]), _guess(hit[2])
            continue
        name, equals, value = word[2:].partition("=")
        values = [value] if equals else []
        while not equals and k < len(words) and not words[k].startswith("--"):
            values.append(words[k])
            k += 1
        if name:
            found = [_guess(v) for v in values]
            yield plain(name), True if not found else found[0] if len(found) == 1 else found


def _guess(word: str) -> Any:
    low = word.lower()
    if low in ("true", "false"):
        return low == "true"
    if low in ("none", "null"):
        return None
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return plain(word)


def hear(path: Path, console: Console, row: int) -> bool:
    """Reads `output.log` line by line into the console; whether there is one."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_JSON):
                number += 1
                console.feed(raw.decode("utf-8", "replace"), f"{path}:{number}", row)
    except OSError:
        return False
    console.close(row)
    return True


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line number, object) of each line; None for a line that is no object. The last line may be cut."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        number = 0
        while raw := file.readline(MAX_JSON):
            number += 1
            if not raw.strip():
                continue
            try:
                row = json.loads(raw, parse_int=float)
            except (ValueError, RecursionError):
                row = None
            yield number, row if isinstance(row, dict) else None
