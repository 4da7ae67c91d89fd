"""The page: drop a log, give a path or paste lines; see the verdict, the curves that carry it, the causes and the fixes.

Thin on purpose: it picks runs, and draws the outline that every other output draws too. Texts from logs are shown as text,
never as HTML or Markdown. Paths are allowed only below the directories in DIAGNOSE_ALLOWED (`:`-separated; default: where the server
was started).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import streamlit as st

import diagnose
from diagnose import engine, outline, registry
from diagnose.errors import DiagnoseError
from diagnose.model import Curve, Report

MOST_FILES = 2000  # members of one archive
MOST_BYTES = 512 << 20  # of one archive, unpacked
MOST_RATIO = 200  # unpacked over packed: beyond it an archive is a bomb
COLOURS = {"critical": "red", "major": "orange", "minor": "blue", "info": "gray", "none": "green"}


def allowed(path: Path) -> bool:
    """Whether a path lies below a directory that the server's owner allows."""
    roots = os.environ.get("DIAGNOSE_ALLOWED", os.getcwd()).split(os.pathsep)
    real = path.resolve()
    return any(real == Path(r).resolve() or Path(r).resolve() in real.parents for r in roots if r)


def unpack(archive: Path, into: Path) -> str:
    """Unpacks a zip's plain files below `into`; returns what was left out, or an empty string."""
    left, total = 0, 0
    try:
        with zipfile.ZipFile(archive) as packed:
            for member in packed.infolist()[: MOST_FILES + 1]:
                name = PurePosixPath(member.filename.replace("\\", "/"))
                link = (member.external_attr >> 16) & 0o170000 == 0o120000
                bomb = member.file_size > MOST_RATIO * max(member.compress_size, 1) and member.file_size > 1 << 20
                total += member.file_size
                if member.is_dir():
                    continue
                if name.is_absolute() or ".." in name.parts or link or bomb or total > MOST_BYTES:
                    left += 1
                    continue
                target = into.joinpath(*name.parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with packed.open(member) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out, 1 << 20)
            left += max(0, len(packed.infolist()) - MOST_FILES)
    except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
        return f"{archive.name} could not be unpacked ({error})"
    return f"{left} members of {archive.name} were left out (paths outside, links, or too large)" if left else ""


@st.cache_data(show_spinner=False, max_entries=8)
def judged_upload(files: tuple[tuple[str, bytes], ...]) -> tuple[list[Report], list[bytes], list[str]]:
    """Reports, tables and remarks for uploaded files, which live in a temporary folder while they are read."""
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        base, notes = Path(folder), []
        for name, content in files:
            path = base / Path(name.replace("\\", "/")).name
            path.write_bytes(content)
            if zipfile.is_zipfile(path):
                place = base / f"{path.stem}.d"
                place.mkdir(exist_ok=True)
                if note := unpack(path, place):
                    notes.append(note)
                path.unlink()
        return (*judged(base), notes)


@st.cache_data(show_spinner=False, max_entries=8)
def judged_path(path: str, stamp: float) -> tuple[list[Report], list[bytes], list[str]]:
    """Reports and tables for a path on the server; `stamp` makes a changed file a new question."""
    return (*judged(Path(path)), [])


def judged(path: Path) -> tuple[list[Report], list[bytes]]:
    """Every run below a path, worst first, with its table as Parquet; a lone upload is named after its file."""
    pairs = []
    with tempfile.TemporaryDirectory(prefix="diagnose-") as scratch:
        for target in engine.discover([path]):
            run = engine.read(target)
            if target.home == path and path.name.startswith("diagnose-"):
                run = replace(run, name=target.files[0][1].name)
            table = Path(scratch) / "run.parquet"
            run.save(table)
            pairs.append((engine.judge(run), table.read_bytes()))
    pairs.sort(key=lambda p: -(p[0].worst.rank if p[0].worst else -1))
    return [r for r, _ in pairs], [t for _, t in pairs]


def main() -> None:
    """The whole page."""
    st.set_page_config("diagnose", layout="wide")
    st.title("diagnose")
    st.caption("Why did the training run die? Drop its log. Nothing leaves this machine.")
    files = st.file_uploader("Log files, or a zip of a run folder", accept_multiple_files=True)
    with st.expander("or give a path, or paste lines"):
        path = st.text_input("Path on this machine", key="path")
        pasted = st.text_area("Lines of a log", height=120, key="pasted")
    try:
        with st.spinner("Reading and judging"):
            found = _asked(files, path, pasted)
    except DiagnoseError as error:
        st.error(outline.clean(str(error)), icon="🚫")
        return
    if found is None:
        st.info("TensorBoard event files, W&B `.wandb` logs and DeepSpeed consoles are read, with the configuration beside them.")
        return
    reports, tables, notes = found
    for note in notes:
        st.warning(outline.clean(note))
    show(reports, tables)


def _asked(files: Any, path: str, pasted: str) -> tuple[list[Report], list[bytes], list[str]] | None:
    if files:
        return judged_upload(tuple((f.name, f.getvalue()) for f in files))
    if path:
        place = Path(path).expanduser()
        if not allowed(place):
            raise DiagnoseError(
                "is outside the directories that this server may read.", where=path, hint="Its owner sets DIAGNOSE_ALLOWED."
            )
        return judged_path(str(place), place.stat().st_mtime if place.exists() else 0.0)
    return judged_upload((("pasted.log", pasted.encode()),)) if pasted.strip() else None


def show(reports: list[Report], tables: list[bytes]) -> None:
    """A table over the runs when there are several, and one run in full."""
    pick = 0
    if len(reports) > 1:
        rows = [
            {
                "severity": r.worst.value if r.worst else "none",
                "run": outline.clean(str(r.run["name"])),
                "verdict": outline.clean(r.verdict),
            }
            for r in reports
        ]
        st.dataframe(pd.DataFrame(rows), hide_index=True, width="stretch")
        names = [row["run"] for row in rows]
        pick = names.index(st.selectbox("Run", names, key="run"))
    report = reports[pick]
    said = outline.outline(report)
    severity = report.worst.value if report.worst else "none"
    st.header(outline.clean(str(report.run["name"])), divider=COLOURS[severity])
    banner = {"critical": st.error, "major": st.error, "minor": st.warning}.get(severity, st.success if report.readable else st.warning)
    banner(_escaped(said.verdict))
    _downloads(report, tables[pick])
    for section in said.sections:
        st.subheader(section.title)
        for block in section.blocks:
            draw(block, report)
    st.subheader("Curves")
    _curves(report, outline.ChartSpec("All", tuple(c.name for c in report.curves[:6])))


def _downloads(report: Report, table: bytes) -> None:
    name = "".join(ch if ch.isalnum() else "-" for ch in str(report.run["name"]))[:60] or "run"
    columns = st.columns(3)
    columns[0].download_button("JSON", registry.renderer("json").render(report), f"{name}.json", "application/json", width="stretch")
    columns[1].download_button("Markdown", registry.renderer("markdown").render(report), f"{name}.md", "text/markdown", width="stretch")
    columns[2].download_button("Parquet", table, f"{name}.parquet", "application/vnd.apache.parquet", width="stretch")


def _escaped(text: str) -> str:
    """Text as text: Markdown's and HTML's own marks are made harmless."""
    out = outline.clean(text)
    for mark in "\\`*_{}[]()#+!|<>$~:":
        out = out.replace(mark, "\\" + mark)
    return out


def draw(block: Any, report: Report) -> None:
    """One block of the outline."""
    if isinstance(block, outline.Text):
        st.markdown(_escaped(block.says))
    elif isinstance(block, outline.KeyValues):
        st.dataframe(pd.DataFrame(block.pairs, columns=["", " "]), hide_index=True, width="stretch")
    elif isinstance(block, outline.Table):
        st.dataframe(pd.DataFrame([list(r) for r in block.rows], columns=list(block.columns)), hide_index=True, width="stretch")
    elif isinstance(block, outline.Snippet):
        if block.title:
            st.markdown(_escaped(block.title))
        st.code(block.code, language=block.language or None)
    elif isinstance(block, outline.ChartSpec):
        _curves(report, block)
    elif isinstance(block, outline.Card):
        _card(block, report)


def _card(card: outline.Card, report: Report) -> None:
    with st.container(border=True):
        st.markdown(f":{COLOURS[card.severity]}-badge[{card.severity}] **{_escaped(card.headline)}**")
        st.caption(" · ".join(f"{k}: {v}" for k, v in card.facts))
        if card.chart is not None:
            _curves(report, card.chart)
        for says in card.evidence:
            st.markdown(f"- {_escaped(says)}")
        for says in card.against:
            st.markdown(f"- against: {_escaped(says)}")
        if card.causes:
            st.markdown("**Causes, likeliest first**")
        for cause in card.causes:
            why = [*(f"+ {s}" for s in cause.because), *(f"− {s}" for s in cause.against)]
            if cause.would_decide:
                why.append(f"? would decide: {cause.would_decide}")
            st.markdown(f"- {cause.share:.0%} {_escaped(cause.title)}" + "".join(f"\n    - {_escaped(w)}" for w in why))
        if card.fixes:
            st.markdown("**What to do**")
        for fix in card.fixes:
            st.markdown(f"- {_escaped(fix.do)}" + (f" {_escaped(fix.because)}" if fix.because else ""))
            if fix.caution:
                st.caption(_escaped(fix.caution))
            changes = "\n".join(f"{c.setting}: {c.now} -> {c.new}" if c.now else f"{c.setting}: {c.new}" for c in fix.changes)
            if changes:
                st.code(changes, language="diff")
            if fix.snippet is not None:
                st.code(fix.snippet.code, language=fix.snippet.language or None)


# -- curves: nothing smoothed, no extreme and no NaN left out


def _curves(report: Report, spec: outline.ChartSpec) -> None:
    by_name = {c.name: c for c in report.curves}
    for name in spec.signals:
        if name in by_name and len(by_name[name].steps):
            st.altair_chart(chart(by_name[name], spec, str(report.run.get("step_unit", "step"))), width="stretch")


def chart(curve: Curve, spec: outline.ChartSpec, unit: str) -> alt.LayerChart:
    """A curve with its findings: a line through all kept points, NaN and infinities as red bars, spans shaded, onsets marked."""
    finite = np.isfinite(curve.values)
    line = pd.DataFrame({"step": curve.steps, "value": np.where(finite, curve.values, np.nan)})
    positive = curve.values[finite & (curve.values > 0)]
    log = len(positive) == finite.sum() > 0 and positive.max() > 30 * positive.min()
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False)
    x = alt.X("step:Q", title=unit)
    title = outline.clean(curve.name if curve.name == curve.logged_as else f"{curve.name} ({curve.logged_as})")
    layers: list[Any] = []
    if spec.shaded:
        spans = pd.DataFrame([{"a": s.span.first_step, "b": s.span.last_step, "label": outline.clean(s.label)} for s in spec.shaded])
        layers.append(alt.Chart(spans).mark_rect(opacity=0.15, color="#d55e00").encode(x="a:Q", x2="b:Q", tooltip="label:N"))
    layers.append(
        alt.Chart(line)
        .mark_line(strokeWidth=1.3, color="#0072b2", invalid="break-paths-filter-domains")
        .encode(x=x, y=alt.Y("value:Q", scale=scale, title=title), tooltip=["step:Q", "value:Q"])
    )
    if not finite.all():
        bad = pd.DataFrame({"step": curve.steps[~finite], "what": [str(v) for v in curve.values[~finite]]})
        layers.append(alt.Chart(bad).mark_rule(color="#cc0000", opacity=0.5).encode(x="step:Q", tooltip=["step:Q", "what:N"]))
    if spec.marks:
        marks = pd.DataFrame([{"step": m.step, "label": outline.clean(m.label)} for m in spec.marks])
        layers.append(alt.Chart(marks).mark_rule(strokeDash=[4, 3], color="#d55e00").encode(x="step:Q", tooltip=["step:Q", "label:N"]))
    return alt.layer(*layers).properties(height=200).interactive(bind_y=False)


if __name__ == "__main__":
    assert diagnose  # the page and the library are one release
    main()
