"""What the documents say is what the code does."""

import re
from pathlib import Path

from diagnose.table import COLUMNS

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_table_is_documented_as_it_is():
    rows = re.findall(r"^\| (\w+) \| ([^|]+?) \|", (DOCS / "table.md").read_text(encoding="utf-8"), re.M)
    assert [r for r in rows if r[0] != "column"] == list(COLUMNS)


def test_the_map_names_every_file_of_the_package():
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    package = DOCS.parent / "diagnose"
    missing = [p.name for p in package.iterdir() if p.name[0] not in "._" and p.suffix in ("", ".py") and f"`{p.name}" not in text]
    assert not [m for m in missing if m != "py.typed"]
