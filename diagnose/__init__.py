"""Reads finished training logs and says what went wrong, since which step, how sure it is, why, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnose.engine import diagnose, read
    from diagnose.model import Report
    from diagnose.scan import scan
    from diagnose.table import Run

__all__ = ["Report", "Run", "diagnose", "read", "scan"]

# `import diagnose` loads nothing heavy: each name is fetched when it is first asked for.
_HOMES = {
    "read": "diagnose.engine",
    "diagnose": "diagnose.engine",
    "scan": "diagnose.scan",
    "Run": "diagnose.table",
    "Report": "diagnose.model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diagnose' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # also wins over the submodule `diagnose.scan`, which importing has just set
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
