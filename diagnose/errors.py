"""What is raised on purpose. Each says what, where, and what to do next."""

from __future__ import annotations


class DiagnoseError(Exception):
    """The base of all errors that `diagnose` raises on purpose; `hint` says what to do next."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        tail = f" {self.hint}" if self.hint else ""
        return f"{place}{self.what}{tail}"

    def __reduce__(self) -> tuple[object, ...]:  # crosses process borders whole
        return _rebuild, (type(self), self.what, self.where, self.hint)


def _rebuild(kind: type[DiagnoseError], what: str, where: str, hint: str) -> DiagnoseError:
    return kind(what, where=where, hint=hint)


class NothingReadable(DiagnoseError):
    """No reader claims the path, or what was read holds no number."""


class BadTable(DiagnoseError):
    """A Parquet file that is not a run table, or one of a schema that this version can't read."""


class BadPart(DiagnoseError):
    """A reader, detector, rule or renderer that does not keep its contract."""
