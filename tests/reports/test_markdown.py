from __future__ import annotations

import re

import pytest

from diagnose.model import Report
from diagnose.reports.markdown import escaped, fenced, render, render_many


def outside_fences(text: str) -> list[str]:
    """The lines that are not code."""
    lines, fence = [], ""
    for line in text.splitlines():
        mark = re.match(r"\s*(`{3,})", line)
        if mark and not fence:
            fence = mark.group(1)
        elif fence and line.strip() == fence:
            fence = ""
        elif not fence:
            lines.append(line)
    assert not fence, "a fence was left open"
    return lines


def test_short_first_and_details_folded(exploded: Report) -> None:
    text = render(exploded)
    assert text.startswith(f"**gpt: {exploded.verdict}**")
    assert text.index("What to do") < text.index("<details>")
    assert text.count("<details>") == text.count("</details>") == 5


def test_a_fix_is_a_diff_and_a_snippet(exploded: Report) -> None:
    text = render(exploded)
    assert "- optimizer.lr: 0.0012\n   + optimizer.lr: 0.0006" in text
    assert "   ```json\n   {" in text


def test_no_html_and_no_link_or_mention_comes_from_a_log(hostile: Report, several: list[Report]) -> None:
    for text in (render(hostile), render(hostile, verbose=True), render_many(several)):
        for line in outside_fences(text):
            assert not re.search(r"<(?!/?details|/?summary)", line), line
            assert not re.search(r"(?<![\w\u200b])@\w", line), line
            assert not re.search(r"(?<!\\)\]\(", line), line
            assert "http://" not in line
        assert all(ch == "\n" or ch.isprintable() or ch == "\u200b" for ch in text)


def test_a_row_of_a_table_has_as_many_cells_as_its_head(several: list[Report]) -> None:
    rows = [line for line in render_many(several).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}
    assert len(rows) == 2 + 4


def test_backticks_in_code_can_not_end_the_fence() -> None:
    assert fenced("", "a\n````\nb")[0] == "`````"


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("grad_norm", "grad_norm"),
        ("loss/train", "loss/train"),
        ("a|b", "a\\|b"),
        ("# head", "\\# head"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("0.14.2", "0.14.2"),
        ("<b>", "&lt;b&gt;"),
        ("a & b", "a &amp; b"),
        ("**b**", "\\*\\*b\\*\\*"),
        ("`x`", "\\`x\\`"),
    ],
)
def test_markdown_in_words_is_escaped(raw: str, safe: str) -> None:
    assert escaped(raw) == safe
