"""The page: orders by minute, country and kind, and what became of payments."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from leveret.spark.reports.charts import column_chart, line_chart, ranking
from leveret.spark.reports.page import Report, ReportSection, ReportTable, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Row

__all__ = ["page_of"]


def page_of(rows: Sequence[Row], counts: Mapping[str, int], dead: Mapping[str, int]) -> str:
    """Return the page of the figures `rows`.

    `counts` are the shop's own, `dead` the numbers of dead letters by reason.
    """
    minutes = sorted({row.minute for row in rows})
    place = {minute: number for number, minute in enumerate(minutes)}
    orders: dict[str, list[float]] = defaultdict(lambda: [0] * len(minutes))
    worth: dict[str, list[float]] = defaultdict(lambda: [0] * len(minutes))
    kinds: Counter[str] = Counter()
    for row in rows:
        orders[row.country][place[row.minute]] += row.orders
        worth[row.kind][place[row.minute]] += round(row.worth, 2)
        kinds[row.kind] += row.orders
    times = [_time(minute) for minute in minutes]
    figures = {
        "Orders": sum(kinds.values()),
        "Worth": f"{sum(row.worth for row in rows):,.2f} €",
        "Paid": counts["paid"],
        "Failed attempts": counts["failed attempts"],
        "Dead letters": sum(dead.values()),
    }
    report = Report(
        "Orders",
        datetime.now(UTC),
        [("Minutes", f"{times[0]} to {times[-1]} UTC" if times else "none")],
        [
            (name, f"{value:,}" if isinstance(value, int) else value)
            for name, value in figures.items()
        ],
        [
            ReportSection(
                "Orders by minute",
                "Counted by a streaming query of Spark, from the topic of placed orders.",
                [
                    column_chart("Orders by country", "minute", times, orders),
                    line_chart("Worth of orders, in €", "minute", times, worth),
                ],
                [
                    ranking("Kinds", "Kind", kinds.items()),
                    ranking("Dead letters", "Reason", dead.items()),
                ],
                [
                    ReportTable(
                        "All figures",
                        ["Minute", "Country", "Kind", "Orders", "Worth"],
                        [
                            (_time(r.minute), r.country, r.kind, r.orders, round(r.worth, 2))
                            for r in rows
                        ],
                    )
                ],
            )
        ],
    )
    return render(report)


def _time(minute: datetime) -> str:
    """Return a time of Spark's, which has no zone and is in that of the machine, in UTC."""
    return f"{minute.astimezone(UTC):%H:%M}"
