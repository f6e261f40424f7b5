"""A report, and the page made of it: self-contained, for light and dark, without scripts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from leveret.spark.reports.charts import Ranking, SeriesChart
from leveret.spark.reports.texts import cell, printable, visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

__all__ = ["Report", "ReportSection", "ReportTable", "render"]

TABLE_ROWS_MAX: Final = 500  # of a page that people read; the files beside it have all


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of values as they are. Rows that are `marked`, by index, stand out."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of a report: a heading, a sentence, and what is shown."""

    title: str
    text: str = ""
    charts: Sequence[SeriesChart] = ()
    rankings: Sequence[Ranking] = ()
    tables: Sequence[ReportTable] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Content of a page. `scope` says what was looked at and with which filters."""

    title: str
    generated_at: datetime
    scope: Sequence[tuple[str, str]] = ()
    figures: Sequence[tuple[str, str]] = ()
    sections: Sequence[ReportSection] = ()


def render(report: Report) -> str:
    """Return the page of a report, as HTML."""
    return _environment().get_template("report.html.j2").render(report=report)


def _inserted(value: object) -> object:
    """Return a value as it is inserted. Markup is of our own templates."""
    return printable(value) if type(value) is str else value


@functools.cache
def _environment() -> Environment:
    """Return the environment, in which everything is escaped, and names that lack raise."""
    environment = Environment(
        loader=PackageLoader("leveret.spark.reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_inserted,
    )
    environment.filters |= {"cell": cell, "visible": visible}
    environment.globals["rows_max"] = TABLE_ROWS_MAX
    return environment
