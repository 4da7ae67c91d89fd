"""Finds the parts, own files first and then entry points, and checks that they fit together.

A part that can't be imported or does not keep its contract is a problem that is reported, never a stopped run.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from diagnose.errors import BadPart
from diagnose.model import Problem
from diagnose.parts import Detector, GroupDetector, Renderer, Rule

CONSTANTS = {"readers": "READER", "detectors": "DETECTOR", "rules": "RULE", "reports": "RENDERER"}


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts of one kind, by id, and what could not be loaded."""

    found: tuple[Any, ...]
    problems: tuple[Problem, ...] = ()

    def __iter__(self) -> Any:
        return iter(self.found)


def _own(group: str) -> list[tuple[str, Any]]:
    package = importlib.import_module(f"diagnose.{group}")
    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))
    return [(f"diagnose.{group}.{name}", None) for name in names]


def _foreign(group: str) -> list[tuple[str, Any]]:
    from importlib.metadata import entry_points  # 15 ms; only commands that need parts pay for it

    return [(e.value, e) for e in entry_points(group=f"diagnose.{group}")]


def _load(group: str) -> Parts:
    constant = CONSTANTS[group]
    found: list[Any] = []
    problems: list[Problem] = []
    for place, entry in [*_own(group), *_foreign(group)]:
        try:
            if entry is None:
                module = importlib.import_module(place)
                part = getattr(module, constant, None)
                if part is None:
                    raise BadPart(f"has no {constant}.", where=place, hint=f"End the file with `{constant} = ...`.")
                if isinstance(part, Rule):
                    part = replace(part, page=module.__doc__ or part.title)
            else:
                part = entry.load()
                if isinstance(part, Rule):
                    part = replace(part, page=part.page or part.title, since=part.since or "plug-in")
            found.append(part)
        except Exception as error:
            if entry is None:
                raise  # an own part that is broken is a bug, and tests must see it
            problems.append(Problem(where=place, what=f"the plug-in could not be loaded ({type(error).__name__}: {error}); it is left out"))
    return Parts(tuple(found), tuple(problems))


@cache
def readers() -> Parts:
    """All readers, those with content tests first."""
    parts = _load("readers")
    return replace(parts, found=tuple(sorted(parts.found, key=lambda r: (-r.priority, r.id))))


@cache
def detectors() -> Parts:
    """All detectors, single-signal and group ones."""
    return _load("detectors")


@cache
def rules() -> Parts:
    """All rules, by id; each has been checked against the kinds of finding that some detector gives."""
    parts = _load("rules")
    kinds = sorted({k for d in detectors() for k in d.kinds})
    problems = list(parts.problems)
    good = []
    for rule in sorted(parts.found, key=lambda r: r.id):
        unknown = [k for k in rule.uses if k not in kinds]
        if not unknown:
            good.append(rule)
            continue
        near = difflib.get_close_matches(unknown[0], kinds, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Known kinds: {', '.join(kinds)}."
        error = BadPart(f"rule '{rule.id}' uses the kind '{unknown[0]}', which no detector gives.", where=rule.id, hint=hint)
        if rule.since != "plug-in":
            raise error
        problems.append(Problem(where=rule.id, what=str(error)))
    return Parts(tuple(good), tuple(problems))


@cache
def renderers() -> Parts:
    """All renderers, by id."""
    parts = _load("reports")
    return replace(parts, found=tuple(sorted(parts.found, key=lambda r: r.id)))


def _by_id(parts: Parts, id: str, what: str) -> Any:
    for part in parts:
        if part.id == id:
            return part
    known = [p.id for p in parts]
    near = difflib.get_close_matches(id, known, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(known)}."
    raise BadPart(f"there is no {what} '{id}'.", hint=hint)


def rule(id: str) -> Rule:
    """The rule with this id; BadPart with the nearest name when there is none."""
    return _by_id(rules(), id, "rule")  # type: ignore[no-any-return]


def renderer(id: str) -> Renderer:
    """The renderer with this id; BadPart with the nearest name when there is none."""
    return _by_id(renderers(), id, "format")  # type: ignore[no-any-return]


def detector(shape: str) -> Detector | GroupDetector:
    """The detector of this shape; BadPart when there is none."""
    for found in detectors():
        if found.shape == shape:
            return found  # type: ignore[no-any-return]
    raise BadPart(f"there is no detector of the shape '{shape}'.", hint=f"Known: {', '.join(d.shape for d in detectors())}.")
