from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diagnose import engine, registry, synth
from diagnose.case import Case
from diagnose.errors import NothingReadable
from diagnose.model import Confidence, Diagnosis, Evidence, Finding, Fix, Frozen, Mask, Outcome, Report, Severity, Span, Status
from diagnose.parts import Rule
from diagnose.reports import json_v1
from diagnose.testing import of


def rule(id: str, judge: Any, **more: Any) -> Rule:
    return Rule(id, id, "dynamics", Severity.MAJOR, "preview", "0.1", **{"needs": ("loss/train",), "uses": (), "judge": judge, **more})


def said(id: str, *, at: int = 100, **more: Any) -> Diagnosis:
    return Diagnosis(
        id,
        f"{id} happened.",
        Severity.MAJOR,
        confidence=Confidence.MEDIUM,
        onset=Span(at, at),
        evidence=(Evidence("It is so.", role="primary"),),
        fixes=(Fix("f", "Fix it."),),
        **more,
    )


@pytest.fixture
def judged_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The outcomes of a run of a thousand steps under these rules only."""

    def judged(*rules: Rule, facts: Any = None) -> dict[str, Outcome]:
        monkeypatch.setattr(registry, "rules", lambda: registry.Parts(rules))
        case = Case("run", signals=Frozen({"loss/train": of(synth.loss(1000))}), facts=Frozen(first_step=0, last_step=999))
        return {o.rule: o for o in engine.judge_case(case)}

    yield judged


def test_a_rule_that_fails_costs_itself(judged_by: Any) -> None:
    def fails(case: Case) -> Any:
        raise KeyError("peak")

    out = judged_by(rule("bad", fails), rule("good", lambda case: [said("good")]))
    assert (out["bad"].status, out["bad"].error) == (Status.FAILED, "KeyError: 'peak'")
    assert out["good"].status is Status.FIRED


def test_a_rule_that_fails_half_way_says_nothing(judged_by: Any) -> None:
    def half(case: Case) -> Iterator[Diagnosis]:
        yield said("half")
        raise ValueError("later")

    assert judged_by(rule("half", half))["half"].diagnoses == ()


def test_what_is_not_logged_is_not_looked_at_and_not_quiet(judged_by: Any) -> None:
    out = judged_by(
        rule("blind", lambda case: [said("blind")], needs=("loss/train", "lr|mfu", "grad_norm/layer/*")),
        rule("quiet", lambda case: [], wants=("lr",)),
    )
    assert (out["blind"].status, out["blind"].missing) == (Status.NOT_APPLICABLE, ("lr|mfu", "grad_norm/layer/*"))
    assert (out["quiet"].status, out["quiet"].missing) == (Status.QUIET, ("lr",))


def test_a_diagnosis_gives_way_to_the_rival_that_it_names_at_the_same_place(judged_by: Any) -> None:
    out = judged_by(rule("effect", lambda case: [said("effect", rivals=("cause",))]), rule("cause", lambda case: [said("cause", at=110)]))
    assert out["effect"].diagnoses[0].severity is Severity.INFO
    assert out["cause"].diagnoses[0].severity is Severity.MAJOR
    far = judged_by(rule("effect", lambda case: [said("effect", rivals=("cause",))]), rule("cause", lambda case: [said("cause", at=800)]))
    assert far["effect"].diagnoses[0].severity is Severity.MAJOR


def test_two_that_name_each_other_both_stay(judged_by: Any) -> None:
    out = judged_by(rule("a", lambda case: [said("a", rivals=("b",))]), rule("b", lambda case: [said("b", rivals=("a",))]))
    assert all(o.diagnoses[0].severity is Severity.MAJOR for o in out.values())


def test_a_known_event_explains_only_what_it_normally_does() -> None:
    drop = synth.with_level_shift(synth.loss(1000), at=500, ratio=0.8)
    rise = synth.with_level_shift(synth.loss(1000), at=500, ratio=1.25)
    mask = (Mask("X1", "lr-change at 500", Span(480, 540)),)

    def shifts(curve: Any) -> list[Finding]:
        return [f for f in engine.examine({"loss/train": of(curve, name="loss/train")}, mask) if f.kind == "level-shift"]

    assert [f.masks for f in shifts(drop) if f.onset.overlaps(Span(490, 510))] == [("X1: lr-change at 500",)]
    assert shifts(rise) and not any(f.masks for f in shifts(rise))  # a falling rate never explains a rising loss


def test_findings_are_numbered_in_the_order_of_their_onsets() -> None:
    curve = synth.with_spike(synth.with_nonfinite(synth.loss(1000), at=300, points=3), at=700)
    found = engine.examine({"loss/train": of(curve, name="loss/train")})
    assert [f.id for f in found] == [f"f{i}" for i in range(1, len(found) + 1)]
    onsets = [f.onset.first_step for f in found]
    assert onsets == sorted(onsets) and len(onsets) >= 2


def log(path: Path, curve: Any = None, *, every: int = 1) -> Path:
    """A log of a healthy run, or of this curve as its loss."""
    steps, loss = curve or synth.loss(600)
    _, norm = synth.norm(600)
    rows = [{"step": int(s), "loss": float(v), "grad_norm": float(g)} for s, v, g in zip(steps, loss, norm, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plain(report: Report) -> Any:
    """A report as JSON without what a clock or the path of its file decides."""
    made = json.loads(json_v1.render(report))
    for outcome in made["outcomes"]:
        outcome.pop("took_s", None)
    return made


def test_a_diverged_run_is_judged_and_a_healthy_one_is_not(tmp_path: Path) -> None:
    healthy = engine.diagnose(log(tmp_path / "healthy.jsonl"))
    assert healthy.worst is None or healthy.worst is Severity.INFO
    assert healthy.verdict.startswith("Nothing wrong found: ")
    bad = engine.diagnose(log(tmp_path / "bad.jsonl", synth.with_divergence(synth.loss(600), at=350, rise=0.8)))
    assert bad.diagnoses[0].rule == "loss-divergence"
    assert "loss-divergence" in bad.verdict
    onset = bad.diagnoses[0].onset
    assert onset is not None and abs(onset.last_step - 350) < 60


def test_a_saved_table_gives_the_same_report(tmp_path: Path) -> None:
    run = engine.read(log(tmp_path / "run.jsonl", synth.with_spike(synth.loss(600), at=400)))
    run.save(tmp_path / "run.parquet")
    assert plain(engine.diagnose(tmp_path / "run.parquet")) == plain(engine.judge(run))


def test_judging_twice_gives_the_same_report(tmp_path: Path) -> None:
    run = engine.read(log(tmp_path / "run.jsonl", synth.with_explosion(synth.loss(600), at=500)))
    assert plain(engine.judge(run)) == plain(engine.judge(run))


def test_every_curve_of_the_report_keeps_its_extremes(tmp_path: Path) -> None:
    steps, loss = synth.with_jump(synth.loss(600), at=300, ratio=9.0)
    report = engine.diagnose(log(tmp_path / "run.jsonl", (steps, loss)))
    (curve,) = [c for c in report.curves if c.name == "loss/train"]
    assert curve.points == 600
    assert np.max(curve.values) == pytest.approx(loss.max())


def test_several_runs_are_not_one(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        log(tmp_path / name / "log.jsonl")
    with pytest.raises(NothingReadable, match="holds 2 runs"):
        engine.diagnose(tmp_path)


def test_a_finding_that_no_diagnosis_rests_on_is_told_as_unexplained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "rules", lambda: registry.Parts((rule("silent", lambda case: []),)))
    report = engine.diagnose(log(tmp_path / "run.jsonl", synth.with_spike(synth.loss(600), at=400, ratio=3.0, width=40)))
    kinds = {f.id: f.kind for f in report.findings}
    assert "spike" in {kinds[i] for i in report.unexplained}


def test_the_verdict_names_the_worst_and_counts_the_others(make_report: Any, make_diagnosis: Any) -> None:
    report = make_report("r", make_diagnosis(Severity.MINOR), replace(make_diagnosis(Severity.CRITICAL), rule="worse"))
    assert engine.verdict(report).startswith("CRITICAL: ")
    assert engine.verdict(report).endswith("[worse, medium confidence] (+1 more)")
    assert (
        engine.verdict(make_report("r")) == "Nothing wrong found: 1 rules looked at 600 points; 1 could not look (see what is not logged)."
    )
