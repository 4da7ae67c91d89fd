"""Hand-made reports for the tests of outputs and the command line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from diagnose.model import (
    Cause,
    Change,
    Confidence,
    Curve,
    Diagnosis,
    Event,
    Evidence,
    Finding,
    Fix,
    Frozen,
    Mask,
    Outcome,
    Problem,
    Report,
    Setting,
    Severity,
    Source,
    Span,
    Status,
)

# what a log may hold: terminal escapes, HTML, table and code marks, line breaks, a direction override, a lone surrogate
NASTY = "\x1b[31m<script>alert(1)</script> | `tick` ``` @all\r\n# head [x](http://e.x) \x07\u202e\ud800 **b** &amp;"


def explosion(severity: Severity = Severity.CRITICAL, step: int = 14_200) -> Diagnosis:
    """A diagnosis with everything that a diagnosis can have."""
    return Diagnosis(
        "gradient-explosion",
        f"The gradient norm rises from 0.9 to 4.1e4 at step {step}.",
        severity,
        confidence=Confidence.MEDIUM,
        onset=Span(step, step + 20),
        end_step=step + 300,
        period_steps=12.5,
        evidence=(
            Evidence("The loss follows 30 steps later.", span=Span(step + 30, step + 40), about="loss/train"),
            Evidence("grad_norm grows by 12 % a step.", span=Span(step, step + 20), role="primary", about="f1"),
            Evidence("The learning rate did not change.", role="against", about="lr"),
        ),
        causes=(
            Cause(
                "lr-too-high",
                "The learning rate is too high",
                share=0.62,
                because=(Evidence("It is 4 times the usual."), Evidence("Warm-up is long.", role="against")),
                would_decide="update_ratio",
            ),
            Cause("bad-data", "A bad batch", share=0.3),
        ),
        fixes=(
            Fix(
                "lower-lr",
                "Halve the learning rate.",
                because="The update was too large.",
                expect="The norm stays below 5.",
                caution="Training takes longer.",
                changes=(
                    Change("optimizer.lr", "scale", 0.5, now=0.0012),
                    Change("gradient_clipping", "set", 1.0),
                    Change("warmup", "add", 100),
                ),
                spelled=Frozen({"pytorch": "optimizer = AdamW(params, lr=6e-4)", "deepspeed": '{\n  "gradient_clipping": 1.0\n}'}),
                safety="safe",
            ),
            Fix("skip", "Skip the batch."),
        ),
        rivals=("loss-divergence",),
    )


def made(name: str = "gpt", *diagnoses: Diagnosis, **more: object) -> Report:
    """A readable report with these diagnoses."""
    steps = np.arange(0, 15_000, 50, dtype=np.int64)
    norms = np.where(steps < 14_200, 1.0 + 0.1 * np.sin(steps), np.exp((steps - 14_200) / 60.0))
    norms[100] = 900.0  # one spike of one point
    norms[-2:] = [np.nan, np.inf]
    loss = 3.0 - steps / 15_000
    parts: dict[str, object] = {
        "outcomes": (
            *(Outcome(d.rule, Status.FIRED, diagnoses=(d,)) for d in diagnoses),
            Outcome("loss-spike", Status.QUIET, took_s=0.01),
            Outcome("noise-scale-drift", Status.NOT_APPLICABLE, missing=("noise_scale|noise_scale/small",)),
        ),
        "findings": (
            Finding(
                "growth", "grad_norm", Span(14_200, 14_900), direction="up", size=4e4, strength=41.26, onset=Span(14_200, 14_220), id="f1"
            ),
            Finding("level-shift", "loss/train", Span(400, 900), onset=Span(400, 410), masks=("X1: lr-change at 400",), id="f2"),
            Finding(
                "spike",
                "grad_norm",
                Span(5000, 5000),
                direction="up",
                strength=9.0,
                onset=Span(5000, 5000),
                id="f3",
                numbers=Frozen(peak=math.inf),
            ),
        ),
        "unexplained": ("f3",),
        "masks": (Mask("X1", "lr-change at 400", Span(400, 450)),),
        "curves": (
            Curve("loss/train", "lm loss", "nats", steps, loss, points=300),
            Curve("grad_norm", "gnorm", "", steps, norms, points=300),
        ),
        "events": (Event("overflow", "OVERFLOW! skipping", where="log:3", step=7, time=1.5, rank=0, numbers=Frozen(scale=math.nan)),),
        "settings": (
            Setting("optimizer.lr", 0.0012, spelled="lr"),
            Setting("odd", [1, None, True, "NaN", math.inf], spelled="odd", where="c.json"),
        ),
        "sources": (Source("runs/gpt/log.txt", "deepspeed-console", "0.14.2"),),
        "problems": (Problem("log.txt:17", "half a line"),),
        "missing": Frozen({"noise_scale|noise_scale/small": ("noise-scale-drift",)}),
        "advice": Frozen({"noise_scale|noise_scale/small": "writer.add_scalar('noise_scale', value, step)"}),
        "made_by": "diagnose 0.1.0",
    }
    verdict = (
        f"{diagnoses[0].severity.value.upper()}: {diagnoses[0].summary}"
        if diagnoses
        else "Nothing wrong found: 2 rules looked at 600 points."
    )
    run = {"name": name, "path": f"runs/{name}", "step_unit": "step", "first_step": 0, "last_step": 14_950, "points": 600, "attempts": 2}
    return Report(Frozen({**run, "framework": "deepspeed"}), verdict, **{**parts, **more})  # type: ignore[arg-type]


def hostile_report() -> Report:
    """A report in which every text that can come from a log, a configuration or a plug-in is nasty."""
    n = NASTY
    diagnosis = Diagnosis(
        "plug-in",
        n,
        Severity.MAJOR,
        confidence=Confidence.LOW,
        evidence=(Evidence(n, role="primary", about=n), Evidence(n, role="against")),
        causes=(Cause(n, n, share=math.nan, because=(Evidence(n), Evidence(n, role="against")), would_decide=n),),
        fixes=(Fix(n, n, because=n, expect=n, caution=n, changes=(Change(n, "set", n, now=n),), spelled=Frozen({n: n + "\n" + n})),),
        rivals=(n,),
    )
    steps = np.arange(5, dtype=np.int64)
    curve = Curve(n, n, n, steps, np.array([1.0, np.nan, 2.0, -np.inf, 3.0]), points=5)
    return Report(
        Frozen({"name": n, "path": n, "points": 5, "first_step": 0, "last_step": 4, "framework": n, "step_unit": n}),
        n,
        outcomes=(Outcome("plug-in", Status.FIRED, diagnoses=(diagnosis,)), Outcome(n, Status.FAILED, error=n)),
        findings=(
            Finding(n, n, Span(1, 2), onset=Span(1, 1), id=n, masks=(n,)),
            Finding(n, n, Span(1, 2), onset=Span(1, 1), id="u", numbers=Frozen({n: 1.0})),
        ),
        unexplained=("u",),
        masks=(Mask(n, n, Span(0, 1)),),
        curves=(curve,),
        events=(Event(n, n, where=n),),
        settings=(Setting(n, n, spelled=n, where=n),),
        sources=(Source(n, n, n),),
        problems=(Problem(n, n),),
        missing=Frozen({n: (n,)}),
        advice=Frozen({n: n}),
        made_by=n,
    )


@pytest.fixture
def exploded() -> Report:
    return made("gpt", explosion())


@pytest.fixture
def healthy() -> Report:
    return made("calm")


@pytest.fixture
def hostile() -> Report:
    return hostile_report()


@pytest.fixture
def dead() -> Report:
    return Report(
        Frozen({"name": "dead", "path": "runs/dead", "points": 0}),
        "Could not judge: runs/dead: an empty file.",
        problems=(Problem("runs/dead", "an empty file."),),
    )


@pytest.fixture
def several(exploded: Report, healthy: Report, hostile: Report, dead: Report) -> list[Report]:
    return [healthy, hostile, dead, exploded]


@pytest.fixture
def make_report():  # type: ignore[no-untyped-def]
    return made


@pytest.fixture
def make_diagnosis():  # type: ignore[no-untyped-def]
    return explosion


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--golden` writes the golden reports anew."""
    parser.addoption("--golden", action="store_true", help="write the golden reports anew")
