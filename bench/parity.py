#!/usr/bin/env python3
"""Parity: every point of our readers against the formats' reference readers, over folders of logs; prints one table.

  python bench/parity.py DIR... [--results bench/PARITY.md]

TensorBoard: `EventAccumulator` with size guidance 0 and `tensor_util`. W&B: a slow decoder written from the format, which the tests
keep. DeepSpeed: three plain regular expressions over the raw lines. The references live in `tests/readers/`, so that a test and
this table can't drift apart. Files that the reference itself can't read to the end (damaged, of another origin) are counted apart.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


@dataclass
class Count:
    """What one format's files gave."""

    files: int = 0
    points: int = 0
    equal: int = 0
    left_out: int = 0
    differ: list[str] = field(default_factory=list)


def reference(name: str) -> ModuleType:
    """The test module that holds a format's reference reader."""
    path = ROOT / "tests" / "readers" / f"test_{name}.py"
    spec = importlib.util.spec_from_file_location(f"reference_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def tensorboard(paths: Iterable[Path]) -> Count:
    """Scalars, tensor scalars and histogram summaries: step, value and time of each point."""
    slow, count = reference("tensorboard"), Count()
    for path in paths:
        if "tfevents" not in path.name or not slow.READER.claims(path):
            continue
        if path.suffix == ".gz" or slow.read_log(path).problems:
            count.left_out += 1  # EventAccumulator stops at damage, we read on
            continue
        _compare(count, path, lambda p=path: slow.assert_parity(p))
    return count


def wandb(paths: Iterable[Path]) -> Count:
    """History rows by their own step axis."""
    slow, count = reference("wandb"), Count()
    for path in paths:
        if path.suffix != ".wandb" or not slow.READER.claims(path):
            continue
        if path.parent.name == "synth" or "0.17.5" in str(path) or path.stat().st_size <= 7:
            count.left_out += 1  # made up for other tests; blocks of another origin; nothing behind the header
            continue

        def compared(p: Path = path) -> int:
            slow.assert_same_as_slow(p)
            return sum(map(len, slow.slow_series(p).values()))

        _compare(count, path, compared)
    return count


_PROGRESS = re.compile(r"step=(\d+), skipped=(\d+), lr=\[([-+.\deE]+)")
_OVERFLOW = re.compile(r"overflow(?:!| detected\.).{0,20}skipping step", re.I)  # "Grad overflow on iteration" repeats it, once a rank


def deepspeed(paths: Iterable[Path]) -> Count:
    """Progress lines (step, first learning rate, skipped steps so far) and overflow lines of consoles."""
    from diagnose.readers import deepspeed as reader

    count = Count()
    for path in paths:
        if path.suffix not in {".log", ".out", ".txt"} or path.stat().st_size == 0 or not reader.READER.claims(path):
            continue

        def compared(p: Path = path) -> int:
            text = p.read_text(encoding="utf-8", errors="replace")
            run = reader.READER.read([p])
            rows = [(int(a), float(b), float(c)) for a, b, c in _PROGRESS.findall(text) if int(a)]  # step 0 is printed before training
            steps = sorted((a, c) for a, _, c in rows)
            ours = sorted(
                (int(s), float(v)) for x in run.series if x.name.split("/")[-1] == "lr" for s, v in zip(x.steps, x.values, strict=True)
            )
            missing = [row for row in set(steps) if row not in set(ours)]
            assert not missing, f"learning rates not found: {missing[:3]}"
            said, found = len(_OVERFLOW.findall(text)), sum(e.kind == "overflow" for e in run.events)
            assert found == said, f"{found} overflows for {said} lines"
            return len(rows) + said

        _compare(count, path, compared)
    return count


def _compare(count: Count, path: Path, compared: Callable[[], int]) -> None:
    count.files += 1
    try:
        points = compared()
    except AssertionError as error:
        count.differ.append(f"{path.name}: {' '.join(str(error).split())[:200]}")
        return
    count.points += points
    count.equal += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--results", type=Path)
    args = parser.parse_args()
    paths = sorted({p for folder in args.folders for p in folder.rglob("*") if p.is_file()})
    counts = {"TensorBoard": tensorboard(paths), "W&B": wandb(paths), "DeepSpeed console": deepspeed(paths)}
    lines = ["| format | files | equal | points | left out |", "|---|---|---|---|---|"]
    lines += [f"| {name} | {c.files} | {c.equal} | {c.points} | {c.left_out} |" for name, c in counts.items()]
    print("\n".join(lines))
    for name, c in counts.items():
        for line in c.differ:
            print(f"DIFFERS {name}: {line}")
    if args.results:
        head = "# Parity with the reference readers\n\nWritten by `python bench/parity.py DIR... --results bench/PARITY.md`;"
        head += " `left out` are files that the reference can't read to the end.\n\n"
        args.results.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    return int(any(c.differ for c in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
