"""The promise checkers must fail on parts that break a promise; a checker that never fails checks nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose import registry, testing
from diagnose.model import Evidence, Finding, Fix, Frozen, Severity, Signal, Source, Span
from diagnose.parts import Example, RawRun, RawSeries, Reader

Detect = Callable[[Signal], tuple[Finding, ...]]


@dataclass(frozen=True)
class Part:
    """A detector made of one function."""

    deed: Detect
    shape: str = "made"
    kinds: tuple[str, ...] = ("made",)

    def detect(self, signal: Signal) -> tuple[Finding, ...]:
        return self.deed(signal)


def whole(signal: Signal, **more: Any) -> tuple[Finding, ...]:
    """A finding over the whole signal, as an honest detector gives it."""
    if not len(signal):
        return ()
    span = Span(int(signal.steps[0]), int(signal.steps[-1]))
    return (replace(Finding("made", signal.name, span, onset=span), **more),)


def outside(signal: Signal) -> tuple[Finding, ...]:
    return whole(signal, span=Span(int(signal.steps[0]), int(signal.steps[-1]) + 1)) if len(signal) else ()


def backwards(signal: Signal) -> tuple[Finding, ...]:
    return whole(signal, onset=Span(int(signal.steps[-1]), int(signal.steps[0]))) if len(signal) > 1 else ()


def meddles(signal: Signal) -> tuple[Finding, ...]:
    signal.values.flags.writeable = True
    signal.values[:1] = 0.123
    return ()


def numpy_steps(signal: Signal) -> tuple[Finding, ...]:
    return whole(signal, span=Span(signal.steps[0], signal.steps[-1])) if len(signal) else ()


BROKEN: dict[str, tuple[Detect, str]] = {
    "raises on nothing": (lambda s: whole(s, size=float(s.values[0])), "raised IndexError"),
    "divides by zero": (lambda s: whole(s, size=float(np.sum(1.0 / s.values))), "raised RuntimeWarning"),
    "unknown kind": (lambda s: whole(s, kind="other"), "the kind is not among"),
    "outside": (outside, "is not inside"),
    "backwards": (backwards, "is not inside"),
    "changes its input": (meddles, "changed its input"),
    "rolls dice": (lambda s: whole(s, strength=random.random()), "gave two answers"),
    "numpy steps": (numpy_steps, "steps are plain integers"),
    "numpy numbers": (lambda s: whole(s, size=np.float32(1.0)), "size and strength are plain floats"),
    "negative strength": (lambda s: whole(s, strength=-1.0), "is below zero or NaN"),
    "NaN strength": (lambda s: whole(s, strength=float("nan")), "is below zero or NaN"),
    "odd numbers": (lambda s: whole(s, numbers=Frozen(count=3)), "numbers are not plain floats"),
    "puts masks": (lambda s: whole(s, masks=("X1",)), "masks and ids are the pipe's"),
    "direction": (lambda s: whole(s, direction="sideways"), "direction 'sideways'"),
    "absolute steps": (lambda s: whole(s) if len(s) and s.steps[0] == 0 else (), "shifted steps"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_detector_is_told_what_it_broke(name: str) -> None:
    deed, words = BROKEN[name]
    with pytest.raises(AssertionError, match=words):
        testing.check_detector(Part(deed))


def test_a_unit_that_matters_is_told() -> None:
    spike = Part(lambda s: whole(s) if len(s) and np.nanmax(np.abs(s.values), initial=0.0) > 20 else (), shape="spike")
    with pytest.raises(AssertionError, match="the unit changes the spans"):
        testing.check_units(spike)


def test_an_honest_detector_passes() -> None:
    testing.check_detector(Part(whole))


def test_a_detector_that_can_be_changed_is_told() -> None:
    class Loose:
        shape = "loose"
        kinds = ("made",)

        def detect(self, signal: Signal) -> tuple[Finding, ...]:
            return ()

    with pytest.raises(AssertionError, match="can be set"):
        testing.check_detector(Loose())


# -- readers


def lines(paths: Sequence[Path]) -> RawRun:
    """Reads whole lines `step value`."""
    rows = [tuple(map(float, line.split())) for line in paths[-1].read_text().splitlines(keepends=True) if line.endswith("\n")]
    steps, values = np.array([r[0] for r in rows], np.int64), np.array([r[1] for r in rows], np.float64)
    return RawRun((RawSeries("loss", steps, values),), sources=(Source(str(paths[-1]), "lines"),))


def is_mine(path: Path) -> bool:
    return path.is_file() and path.suffix == ".rows" and path.stat().st_size > 0


@pytest.fixture
def rows(tmp_path: Path) -> list[Path]:
    path = tmp_path / "a.rows"
    path.write_text("".join(f"{i} {i * 0.5}\n" for i in range(50)))
    return [path]


def with_series(change: Callable[[RawSeries], RawSeries]) -> Callable[[Sequence[Path]], RawRun]:
    return lambda paths: replace(lines(paths), series=tuple(map(change, lines(paths).series)))


def sees_the_end(paths: Sequence[Path]) -> RawRun:
    return with_series(lambda s: replace(s, values=s.values / max(len(s.values), 1)))(paths)


def fails_when_cut(paths: Sequence[Path]) -> RawRun:
    if not paths[-1].read_text().endswith("\n"):
        raise ValueError("half a line")
    return lines(paths)


BAD_READS: dict[str, tuple[Callable[[Sequence[Path]], RawRun], str]] = {
    "no source": (lambda paths: replace(lines(paths), sources=()), "no source is named"),
    "lengths": (with_series(lambda s: replace(s, steps=s.steps[:-1])), "as many steps as values"),
    "types": (with_series(lambda s: replace(s, values=s.values.astype(np.float32))), "int64 steps and float64 values"),
    "times": (with_series(lambda s: replace(s, times=np.zeros(1))), "as many times as steps"),
    "source": (with_series(lambda s: replace(s, source=3)), "its source is not among the sources"),
    "dice": (with_series(lambda s: replace(s, values=s.values * random.random())), "gives two answers"),
    "end": (sees_the_end, "are not the first ones of the whole"),
    "cut": (fails_when_cut, "raised ValueError on the first"),
}


@pytest.mark.parametrize("name", BAD_READS)
def test_a_broken_reader_is_told_what_it_broke(name: str, rows: list[Path]) -> None:
    read, words = BAD_READS[name]
    with pytest.raises(AssertionError, match=words):
        testing.check_reader(Reader("lines", "Lines", is_mine, read), rows)


def test_an_honest_reader_passes(rows: list[Path]) -> None:
    assert len(testing.check_reader(Reader("lines", "Lines", is_mine, lines), rows).series[0].steps) == 50


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        (lambda path: False, "does not claim"),
        (lambda path: True, "claims a file that is not there"),
        (lambda path: path.is_file(), "claims a foreign file"),
        (lambda path: path.is_dir() or is_mine(path), "claims a directory"),
    ],
)
def test_claims_that_are_too_wide_or_too_narrow_are_told(claims: Callable[[Path], bool], words: str, rows: list[Path]) -> None:
    with pytest.raises(AssertionError, match=words):
        testing.check_reader(Reader("lines", "Lines", claims, lines), rows)


# -- rules


def test_a_rule_that_is_always_quiet_or_always_fires_is_told() -> None:
    rule = registry.rule("loss-spike")
    with pytest.raises(AssertionError, match="nothing is said"):
        testing.check_rule(replace(rule, judge=lambda case: ()))
    turned = tuple(Example(e.title, not e.fires, e.make, settings=e.settings, events=e.events) for e in rule.examples)
    with pytest.raises(AssertionError):
        testing.check_rule(replace(rule, examples=turned))


def test_a_rule_without_a_near_miss_or_an_example_is_told() -> None:
    rule = registry.rule("loss-spike")
    with pytest.raises(AssertionError, match="no near miss"):
        testing.check_rule(replace(rule, examples=tuple(e for e in rule.examples if e.fires)))
    with pytest.raises(AssertionError, match="no example fires"):
        testing.check_rule(replace(rule, examples=tuple(e for e in rule.examples if not e.fires)))


def test_every_broken_promise_of_a_diagnosis_has_its_words(make_diagnosis) -> None:  # type: ignore[no-untyped-def]
    rule = replace(registry.rule("gradient-explosion"), severity=Severity.CRITICAL)
    good = replace(make_diagnosis(), rule=rule.id)
    assert testing.broken_promises(rule, good) == []
    for change, words in (
        ({"rule": "other"}, "signed"),
        ({"evidence": ()}, "0 pieces of evidence"),
        ({"evidence": (*good.evidence, Evidence("x", role="primary"))}, "2 pieces of evidence"),
        ({"fixes": ()}, "there is no fix"),
        ({"causes": ()}, "shares"),
        ({"causes": (*good.causes, *good.causes)}, "shares"),
        ({"fixes": (good.fixes[0], good.fixes[0])}, "stands there twice"),
        ({"summary": "The loss rises by None."}, "a hole"),
    ):
        assert any(words in said for said in testing.broken_promises(rule, replace(good, **change))), words
    assert testing.broken_promises(replace(rule, severity=Severity.MINOR), good)
    clip = replace(good, rule="vanishing-gradient", fixes=(Fix("clip", "Clip the norm."),))
    assert testing.broken_promises(replace(rule, id="vanishing-gradient"), clip)
