from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from diagnose import registry
from diagnose.errors import BadPart
from diagnose.parts import Detector, GroupDetector, Reader, Renderer, Rule

LOADERS = (registry.readers, registry.detectors, registry.rules, registry.renderers)


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[SimpleNamespace]]:
    """Entry points that a test adds; what was loaded is forgotten before and after."""
    entries: list[SimpleNamespace] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [e for e in entries if e.group == group])
    for loader in LOADERS:
        loader.cache_clear()
    yield entries
    for loader in LOADERS:
        loader.cache_clear()


def entry(group: str, load: object, value: str = "plug.part:PART") -> SimpleNamespace:
    return SimpleNamespace(group=f"diagnose.{group}", value=value, load=load)


def test_every_own_part_is_there_once_and_keeps_its_kind() -> None:
    assert all(isinstance(r, Reader) for r in registry.readers())
    assert all(isinstance(d, Detector | GroupDetector) for d in registry.detectors())
    assert all(isinstance(r, Rule) for r in registry.rules())
    assert all(isinstance(r, Renderer) for r in registry.renderers())
    for names in (
        [r.id for r in registry.readers()],
        [d.shape for d in registry.detectors()],
        [r.id for r in registry.rules()],
        [r.id for r in registry.renderers()],
    ):
        assert len(names) == len(set(names)) > 0
    assert all(not loader().problems for loader in LOADERS)


def test_readers_with_content_tests_are_asked_first_and_rules_come_in_order() -> None:
    priorities = [r.priority for r in registry.readers()]
    assert priorities == sorted(priorities, reverse=True)
    ids = [r.id for r in registry.rules()]
    assert ids == sorted(ids)


def test_every_rule_has_its_page_from_its_module() -> None:
    assert all(len(r.page) > 200 for r in registry.rules())


def test_a_plug_in_rule_is_found_beside_the_own_ones(plugged: list[SimpleNamespace]) -> None:
    own = registry.rule("loss-spike")
    registry.rules.cache_clear()
    plugged.append(entry("rules", lambda: replace(own, id="their-spike", page="", since="")))
    found = registry.rule("their-spike")
    assert (found.page, found.since) == (own.title, "plug-in")


def test_a_plug_in_that_can_not_be_loaded_is_a_problem_and_the_rest_is_there(plugged: list[SimpleNamespace]) -> None:
    def broken() -> object:
        raise ImportError("no module named plug")

    own = [d.shape for d in registry.detectors()]
    registry.detectors.cache_clear()
    plugged.append(entry("detectors", broken))
    found = registry.detectors()
    assert [d.shape for d in found] == own
    (problem,) = found.problems
    assert problem.where == "plug.part:PART"
    assert "ImportError: no module named plug" in problem.what


def test_a_rule_that_uses_an_unknown_kind_is_left_out_with_the_nearest_name(plugged: list[SimpleNamespace]) -> None:
    own = registry.rule("loss-spike")
    registry.rules.cache_clear()
    plugged.append(entry("rules", lambda: replace(own, id="theirs", uses=("spikes",), since="plug-in")))
    found = registry.rules()
    assert "theirs" not in [r.id for r in found]
    assert "Did you mean 'spike'?" in found.problems[0].what


def test_an_own_part_that_is_broken_stops_everything(plugged: list[SimpleNamespace], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.CONSTANTS, "rules", "NO_SUCH_CONSTANT")
    with pytest.raises(BadPart, match="has no NO_SUCH_CONSTANT"):
        registry.rules()


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(BadPart, match="Did you mean 'loss-spike'"):
        registry.rule("los-spike")
    with pytest.raises(BadPart, match="there is no format 'yaml'"):
        registry.renderer("yaml")
    with pytest.raises(BadPart, match="no detector of the shape 'blob'"):
        registry.detector("blob")
    assert registry.detector("spike").shape == "spike"
