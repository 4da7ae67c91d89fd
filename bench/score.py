#!/usr/bin/env python3
"""Accuracy on a labelled corpus: judges every run, writes predictions, calls the corpus's own scorer, adds the result to a table.

  python bench/score.py --corpus DIR [--cases DIR] [--preds FILE] [--results bench/RESULTS.md] [--jobs N] [--per-run]

DIR is laid out as faultbench (labels.jsonl, runs/<id>/, score.py); the cases folder holds INDEX.tsv and one log a case. The map
from our rule and cause ids to the corpus's kinds is bench/kinds.json, one readable file; a rule maps only to what it means.
Nothing here looks at labels before the predictions are written.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
KINDS = HERE / "kinds.json"


def judged(path: str) -> dict[str, Any]:
    """One run's report as plain data; a run that can't be read says so."""
    from diagnose import engine
    from diagnose.errors import DiagnoseError

    try:
        targets = engine.discover([Path(path)])
        reports = [engine.diagnose(t) for t in targets]
    except DiagnoseError as error:
        return {"unread": str(error), "findings": []}
    findings = []
    failed = []
    for report in reports:
        failed += [f"{o.rule}: {o.error}" for o in report.outcomes if o.error]
        findings += [
            {
                "kind": d.rule,
                "onset_step": None if d.onset is None else d.onset.first_step,
                "end_step": d.end_step,
                "period_steps": d.period_steps,
                "severity": d.severity.value,
                "confidence": d.confidence.value,
                "summary": d.summary,
                "causes": [c.id for c in d.causes],
                "fixes": [f.do for f in d.fixes],
            }
            for d in report.diagnoses
        ]
    unread = "" if any(r.readable for r in reports) else "; ".join(r.verdict for r in reports)
    return {"unread": unread, "findings": findings, "failed": failed}


def score_corpus(corpus: Path, preds: Path, jobs: int, per_run: bool) -> tuple[dict[str, Any], str, int]:
    """Predictions for every run of the corpus into `preds`, then the corpus's own scorer on them."""
    ids = sorted(p.name for p in (corpus / "runs").iterdir())
    with ProcessPoolExecutor(jobs) as pool:
        results = list(pool.map(judged, [str(corpus / "runs" / i) for i in ids], chunksize=4))
    preds.write_text("".join(json.dumps({"id": i, **r}) + "\n" for i, r in zip(ids, results, strict=True)))
    for i, r in zip(ids, results, strict=True):
        for failure in r.get("failed", ()):
            print("RULE FAILED", i, failure)
    unread = [i for i, r in zip(ids, results, strict=True) if r["unread"]]
    out = preds.with_suffix(".score.json")
    args = [
        sys.executable,
        str(corpus / "score.py"),
        str(preds),
        "--map",
        str(KINDS),
        "--json",
        str(out),
        *(["--per-run"] if per_run else []),
    ]
    base = subprocess.run(args, capture_output=True, text=True, check=True)
    major = subprocess.run([*args, "--min-severity", "major"], capture_output=True, text=True, check=True)
    at_major = json.loads(out.read_text())["summary"]
    subprocess.run(args, capture_output=True, text=True, check=True)
    summary = json.loads(out.read_text())["summary"]
    summary["false_alarms_major"] = at_major["false_alarms_per_healthy_run"]
    summary["healthy_runs_alarmed_major"] = at_major["healthy_runs_with_alarm"]
    return summary, base.stdout + ("\n-- at major\n" + major.stdout.split("\n\n")[-1] if per_run else ""), len(unread)


def score_cases(cases: Path) -> list[dict[str, Any]]:
    """What is said of every pasted case, beside what a good tool says."""
    rows = []
    with (cases / "INDEX.tsv").open(encoding="utf-8") as handle:
        for row in csv.DictReader(handle, delimiter="\t"):
            name = row.get("case") or row.get("file") or ""
            path = next(iter(sorted(cases.glob(f"{name}*"))), None)
            said = judged(str(path)) if path else {"unread": "no such file", "findings": []}
            ranks = {"info": 0, "minor": 1, "major": 2, "critical": 3}
            worst = max((ranks[f["severity"]] for f in said["findings"]), default=-1)
            rows.append(
                {
                    "case": name,
                    "expect": row.get("expect", ""),
                    "worst": worst,
                    "unread": said["unread"],
                    "said": ", ".join(f"{f['kind']} ({f['severity']})" for f in said["findings"]),
                }
            )
    return rows


def cases_summary(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Counts against what is expected: critical at major or above, warn at minor or above, ok at most info, info at most minor."""
    want = {"critical": lambda w: w >= 2, "warn": lambda w: w >= 1, "ok": lambda w: w <= 0, "info": lambda w: w <= 1}
    out = {}
    for expect, good in want.items():
        mine = [r for r in rows if r["expect"] == expect]
        out[expect] = f"{sum(good(r['worst']) for r in mine)} of {len(mine)}"
    out["read"] = f"{sum(not r['unread'] for r in rows)} of {len(rows)}"
    return out


def table(summary: dict[str, Any], unread: int, cases: dict[str, str] | None) -> str:
    """The Markdown table of bench/RESULTS.md."""
    s = summary
    rows = [
        ("event recall", f"{s['recall']:.2f}", "0.30"),
        ("macro recall over kinds", f"{s['macro_recall']:.2f}", ""),
        ("precision at minor or above", f"{s['precision']:.2f}", "0.65"),
        (
            "false alarms a healthy run, minor or above",
            f"{s['false_alarms_per_healthy_run']:.3f} ({s['healthy_runs_with_alarm']} of {s['healthy_runs']} runs)",
            "0.12",
        ),
        ("false alarms a healthy run, major or above", f"{s['false_alarms_major']:.3f} ({s['healthy_runs_alarmed_major']} runs)", ""),
        ("onset, median error in steps", f"{s['onset_median_error']}", ""),
        ("cause named first", f"{s['cause_accuracy']:.2f}", "0.13"),
        ("cause among three", f"{s['cause_top3']:.2f}", ""),
        ("first fix accepted", f"{s['fix_accuracy']:.2f}", ""),
        ("a fix among three accepted", f"{s['fix_top3']:.2f}", ""),
        ("period right where there is one", f"{s['period_accuracy']:.2f}", ""),
        ("runs not read", str(unread), "0.29 of runs"),
    ]
    lines = ["| measure | diagnose | best peer on raw files |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]
    if cases:
        lines += [
            "",
            "Pasted cases (severity as a good tool would say it):",
            "",
            "| expected | right |",
            "|---|---|",
            *(f"| {k} | {v} |" for k, v in cases.items()),
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--preds", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--per-run", action="store_true")
    args = parser.parse_args()
    cases = None
    if args.cases:
        rows = score_cases(args.cases)
        cases = cases_summary(rows)
        for row in rows:
            print(f"{row['case'][:46]:46s} {row['expect']:9s} {'UNREAD' if row['unread'] else row['said']}")
        print(cases)
    if args.corpus:
        with tempfile.TemporaryDirectory() as scratch:
            preds = args.preds or Path(scratch) / "preds.jsonl"
            summary, text, unread = score_corpus(args.corpus, preds, args.jobs, args.per_run)
        print(text)
        print(table(summary, unread, cases))
        if args.results:
            from diagnose.engine import MADE_BY

            command = "python bench/score.py --corpus DIR --cases DIR --results bench/RESULTS.md"
            head = f"# Accuracy\n\nWritten by `{command}` on the development part of the corpus"
            args.results.write_text(
                f"{head}, {MADE_BY}.\n\n{table(summary, unread, cases)}\n\n```\n{text.strip()}\n```\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
