"""The comparison as a table, on the terminal and as bench/RESULTS.md."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table

from bench.rows import FLOORS, LAVINMQ, Bound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.measure import Reading
    from bench.rows import Row, Target

__all__ = ["Line", "lines", "markdown", "terminal"]

HEADINGS = ("workload", "figure", "RabbitMQ", "Leveret", "ratio", "must reach", "met")
YARDSTICKS = (*FLOORS, LAVINMQ)
YARDSTICK_HEADINGS = (
    *("workload", "figure", *YARDSTICKS, "Leveret"),
    *(f"Leveret / {name}" for name in YARDSTICKS),
)


@dataclass(frozen=True)
class Line:
    """One figure of one row, compared. `medians` has those of the brokers that have the figure."""

    row: Row
    target: Target
    medians: Mapping[str, float]
    spread: str
    remark: str

    @property
    def theirs(self) -> float | None:
        """RabbitMQ's."""
        return self.medians.get("RabbitMQ")

    @property
    def ours(self) -> float | None:
        """Leveret's."""
        return self.medians.get("Leveret")

    @property
    def ratio(self) -> float | None:
        """Ours divided by theirs."""
        return self.ratio_to("RabbitMQ")

    def ratio_to(self, name: str) -> float | None:
        """Ours divided by another broker's."""
        theirs = self.medians.get(name)
        return self.ours / theirs if self.ours is not None and theirs else None

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
        return (
            self.target.label,
            _figure(self.theirs),
            _figure(self.ours),
            _ratio(self.ratio),
            self.target.text,
            met,
        )

    @property
    def yardstick_cells(self) -> tuple[str, ...]:
        """The line as it stands in the table of yardsticks, under their headings but the first."""
        return (
            self.target.label,
            *(_figure(self.medians.get(name)) for name in (*YARDSTICKS, "Leveret")),
            *(_ratio(self.ratio_to(name)) for name in YARDSTICKS),
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
            _medians(readings, target.metric),
            "; ".join(
                f"{name} {_values(taken, target.metric)}" for name, taken in readings.items()
            ),
            remark,
        )
        for target in row.targets
    ]


def _medians(readings: Mapping[str, Sequence[Reading]], metric: str) -> dict[str, float]:
    """The median of each broker that has the figure."""
    values = {
        name: [each.figures[metric] for each in taken if metric in each.figures]
        for name, taken in readings.items()
    }
    return {name: statistics.median(figures) for name, figures in values.items() if figures}


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


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _workload(row: Row) -> str:
    how = [f"{row.queue_type} queue", f"durability `{row.durability}`"]
    how += [f"`{setting}`" for setting in row.settings]
    return f"{row.title} (`{row.name}`; {', '.join(how)})"


def terminal(compared: Sequence[Line]) -> Group:
    """The tables for the terminal; rows have names there."""
    tables = _tables(compared, lambda row: row.name)
    return Group(*(_terminal_table(headings, cells) for headings, cells in tables))


def _terminal_table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    table = Table(*headings)
    for cells in lines:
        table.add_row(*(cell.replace("**", "") for cell in cells))
    return table


def _tables(
    compared: Sequence[Line], title: Callable[[Row], str]
) -> Iterator[tuple[Sequence[str], list[tuple[str, ...]]]]:
    """Headings and cells: of all lines, then of those that are held against yardsticks."""
    yield HEADINGS, [(title(line.row), *line.cells) for line in compared]
    beside = [line for line in compared if line.row.yardsticks]
    if beside:
        yield YARDSTICK_HEADINGS, [(title(line.row), *line.yardstick_cells) for line in beside]


def markdown(
    compared: Sequence[Line], facts: Mapping[str, str], commands: Mapping[str, str], how: str
) -> str:
    """The text of RESULTS.md."""
    parts = ["# Leveret and RabbitMQ, measured", "", how, ""]
    parts += [f"- {name}: {value}" for name, value in facts.items()]
    for headings, cells in _tables(compared, _workload):
        parts += ["", _line(headings), _line(["---"] * len(headings)), *map(_line, cells)]
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
