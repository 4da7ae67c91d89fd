"""The promises that every part keeps, as functions: our own tests call them, and so can the author of a plug-in.

    from diagnose.testing import check_detector, check_reader

    def test_keeps_the_promises():
        check_detector(DETECTOR)

Each raises `AssertionError` with the promise and the input that broke it. They need nothing but numpy.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diagnose import synth
from diagnose.model import Diagnosis, Finding, Floats, Signal, Steps
from diagnose.parts import Detector, GroupDetector, RawRun, RawSeries, Reader, Rule

AnyDetector = Detector | GroupDetector
SHARES = (0.0, 0.01, 0.1, 0.37, 0.5, 0.9, 0.999)  # of a file, where it is cut


def signal(
    values: Floats | Sequence[float],
    *,
    steps: Steps | None = None,
    name: str = "x",
    multiplicative: bool = True,
    good: str = "down",
    **more: Any,
) -> Signal:
    """A signal of these values, with steps 0, 1, 2, ... and read-only arrays, as the pipe makes them."""
    array = np.array(values, np.float64)
    at = np.arange(len(array), dtype=np.int64) if steps is None else np.array(steps, np.int64)
    array.flags.writeable = at.flags.writeable = False
    return Signal(name, name, more.pop("unit", ""), steps=at, values=array, multiplicative=multiplicative, good=good, **more)


def of(curve: tuple[Steps, Floats], **more: Any) -> Signal:
    """A signal of a curve made by `synth`."""
    return signal(curve[1], steps=curve[0], **more)


# -- detectors


def findings(detector: AnyDetector, signals: Signal | Sequence[Signal]) -> tuple[Finding, ...]:
    """What the detector finds, in one signal or (a `GroupDetector`) in all of them; warnings are errors."""
    many = [signals] if isinstance(signals, Signal) else list(signals)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if isinstance(detector, GroupDetector):
            return detector.detect_group(many)
        return tuple(f for s in many for f in detector.detect(s))


def check_detector(detector: AnyDetector) -> None:
    """All promises that hold for any detector, on curves with faults, healthy ones and nasty ones."""
    assert detector.shape and detector.kinds, "a detector has a shape and kinds"
    check_frozen(detector)
    for title, one in nasty_signals():
        group = [one, *(replace(one, name=f"{one.name}/{k}") for k in range(4))] if isinstance(detector, GroupDetector) else one
        check_on(detector, group, title)
    for title, curve in sorted(faulty_curves().items()):
        for flags in ({"multiplicative": True, "good": "down"}, {"multiplicative": False, "good": "up"}):
            one = of(curve, **flags)
            check_on(detector, _family(one) if isinstance(detector, GroupDetector) else one, title)
    if not isinstance(detector, GroupDetector):
        check_units(detector)


def _family(one: Signal) -> list[Signal]:
    return [replace(one, name=f"grad_norm/layer/{k}", values=_still(one.values * 10.0**-k)) for k in range(6)]


def _still(values: Floats) -> Floats:
    values.flags.writeable = False
    return values


def check_frozen(detector: AnyDetector) -> None:
    """The detector's thresholds can't be changed from outside."""
    for name in ("shape", "kinds"):
        try:
            setattr(detector, name, getattr(detector, name))
        except (AttributeError, TypeError):
            continue
        raise AssertionError(f"{detector.shape}: `{name}` can be set; make it a frozen dataclass")


def check_on(detector: AnyDetector, signals: Signal | Sequence[Signal], title: str = "") -> tuple[Finding, ...]:
    """On one input: survives it without a warning, leaves it as it is, answers the same twice, and keeps the contract of findings."""
    many = [signals] if isinstance(signals, Signal) else list(signals)
    where = f"{detector.shape} on '{title or many[0].name}'"
    kept = [(s.steps.copy(), s.values.copy()) for s in many]
    try:
        found = findings(detector, signals)
    except Exception as error:
        raise AssertionError(f"{where}: raised {type(error).__name__}: {error}") from error
    for one, (steps, values) in zip(many, kept, strict=True):
        same = np.array_equal(one.steps, steps) and np.array_equal(one.values, values, equal_nan=True)
        assert same, f"{where}: changed its input"
    assert _told(found) == _told(findings(detector, signals)), f"{where}: gave two answers"
    for finding in found:
        check_finding(finding, detector, many, where)
    return found


def check_finding(finding: Finding, detector: AnyDetector, signals: Sequence[Signal], where: str = "") -> None:
    """The contract of a finding: a declared kind, spans inside the signal and ordered, plain numbers, no masks yet."""
    says = f"{where}: {finding.kind} {finding.span}"
    assert finding.kind in detector.kinds, f"{says}: the kind is not among {detector.kinds}"
    first = min(int(s.steps[0]) for s in signals if len(s))
    last = max(int(s.steps[-1]) for s in signals if len(s))
    for span in (finding.span, finding.onset):
        assert isinstance(span.first_step, int) and isinstance(span.last_step, int), f"{says}: steps are plain integers"
        assert first <= span.first_step <= span.last_step <= last, f"{says}: {span} is not inside {first} to {last} and ordered"
    assert finding.onset.first_step <= finding.span.last_step, f"{says}: begins after its end"
    assert finding.direction in ("up", "down", "none"), f"{says}: direction '{finding.direction}'"
    assert isinstance(finding.size, float) and isinstance(finding.strength, float), f"{says}: size and strength are plain floats"
    assert finding.strength >= 0, f"{says}: strength {finding.strength} is below zero or NaN"
    assert all(type(k) is str and type(v) is float for k, v in finding.numbers.items()), (
        f"{says}: numbers are not plain floats: {finding.numbers}"
    )
    assert not finding.masks and not finding.id, f"{says}: masks and ids are the pipe's"


def check_units(detector: Detector) -> None:
    """Shifted steps shift the spans; another unit changes none: x·a for a multiplicative signal, x·a + b for a plain one."""
    for title, (steps, values) in sorted(faulty_curves().items()):
        one = signal(values, steps=steps)
        base = findings(detector, one)
        moved = findings(detector, replace(one, steps=_moved(steps)))
        assert _spans(base, 10_000) == _spans(moved, 0), f"{detector.shape} on '{title}': shifted steps do not just shift the spans"
        for ratio, b in ((True, 0.0), (False, 64.0)):
            plain = findings(detector, signal(values, steps=steps, multiplicative=ratio))
            other = findings(detector, signal(values * 4.0 + b, steps=steps, multiplicative=ratio))
            if detector.shape in (UNITLESS if ratio else SHIFTABLE):
                assert _spans(plain, 0) == _spans(other, 0), f"{detector.shape} on '{title}': the unit changes the spans"


SHIFTABLE = ("spike", "growth", "level-shift", "period", "plateau", "drift", "nonfinite")
UNITLESS = (*SHIFTABLE, "stalls")  # the others compare with absolute numbers; slow is a ratio and has no other zero


def _moved(steps: Steps) -> Steps:
    out = steps + 10_000
    out.flags.writeable = False
    return out


def _spans(found: Sequence[Finding], shift: int) -> list[tuple[Any, ...]]:
    spans = [
        (f.kind, f.span.first_step + shift, f.span.last_step + shift, f.onset.first_step + shift, f.onset.last_step + shift) for f in found
    ]
    return sorted(spans)


def _told(found: Sequence[Finding]) -> str:
    return repr(found)  # NaN is not equal to itself, its text is


def nasty_signals() -> Iterator[tuple[str, Signal]]:
    """Signals that break careless arithmetic: empty, tiny, constant, huge, NaN, infinite, denormal, alternating, sparse."""
    nan, inf, big = math.nan, math.inf, 1e308
    dice = np.random.default_rng(0)
    wild = dice.standard_cauchy(500)
    holes = np.where(dice.random(400) < 0.5, nan, dice.random(400))
    arrays: dict[str, Sequence[float] | Floats] = {
        "nothing": [],
        "one": [1.0],
        "two": [1.0, 2.0],
        "three": [1.0, nan, 2.0],
        "one NaN": [nan],
        "all NaN": [nan] * 300,
        "all inf": [inf] * 300,
        "mixed infinities": [inf, -inf, nan] * 100,
        "constant": [3.0] * 300,
        "zeros": [0.0] * 300,
        "negative": [-1.0] * 300,
        "step": [0.0] * 150 + [1.0] * 150,
        "huge": [big] * 150 + [-big] * 150,
        "huge and tiny": [big, 5e-324] * 150,
        "denormal": [5e-324] * 300,
        "Cauchy": wild,
        "Cauchy, huge": wild * 1e300,
        "half NaN": holes,
        "last is NaN": [1.0] * 299 + [nan],
        "first is NaN": [nan] + [1.0] * 299,
        "alternating": [1.0, 2.0] * 150,
        "rising": np.arange(300.0),
        "falling to zero": np.linspace(1, 0, 300),
        "exponential": np.exp(np.linspace(0, 700, 300)),
        "two levels, NaN between": [1.0] * 140 + [nan] * 20 + [9.0] * 140,
        "powers of two": 2.0 ** np.floor(wild.clip(-30, 30)),
    }
    for title, values in arrays.items():
        for flags in (
            {"multiplicative": True},
            {"multiplicative": False, "good": "up"},
            {"good": "none", "resolution": 0.01, "settled_from": 30},
        ):
            yield title, signal(values, **flags)
    sparse = np.cumsum(dice.integers(1, 10**6, 300))
    yield "irregular steps", signal(dice.random(300) + 1.0, steps=sparse)
    yield "settled after the end", signal(dice.random(300), settled_from=10**9)
    yield "steps below zero", signal(dice.random(300) + 1.0, steps=np.arange(300) - 10**12)


def faulty_curves() -> Mapping[str, tuple[Steps, Floats]]:
    """One curve for each fault that `synth` can make, and healthy ones."""
    loss, norm, time = synth.loss(800), synth.norm(800), synth.step_time(800)
    return {
        "healthy loss": loss,
        "healthy norm": norm,
        "healthy step time": time,
        "rate": synth.rate(800),
        "loss scale": synth.loss_scale(800),
        "evaluation": synth.with_rise_after_minimum(synth.evals(), at=1500),
        "noise scale": synth.noise_scale(800),
        "spike": synth.with_spike(loss, at=500),
        "jump": synth.with_jump(norm, at=500, ratio=8.0),
        "explosion": synth.with_explosion(norm, at=600, rate=0.1),
        "explosion to NaN": synth.with_explosion(norm, at=600, to=math.nan),
        "divergence": synth.with_divergence(loss, at=500),
        "level shift": synth.with_level_shift(time, at=400, ratio=1.4),
        "level shift of the loss": synth.with_level_shift(loss, at=400),
        "period": synth.with_period(loss, period=40.0, amplitude=0.05),
        "alternation": synth.with_alternation(loss, amplitude=0.05),
        "drift": synth.with_drift(norm, total=1.5),
        "stalls": synth.with_stalls(time, every=50),
        "NaN": synth.with_nonfinite(loss, at=600),
        "plateau": synth.with_plateau(loss, at=300),
        "scale collapse": synth.with_collapse(synth.loss_scale(800), at=500),
    }


# -- readers


def check_reader(reader: Reader, files: Sequence[Path], *, exact: bool = True) -> RawRun:
    """All promises of a reader on the files of one run, in order; gives the run back, for what the caller knows about it.

    `exact=False` allows the last point of a cut file to differ: in a text format, half a number is a number.
    """
    files = [Path(f) for f in files]
    check_claims(reader, files)
    run = _read(reader, files)
    check_raw(run, f"{reader.id} on {files[0].name}")
    again = _read(reader, files)
    assert _points(run) == _points(again), f"{reader.id}: reading {files[0].name} twice gives two answers"
    check_truncated(reader, files, run, exact=exact)
    return run


def check_claims(reader: Reader, files: Sequence[Path]) -> None:
    """Claims its own file, and neither an empty nor a foreign nor a missing one; never raises."""
    assert any(reader.claims(f) for f in files), f"{reader.id}: does not claim {files[0].name}"
    with tempfile.TemporaryDirectory() as folder:
        missing = Path(folder) / files[0].name
        assert not reader.claims(missing), f"{reader.id}: claims a file that is not there"
        other = Path(folder) / "notes.md"
        for content in (b"", b"\x00" * 64, bytes(range(256)) * 8, b"# A heading\n\nSome words, no numbers.\n"):
            other.write_bytes(content)
            assert not reader.claims(other), f"{reader.id}: claims a foreign file that begins with {content[:8]!r}"
        assert not reader.claims(Path(folder)), f"{reader.id}: claims a directory"


def check_raw(run: RawRun, where: str) -> None:
    """The contract of what a reader hands over: equal lengths, plain types, and where it came from."""
    assert run.sources, f"{where}: no source is named"
    for series in run.series:
        says = f"{where}: '{series.name}'"
        assert len(series.steps) == len(series.values), f"{says}: as many steps as values"
        assert series.steps.dtype == np.int64 and series.values.dtype == np.float64, f"{says}: int64 steps and float64 values"
        assert series.times is None or len(series.times) == len(series.steps), f"{says}: as many times as steps"
        assert 0 <= series.source < len(run.sources), f"{says}: its source is not among the sources"
    assert all(type(p.where) is str and p.what for p in run.problems), f"{where}: a problem says where and what"


def check_truncated(reader: Reader, files: Sequence[Path], run: RawRun, *, exact: bool) -> None:
    """Any prefix of the last file reads without raising, and its points are the first points of the whole."""
    whole = {_key(s): s for s in run.series}
    last = files[-1]
    home = reader.home(last)
    base = home if home in last.parents else last.parent
    size = last.stat().st_size
    with tempfile.TemporaryDirectory() as folder:
        moved = [_copied(f, base, Path(folder)) for f in files]
        content = moved[-1].read_bytes()
        for cut in sorted({int(size * share) for share in SHARES} | {max(0, size - 1)}):
            moved[-1].write_bytes(content[:cut])
            short = _read(reader, moved, f"the first {cut} of {size} bytes")
            for series in short.series:
                _check_prefix(series, whole.get(_key(series)), exact, f"{reader.id}: '{series.name}' in the first {cut} of {size} bytes")


def _copied(file: Path, base: Path, folder: Path) -> Path:
    at = folder / base.name / (file.relative_to(base) if base in file.parents else file.name)
    at.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, at)
    return at


def _check_prefix(short: RawSeries, whole: RawSeries | None, exact: bool, says: str) -> None:
    n = len(short.steps) - (0 if exact else 1)
    if n <= 0:
        return
    assert whole is not None, f"{says}: is not in the whole file"
    same = len(whole.steps) >= n and np.array_equal(short.steps[:n], whole.steps[:n])
    assert same and np.array_equal(short.values[:n], whole.values[:n], equal_nan=True), (
        f"{says}: its points are not the first ones of the whole"
    )


def _read(reader: Reader, files: Sequence[Path], what: str = "the whole") -> RawRun:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return reader.read(files)
    except Exception as error:
        raise AssertionError(f"{reader.id}: raised {type(error).__name__} on {what} of {files[-1].name}: {error}") from error


def _key(series: RawSeries) -> tuple[Any, ...]:
    return series.name, series.rank, series.axis, series.group


def _points(run: RawRun) -> list[tuple[Any, ...]]:
    return [(*_key(s), s.steps.tobytes(), s.values.tobytes(), None if s.times is None else s.times.tobytes()) for s in run.series]


# -- rules


def broken_promises(rule: Rule, diagnosis: Diagnosis) -> list[str]:
    """Which parts of the contract of a diagnosis are broken, in words; empty when it keeps all of them."""
    says = []
    primary = [e for e in diagnosis.evidence if e.role == "primary"]
    words = " ".join([diagnosis.summary, *(e.says for e in diagnosis.evidence), *(f.do for f in diagnosis.fixes)])
    if diagnosis.rule != rule.id:
        says.append(f"it is signed '{diagnosis.rule}'")
    if len(primary) != 1:
        says.append(f"{len(primary)} pieces of evidence are primary, not one")
    if not diagnosis.fixes:
        says.append("there is no fix")
    if diagnosis.severity.rank > rule.severity.rank:
        says.append(f"it is {diagnosis.severity.value}, worse than the rule's {rule.severity.value}")
    if not diagnosis.causes or sum(c.share for c in diagnosis.causes) > 1.01:
        says.append("the shares of the causes do not add up to at most one")
    if len({c.id for c in diagnosis.causes}) < len(diagnosis.causes) or len({f.id for f in diagnosis.fixes}) < len(diagnosis.fixes):
        says.append("a cause or a fix stands there twice")
    if rule.id == "vanishing-gradient" and any("clip" in f"{f.id} {f.do}".lower() for f in diagnosis.fixes):
        says.append("clipping is offered against vanishing gradients")
    if any("zero" in c.setting or "contiguous" in c.setting for f in diagnosis.fixes for c in f.changes):
        says.append("a ZeRO stage or contiguous_gradients is offered as a cure")
    if any(bad in words for bad in ("None", "{", "}")):
        says.append(f"a sentence has a hole: {words}")
    return says


def check_rule(rule: Rule) -> None:
    """Judges every example of a rule through all detectors: it fires (above *info*) on those that say so, stays quiet on the
    near misses, and keeps its contract. Rivals are not asked: an example is about its own rule."""
    from diagnose.engine import judge_signals  # the whole pipe: only tests of rules pay for it

    assert any(e.fires for e in rule.examples), f"{rule.id}: no example fires"
    assert any(not e.fires for e in rule.examples), f"{rule.id}: there is no near miss"
    for example in rule.examples:
        signals = {name: of(curve, name=name) for name, curve in example.make().items()}
        case, _ = judge_signals(signals, settings=example.settings, events=example.events)
        place = f"{rule.id}, '{example.title}'"
        missing = [need for need in rule.needs if not case.has(need)]
        assert not missing, f"{place}: {missing} is not there"
        given = list(rule.judge(case))
        assert any(d.severity.rank > 0 for d in given) == example.fires, f"{place}: {[d.summary for d in given] or 'nothing is said'}"
        for diagnosis in given:
            broken = broken_promises(rule, diagnosis)
            assert not broken, f"{place}: {broken}"


__all__ = [
    "broken_promises",
    "check_claims",
    "check_detector",
    "check_finding",
    "check_frozen",
    "check_on",
    "check_raw",
    "check_reader",
    "check_rule",
    "check_truncated",
    "check_units",
    "faulty_curves",
    "findings",
    "nasty_signals",
    "of",
    "signal",
]
