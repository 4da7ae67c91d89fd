from __future__ import annotations

import subprocess
import sys

import pytest

import diagnose

HEAVY = ("numpy", "pandas", "scipy", "pyarrow", "ruptures", "rich", "streamlit", "tensorboard")


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages are loaded after the code ran in a fresh interpreter."""
    ending = f"\nimport sys; sys.stderr.write(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + ending], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import diagnose; dir(diagnose)") == set()


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["scan", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    code = f"from diagnose.cli import main\ntry: main({words!r})\nexcept SystemExit as end: assert not end.code, end.code"
    assert loaded_by(code) == set()


def test_the_public_names_are_all_there_and_nothing_else() -> None:
    assert dir(diagnose) == ["Report", "Run", "diagnose", "read", "scan"]
    assert all(callable(getattr(diagnose, name)) for name in dir(diagnose))
    with pytest.raises(AttributeError, match="no attribute 'analyse'"):
        _ = diagnose.analyse  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "first", ["import diagnose.scan", "from diagnose.scan import find", "import diagnose", "from diagnose import scan"]
)
def test_scan_can_be_called_whatever_was_imported_before(first: str) -> None:
    code = f"{first}\nimport diagnose\nassert [r.readable for r in diagnose.scan(['/no/such/place'])] == [False]"
    subprocess.run([sys.executable, "-c", code], check=True)
