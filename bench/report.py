"""The comparison as a table, on the terminal and as bench/RESULTS.md."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from bench.rows import Bound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.measure import Reading
    from bench.rows import Row, Target

__all__ = ["Line", "lines", "markdown", "terminal"]

HEADINGS = ("workload", "figure", "RabbitMQ", "Leveret", "ratio", "must reach", "met")


@dataclass(frozen=True)
class Line:
    """One figure of one row, compared. Figures are medians; None where there is none."""

    row: Row
    target: Target
    theirs: float | None
    ours: float | None
    spread: str
    remark: str

    @property
    def ratio(self) -> float | None:
        """Ours divided by theirs."""
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None when nothing is demanded or nothing can be said."""
        bound, number = self.target.bound, self.target.number
        if bound is Bound.SHOWN:
            return None
        if bound is Bound.AT_MOST:
            return None if self.ours is None else self.ours <= number
        if self.ratio is None:
            return None
        return self.ratio >= number if bound is Bound.TIMES_AT_LEAST else self.ratio <= number

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as it stands in the table, under HEADINGS but the first."""
        met = {True: "yes", False: "**no**", None: ""}[self.met]
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}"
        return (
            self.target.label,
            _figure(self.theirs),
            _figure(self.ours),
            ratio,
            self.target.text,
            met,
        )


def lines(row: Row, readings: Mapping[str, Sequence[Reading]]) -> list[Line]:
    """A row's figures, out of each broker's readings."""
    remark = "; ".join(
        f"{name}: {text}" for name, taken in readings.items() if (text := _remark(taken))
    )
    return [
        Line(
            row,
            target,
            _median(readings.get("RabbitMQ", ()), target.metric),
            _median(readings.get("Leveret", ()), target.metric),
            "; ".join(
                f"{name} {_values(taken, target.metric)}" for name, taken in readings.items()
            ),
            remark,
        )
        for target in row.targets
    ]


def _median(readings: Sequence[Reading], metric: str) -> float | None:
    values = [each.figures[metric] for each in readings if metric in each.figures]
    return statistics.median(values) if values else None


def _values(readings: Sequence[Reading], metric: str) -> str:
    values = (each.figures.get(metric) for each in readings)
    return ", ".join("failed" if value is None else _figure(value) for value in values)


def _remark(readings: Sequence[Reading]) -> str:
    failures = [each.failure for each in readings if each.failure]
    if failures:
        return failures[0].splitlines()[-1]
    return "messages were left behind" if any(each.incomplete for each in readings) else ""


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def _workload(row: Row) -> str:
    how = [f"{row.queue_type} queue", f"durability `{row.durability}`"]
    how += [f"`{setting}`" for setting in row.settings]
    return f"{row.title} (`{row.name}`; {', '.join(how)})"


def terminal(compared: Sequence[Line]) -> Table:
    """The table for the terminal."""
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading)
    for line in compared:
        table.add_row(line.row.name, *(cell.replace("**", "") for cell in line.cells))
    return table


def markdown(
    compared: Sequence[Line], facts: Mapping[str, str], commands: Mapping[str, str], how: str
) -> str:
    """The text of RESULTS.md."""
    parts = ["# Leveret and RabbitMQ, measured", "", how, ""]
    parts += [f"- {name}: {value}" for name, value in facts.items()]
    parts += ["", _line(HEADINGS), _line(["---"] * len(HEADINGS))]
    parts += [_line((_workload(line.row), *line.cells)) for line in compared]
    remarks = {line.row.name: line.remark for line in compared if line.remark}
    if remarks:
        parts += ["", "## What went wrong", ""]
        parts += [f"- `{name}`: {text}" for name, text in remarks.items()]
    missed = {line.row.name: line.row.limited_by for line in compared if line.met is False}
    if missed:
        parts += ["", "## What limits the rows that are not met", ""]
        parts += [f"- `{name}`: {text or 'not known yet'}" for name, text in missed.items()]
    parts += ["", "## Every reading", ""]
    parts += [f"- `{line.row.name}`, {line.target.label}: {line.spread}" for line in compared]
    parts += ["", "## Commands", "", "Brokers, then what each row ran against both:", ""]
    parts += [f"- {name}: `{command}`" for name, command in commands.items()]
    return "\n".join(parts) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
