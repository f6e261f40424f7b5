"""Job `dlq`: dead letters by reason, queue, exchange, routing key and day, as tables and a page.

What a dead-letter queue holds is listed by the broker, as its own page of dead letters does, and
nothing is taken away. With `--history`, and from streams, the log is read instead: that has what
was redriven, deleted or consumed since as well, as long as retention keeps it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.spark.jobs.dead_letter_rows import row_of_listed, row_of_record
from leveret.spark.jobs.job import SparkJob
from leveret.spark.jobs.report_files import write_table, write_text
from leveret.spark.option_reader import OptionError
from leveret.spark.reports.charts import column_chart, ranking
from leveret.spark.reports.page import Report, ReportSection, ReportTable, render
from leveret.spark.reports.texts import quantity

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from leveret.spark.connection_options import ConnectionOptions
    from leveret.spark.jobs.job import JobContext, JobSummary

__all__ = ["JOB", "DeadLetterGroup", "report_of"]

PAGE_ROWS: Final = 1000  # of one answer: the most that a node lists
DAYS_SHOWN_MAX: Final = 400  # columns of the chart
UNKNOWN: Final = "(no dead letter)"
GROUPED: Final = ("dead_letter_queue", "reason", "queue", "exchange", "routing_key", "day")
LETTER: Final = (  # the columns of a DeadLetterRow
    "reason string, queue string, exchange string, routing_key string, died_at_ms long, "
    "is_malformed boolean"
)


class DeadLetterGroup(NamedTuple):
    """Number of dead letters that are alike; `day` is that of their death, in UTC, as a text."""

    dead_letter_queue: str
    reason: str | None
    queue: str | None
    exchange: str | None
    routing_key: str | None
    day: str | None
    messages: int
    malformed: int


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE[,…]", help="dead-letter queues, with commas")
    parser.add_argument("--to", required=True, metavar="DIR", help="directory, or Hadoop URI")
    parser.add_argument(
        *("--history",), action="store_true",
        help="read the logs of queues with a retention: also what was redriven, deleted or "
        "consumed since",
    )  # fmt: skip


def _run(context: JobContext) -> JobSummary:
    given = context.arguments
    names = list(dict.fromkeys(name.strip() for name in given.queues.split(",")))
    if not all(names):
        raise OptionError(f"'{given.queues}' has an empty name")
    rows = {name: _queue(context, name) for name in names}
    logs = [name for name in names if given.history or rows[name].get("type") == "stream"]
    parts = [
        (name, number)
        for name in names
        if name not in logs
        for number in rows[name].get("partitions") or [None]  # None stands for the only one
    ]
    letters = _letters(context, parts, logs)
    context.report(f"reading {', '.join(names)}", always=True)
    groups = [DeadLetterGroup(*row) for row in write_table(given.to, "dlq", _grouped(letters))]
    scope = [
        ("Virtual host", context.connection.vhost),
        ("Queues", ", ".join(names)),
        ("Read", "what the logs have" if given.history else "what the queues hold"),
    ]
    page = render(report_of(groups, scope, datetime.now(UTC)))
    write_text(context.spark, given.to, "dlq.html", page)
    return {
        "messages": sum(group.messages for group in groups),
        "malformed": sum(group.malformed for group in groups),
        "reasons": _sums(groups, "reason"),
        "queues": [
            {"queue": name, "messages": count, "read": "log" if name in logs else "queue"}
            for name, count in (
                (name, sum(g.messages for g in groups if g.dead_letter_queue == name))
                for name in names
            )
        ],
        "page": f"{given.to.rstrip('/')}/dlq.html",
    }


def _queue(context: JobContext, name: str) -> dict[str, Any]:
    """Return what the broker tells of a queue."""
    found: dict[str, Any] = context.broker.resource(
        f"queue '{name}'", "queues", context.connection.vhost, name
    )
    return found


def _letters(
    context: JobContext, parts: Sequence[tuple[str, int | None]], logs: Sequence[str]
) -> DataFrame:
    """Return a row for each dead letter: listed ones, and those of logs."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    spark = context.spark
    found = spark.createDataFrame(
        spark.sparkContext.parallelize(list(parts), max(len(parts), 1)).flatMap(
            partial(_listed, context.connection)
        ),
        f"dead_letter_queue string, {LETTER}",
    )
    if logs:
        source = {**context.source_options(), "subscribe": ",".join(logs)}
        log = spark.read.format("leveret").options(**source, includeRecord="true").load()
        letter = f.udf(_recorded, LETTER)(f.col("flags"), f.col("header"))
        rows = log.select(f.col("topic").alias("dead_letter_queue"), letter.alias("letter"))
        found = found.unionByName(rows.select("dead_letter_queue", "letter.*"))
    return found


def _listed(
    connection: ConnectionOptions, part: tuple[str, int | None]
) -> Iterator[tuple[object, ...]]:
    """Yield the dead letters that a partition of a queue holds, in a worker of Spark."""
    from leveret.spark.servers import servers_of  # noqa: PLC0415

    (name, number), broker, after = part, servers_of(connection), None
    while True:
        found = broker.resource(
            f"queue '{name}'",
            *("leveret", "dead-letters", connection.vhost, name),
            limit=PAGE_ROWS,
            after=after,
            partition=number,
        )
        for row in found["rows"]:
            yield (name, *row_of_listed(row))
        after = found["after"]
        if after is None:
            return


def _recorded(flags: int, header: bytearray) -> tuple[object, ...]:
    """Return the dead letter of a record of a log, in a worker of Spark."""
    return row_of_record(flags, bytes(header))


def _grouped(letters: DataFrame) -> DataFrame:
    """Return the number of letters that are alike, the most frequent first."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    died = f.timestamp_millis(f.col("died_at_ms"))
    return (
        letters.withColumn("day", f.date_format(died, "yyyy-MM-dd"))
        .groupBy(*GROUPED)
        .agg(
            f.count(f.lit(1)).alias("messages"),
            f.sum(f.col("is_malformed").cast("long")).alias("malformed"),
        )
        .orderBy(f.col("messages").desc(), *GROUPED)
    )


def report_of(
    groups: Sequence[DeadLetterGroup], scope: Sequence[tuple[str, str]], now: datetime
) -> Report:
    """Return the page of these dead letters."""
    days = _days(sorted({group.day for group in groups if group.day is not None}))
    place = {day: number for number, day in enumerate(days)}
    by_reason: dict[str, list[float]] = {}
    for group in groups:
        if group.day is not None:
            values = by_reason.setdefault(group.reason or UNKNOWN, [0] * len(days))
            values[place[group.day]] += group.messages
    rankings = [
        ranking(f"By {heading}", heading.capitalize(), _named(_sums(groups, name), name))
        for name, heading in (
            ("reason", "reason"),
            ("queue", "source queue"),
            ("exchange", "exchange"),
            ("routing_key", "routing key"),
        )
    ]
    malformed = sum(group.malformed for group in groups)
    return Report(
        "Dead letters",
        now,
        scope,
        [
            ("Dead letters", quantity(sum(group.messages for group in groups), "count")),
            ("Source queues", quantity(len({g.queue for g in groups if g.queue}), "count")),
            ("Malformed", quantity(malformed, "count")),
        ],
        [
            ReportSection(
                "By day",
                "Days are those of the latest death, in UTC.",
                [column_chart("Dead letters by reason", "day", days, by_reason)],
            ),
            ReportSection("Where they come from", "", rankings=rankings),
            ReportSection(
                "All groups",
                tables=[
                    ReportTable(
                        "Dead letters that are alike",
                        [name.replace("_", " ").capitalize() for name in DeadLetterGroup._fields],
                        groups,
                    )
                ],
            ),
        ],
    )


def _days(found: Sequence[str]) -> Sequence[str]:
    """Return all days from the first to the last, unless these are too many."""
    if not found:
        return found
    first, last = date.fromisoformat(found[0]), date.fromisoformat(found[-1])
    count = (last - first).days + 1
    if count > DAYS_SHOWN_MAX:
        return found
    return [(first + timedelta(days=number)).isoformat() for number in range(count)]


def _named(sums: Mapping[str, int], name: str) -> list[tuple[str, int]]:
    """Return numbers by name; the default exchange has an empty one."""
    default = "(default)" if name == "exchange" else ""
    return [(value or default, number) for value, number in sums.items()]


def _sums(groups: Iterable[DeadLetterGroup], name: str) -> dict[str, int]:
    """Return the numbers of messages by one of the columns."""
    found: dict[str, int] = {}
    for group in groups:
        value = getattr(group, name)
        found[UNKNOWN if value is None else value] = (
            found.get(UNKNOWN if value is None else value, 0) + group.messages
        )
    return found


JOB: Final = SparkJob(
    "report dead letters by reason, queue, exchange, routing key and day", _add_arguments, _run
)
