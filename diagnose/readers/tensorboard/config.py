"""Settings inside an event file: the hparams plugin, and configurations that were written as text.

Text is tried as JSON, a Markdown table, a Python `Namespace(...)` or dict, YAML, and lines `key: value`, in this order. What
is none of these is an event of kind `config`. Names stay as spelled; nesting becomes dots.
"""

from __future__ import annotations

import ast
import html
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from diagnose.readers.tensorboard.wire import Span, fields, varint

# text tags that hold a configuration: HF's `args` and `model_config`, Coqui's `model-config`, `hyperparameters` of CleanRL, ...
CONFIG_TAG = re.compile(
    r"(?:^|[/_.-])(?:configs?|configuration|args|arguments|hparams|hyper_?param(?:eter)?s|params|parameters|settings|flags|options|cfg)$",
    re.I,
)
ARGUMENT_TAG = re.compile(r"[a-z][a-z0-9_]{0,60}$")  # Megatron writes each argument as a text of its own, named by the argument
ARGUMENTS_AT_LEAST = 20  # such texts in one file; Megatron has more than 300, a logger of samples has a few
LONGEST_TEXT = 1 << 18  # characters; a model's config.json has about 10 000, parsing YAML of more takes seconds
_MOST_SETTINGS = 5000  # of one text; YAML aliases can stand for billions
_DEEPEST = 20

Settings = dict[str, Any]


def of_hparams(content: bytes) -> Settings:
    """The hyperparameters in a SummaryMetadata's plugin content, if it is a session's start."""
    found: Settings = {}
    for key, begin, end in fields(content, 0, len(content)):
        if key != 0x1A:  # session_start_info
            continue
        for inner, first, last in fields(content, begin, end):
            if inner == 0x0A:  # hparams, a map
                entry = {k: (a, z) for k, a, z in fields(content, first, last)}
                name, value = entry.get(0x0A, (0, 0)), entry.get(0x12, (0, 0))
                found.update(flat(_value(content, value, 0), content[slice(*name)].decode("utf-8", "replace")))
    return found


def _value(data: bytes, place: Span, depth: int) -> Any:
    """A google.protobuf.Value."""
    value: Any = None
    for key, begin, end in fields(data, *place):
        if key == 0x11:
            value = float(struct.unpack_from("<d", data, begin)[0])
        elif key == 0x1A:
            value = data[begin:end].decode("utf-8", "replace")
        elif key == 0x20:
            value = bool(varint(data, begin)[0])
        elif key == 0x2A and depth < _DEEPEST:
            value = {}
            for _, first, last in fields(data, begin, end):
                entry = {k: (a, z) for k, a, z in fields(data, first, last)}
                name = data[slice(*entry.get(0x0A, (0, 0)))].decode("utf-8", "replace")
                value[name] = _value(data, entry.get(0x12, (0, 0)), depth + 1)
        elif key == 0x32 and depth < _DEEPEST:
            value = [_value(data, (first, last), depth + 1) for _, first, last in fields(data, begin, end)]
    return value


def of_text(text: str) -> Settings | None:
    """The settings in a text, or None when it is not a configuration in a known form."""
    text = text.strip()
    if not text or len(text) > LONGEST_TEXT:
        return None
    text = _unwrapped(text)
    for form in (_json, _table, _python, _yaml, _lines):
        try:
            found = form(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError, ArithmeticError, AttributeError):
            continue
        if found:
            return flat(found)
    return None


def _unwrapped(text: str) -> str:
    """Without a Markdown fence or `<pre>` around it, and without the indent that makes Markdown show it as code."""
    pre = re.fullmatch(r"\s*<pre>(.*)</pre>\s*", text, re.S)
    if pre:
        return html.unescape(pre[1]).strip()
    fence = re.fullmatch(r"\s*```[a-zA-Z]*\n(.*?)\n?```\s*", text, re.S)
    if fence:
        return fence[1].strip("\n")
    return re.sub(r"^(?:    |\t)", "", text, flags=re.M) if text.startswith(("{", "[")) else text


def _json(text: str) -> Mapping[str, Any] | None:
    if not text.startswith("{"):
        return None
    value = json.loads(text)
    return value if isinstance(value, dict) else None


def _table(text: str) -> Mapping[str, Any] | None:
    """`|key|value|` rows; the row of dashes and what stands above it are the heading."""
    rows = [[c.strip() for c in line.strip().strip("|").split("|", 1)] for line in text.splitlines() if line.strip().startswith("|")]
    rules = [k for k, row in enumerate(rows) if all(re.fullmatch(r":?-+:?(?:\|:?-+:?)*", c.replace(" ", "")) for c in row)]
    if not rules:
        return None
    return {row[0].strip("`* "): scalar(row[1].strip("`* ")) for row in rows[rules[0] + 1 :] if len(row) == 2 and row[0]}


def _python(text: str) -> Mapping[str, Any] | None:
    """`Namespace(lr=0.1, ...)`, `{'lr': 0.1}` and the like; nothing is run."""
    if not re.match(r"(?:[A-Za-z_][\w.]*\(|\{)", text):
        return None
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.Dict):
        pairs = [(ast.literal_eval(k), v) for k, v in zip(tree.keys, tree.values, strict=True) if k is not None]
    elif isinstance(tree, ast.Call):
        pairs = [(k.arg, k.value) for k in tree.keywords if k.arg is not None]
    else:
        return None
    return {str(name): _literal(node) for name, node in pairs}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return scalar(ast.unparse(node))


def _yaml(text: str) -> Mapping[str, Any] | None:
    if not re.search(r"^\s*[\w'\".-]+\s*:(?:\s|$)", text, re.M):
        return None
    import yaml  # 25 ms; few files hold YAML

    try:
        value = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return None
    return value if isinstance(value, dict) else None


def _lines(text: str) -> Mapping[str, Any] | None:
    """`key: value` or `key = value` on most lines."""
    lines = [line.strip(" \t-*") for line in re.split(r"\n|<br ?/?>", text) if line.strip(" \t-*")]
    pairs = [m for line in lines if (m := re.fullmatch(r"[`*]*([A-Za-z_][\w./-]*)[`*]*\s*[:=]\s*(.*)", line))]
    return {m[1]: scalar(m[2].strip("`* ")) for m in pairs} if len(pairs) * 2 > len(lines) else None


_WORDS = {"true": True, "false": False, "none": None, "null": None}


def scalar(text: str) -> Any:
    """A number, truth value or None if the text is one, else the text."""
    low = text.strip().lower()
    if low in _WORDS:
        return _WORDS[low]
    for kind in (int, float):
        try:
            return kind(low)
        except ValueError:
            continue
    return text


def flat(value: Any, name: str = "") -> Settings:
    """Nested mappings as dotted keys; lists of plain values stay lists."""
    found: Settings = {}
    for key, item in _flat(value, name, 0):
        if len(found) >= _MOST_SETTINGS:
            break
        found[key] = item
    return found


def _flat(value: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value and depth < _DEEPEST:
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key), depth + 1)
    elif isinstance(value, (list, tuple)) and any(isinstance(v, (Mapping, list, tuple)) for v in value) and depth < _DEEPEST:
        for k, inner in enumerate(value):
            yield from _flat(inner, f"{name}.{k}" if name else str(k), depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield name, [_plain(v) for v in list(value)[:1000]]
    else:
        yield name, _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _exponent(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)[:1000]


def _exponent(text: str) -> Any:
    """YAML 1.1 and JSON writers leave `1e-3` a text."""
    if re.fullmatch(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+", text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text
