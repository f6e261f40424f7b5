"""Choice of a benchmark's rows by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["chosen"]


class BenchRow(Protocol):
    """A row of a benchmark."""

    @property
    def name(self) -> str:
        """Name by which it is chosen."""
        ...


AnyRow = TypeVar("AnyRow", bound=BenchRow)


def chosen(names: Sequence[str], rows: Sequence[AnyRow]) -> list[AnyRow]:
    """The rows with these names, all without any. Raises typer.BadParameter for an unknown one."""
    known = {row.name: row for row in rows}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: the rows are {', '.join(known)}")
    return [known[name] for name in names] or list(rows)
