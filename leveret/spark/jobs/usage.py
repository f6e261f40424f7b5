"""Job `usage`: messages and bytes by hour, virtual host, user and queue, checked against the logs.

The broker counts them itself (docs/guide/usage.md): of users, virtual hosts and messages out it is
the only one that knows. What was written to a queue is in the queue's log as well, where that can
be read by offset. The table has both, and says where they differ.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.spark.errors import AccessRefusedError, SourceError, TopicMissingError
from leveret.spark.jobs.job import JobError, SparkJob
from leveret.spark.jobs.report_files import csv_text, write_table, write_text
from leveret.spark.jobs.usage_audit import (
    RECORD_BYTES,
    Agreement,
    HourlyUsage,
    LoggedHour,
    LoggedQueue,
    QueueAudit,
    audit_queues,
    differing,
    usage_by_hour,
)
from leveret.spark.reports.charts import column_chart, ranking
from leveret.spark.reports.page import Report, ReportSection, ReportTable, render
from leveret.spark.reports.texts import quantity

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from leveret.range_reader import TopicBounds
    from leveret.spark.jobs.job import JobContext, JobSummary
    from leveret.spark.reports.charts import Ranking, SeriesChart
    from leveret.spark.reports.texts import Unit

__all__ = ["JOB", "UsagePeriod", "report_of", "summary_of"]

HOUR_S: Final = 3600
DAY_S: Final = 24 * HOUR_S
HOURS_SHOWN_MAX: Final = 14 * 24  # columns of a chart
NEVER: Final = 1 << 62  # seconds since 1970
SIZED: Final = ("exchange", "routing_key", "header", "value")
HOURS_MAX: Final = 24 * 400  # what a node keeps by default
ROWS: Final = (
    "hour timestamp, subject string, vhost string, name string, messages_in long, bytes_in long, "
    "messages_out long, bytes_out long, log_messages long, log_bytes long, comparison string"
)


class UsagePeriod(NamedTuple):
    """Hours that are looked at, in seconds since 1970, of a virtual host."""

    since: int
    until: int
    vhost: str


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="DIR", help="directory, or Hadoop URI")
    parser.add_argument(
        *("--hours",), type=int, default=24,
        help="number of hours, the current one included  [default: %(default)s]",
    )  # fmt: skip
    parser.add_argument(
        "--no-logs", action="store_true", help="counters only, without reading the queues' logs"
    )


def _run(context: JobContext) -> JobSummary:
    given, vhost = context.arguments, context.connection.vhost
    if not 1 <= given.hours <= HOURS_MAX:
        raise JobError(f"--hours is {given.hours}, and must be from 1 to {HOURS_MAX}")
    now = int(time.time())
    until = now - now % HOUR_S + HOUR_S
    since = until - given.hours * HOUR_S
    before = {} if given.no_logs else _bounds(context, since)
    everything = _counted(context, 0, until)
    after = {name: _ends(context.broker.topic(name)) for name in before}
    logged = _logged(before, after, _read(context, before, since))
    rows = usage_by_hour((row for row in everything if row["hour"] >= since), logged, vhost)
    audits = audit_queues(everything, logged)
    context.report("writing the tables and the page", always=True)
    _write(context, rows, audits, (since, until))
    return summary_of(given.to, rows, audits)


def _write(
    context: JobContext,
    rows: Sequence[HourlyUsage],
    audits: Sequence[QueueAudit],
    hours: tuple[int, int],
) -> None:
    directory = context.arguments.to
    timed = [(datetime.fromtimestamp(row.hour, UTC), *row[1:]) for row in rows]
    write_table(directory, "usage", context.spark.createDataFrame(timed, ROWS).coalesce(1))
    write_text(context.spark, directory, "audit.csv", csv_text(QueueAudit._fields, audits))
    period = UsagePeriod(*hours, context.connection.vhost)
    page = render(report_of(rows, audits, period, datetime.now(UTC)))
    write_text(context.spark, directory, "usage.html", page)


def summary_of(
    directory: str, rows: Sequence[HourlyUsage], audits: Sequence[QueueAudit]
) -> JobSummary:
    """Return what is printed of this usage; the job fails if queues differ."""
    vhosts = [row for row in rows if row.subject == "vhost"]
    wrong = [audit for audit in audits if audit.comparison == Agreement.DIFFERS]
    return {
        "messages_in": sum(row.messages_in for row in vhosts),
        "bytes_in": sum(row.bytes_in for row in vhosts),
        "messages_out": sum(row.messages_out for row in vhosts),
        "bytes_out": sum(row.bytes_out for row in vhosts),
        "queues_compared": len(audits),
        "differences": [audit._asdict() for audit in wrong],
        "hours_that_differ": len(differing(rows)),
        "page": f"{directory.rstrip('/')}/usage.html",
        "ok": not wrong,
    }


def _counted(context: JobContext, since: int, until: int) -> list[dict[str, Any]]:
    """Return the broker's records of usage of the hours in [since, until).

    A node sends a limited number at once, and refuses more: then halves are asked for.
    """
    what, vhost = "the usage", context.connection.vhost
    try:
        found: list[dict[str, Any]] = context.broker.resource(
            what, "leveret", "usage", since=since, until=until, vhost=vhost
        )
    except (AccessRefusedError, TopicMissingError):
        raise
    except SourceError:
        middle = (since + until) // 2 // HOUR_S * HOUR_S
        if not since < middle < until:
            raise
        return [*_counted(context, since, middle), *_counted(context, middle, until)]
    return found


def _bounds(context: JobContext, since: int) -> dict[str, TopicBounds]:
    """Return the bounds of the queues whose logs can be read, and where a time is in them."""
    found = {}
    for name in context.broker.topic_names():
        try:
            found[name] = context.broker.topic(name, since * 1000)
        except (AccessRefusedError, TopicMissingError) as error:
            context.report(f"not compared: {error}", always=True)
    return found


def _ends(bounds: TopicBounds) -> int:
    return sum(part.end for part in bounds.partitions)


def _read(
    context: JobContext, bounds: Mapping[str, TopicBounds], since: int
) -> list[tuple[str, int, int, LoggedHour]]:
    """Return (queue, partition, hour, messages) for what the logs have of the hours since."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    read = {
        name: {str(part.partition): part.end for part in topic.partitions if part.end > part.first}
        for name, topic in bounds.items()
    }
    read = {name: ends for name, ends in read.items() if ends}
    if not read:
        return []
    context.report("reading the logs", always=True)
    source = {
        **context.source_options(),
        "assign": json.dumps({name: list(map(int, ends)) for name, ends in read.items()}),
        "startingTimestamp": str(since * 1000),
        "startingOffsetsByTimestampStrategy": "latest",
        "endingOffsets": json.dumps(read),
        "includeRecord": "true",
        "failOnDataLoss": "false",  # what retention removes meanwhile is seen in the comparison
    }
    table = context.spark.read.format("leveret").options(**source).load()
    size = sum((f.octet_length(name) for name in SIZED), f.lit(RECORD_BYTES))
    hour = f.date_trunc("hour", "timestamp").cast("long")
    found = table.groupBy("topic", "partition", hour.alias("hour")).agg(
        f.count(f.lit(1)).alias("messages"), f.sum(size).alias("bytes")
    )
    return [(row[0], row[1], row[2], LoggedHour(row[3], row[4])) for row in found.collect()]


def _logged(
    before: Mapping[str, TopicBounds],
    after: Mapping[str, int],
    found: Iterable[tuple[str, int, int, LoggedHour]],
) -> dict[str, LoggedQueue]:
    """Return what the logs have, by queue."""
    hours: dict[str, dict[int, LoggedHour]] = {name: {} for name in before}
    first_hours: dict[tuple[str, int], int] = {}
    for name, partition, hour, part in found:
        known = hours[name].get(hour, LoggedHour(0, 0))
        hours[name][hour] = LoggedHour(known.messages + part.messages, known.bytes + part.bytes)
        first_hours[name, partition] = min(first_hours.get((name, partition), hour), hour)
    logged = {}
    for name, bounds in before.items():
        cut = [part for part in bounds.partitions if 0 < part.first == part.offset]
        logged[name] = LoggedQueue(
            (_ends(bounds), after[name]),
            sum(part.end - part.first for part in bounds.partitions),
            # Of a partition of which nothing is left, all hours may have been removed.
            max((first_hours.get((name, p.partition), NEVER) for p in cut), default=None),
            hours[name],
        )
    return logged


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def report_of(
    rows: Sequence[HourlyUsage],
    audits: Sequence[QueueAudit],
    period: UsagePeriod,
    now: datetime,
) -> Report:
    """Return the page of this usage."""
    by = {kind: [row for row in rows if row.subject == kind] for kind in ("vhost", "user", "queue")}
    wrong = [audit for audit in audits if audit.comparison == Agreement.DIFFERS]
    units: tuple[tuple[str, str, Unit], ...] = (
        ("Messages in", "messages_in", "count"),
        ("Bytes in", "bytes_in", "bytes"),
        ("Messages out", "messages_out", "count"),
        ("Bytes out", "bytes_out", "bytes"),
    )
    totals = [
        (text, quantity(sum(getattr(row, name) for row in by["vhost"]), unit))
        for text, name, unit in units
    ]
    return Report(
        "Usage",
        now,
        [
            ("Virtual host", period.vhost),
            ("From", _time(period.since)),
            ("Until", _time(period.until)),
        ],
        [*totals, ("Queues that differ", f"{len(wrong)} of {len(audits)}")],
        [
            ReportSection(
                "Queues",
                "Messages that were written to queues, and those that consumers were sent.",
                [
                    _chart("Messages in by queue", by["queue"], period, "messages_in"),
                    _chart("Bytes in by queue", by["queue"], period, "bytes_in"),
                ],
                _rankings("queue", "Queue", by["queue"]),
            ),
            ReportSection(
                "Users",
                "Messages that users published and received.",
                [_chart("Messages in by user", by["user"], period, "messages_in")],
                _rankings("user", "User", by["user"]),
            ),
            ReportSection(
                "Counters and logs",
                "All messages that were ever counted for a queue, beside those that its log has "
                "ever stored, removed ones included. A queue of the same name that was deleted, "
                "and partitions that were removed, are counted and not in the log.",
                tables=_audit_tables(rows, audits),
            ),
        ],
    )


def _chart(title: str, rows: Sequence[HourlyUsage], period: UsagePeriod, value: str) -> SeriesChart:
    """Return a chart of all the hours, or of the days where these are too many to be seen."""
    by_day = period.until - period.since > HOURS_SHOWN_MAX * HOUR_S
    step = DAY_S if by_day else HOUR_S
    begin = period.since - period.since % step
    times = range(begin, period.until, step)
    values: dict[str, list[float]] = {}
    for row in rows:
        numbers = values.setdefault(row.name, [0] * len(times))
        numbers[(row.hour - begin) // step] += getattr(row, value)
    return column_chart(
        title,
        "day" if by_day else "hour",
        [_time(time)[:10] if by_day else _time(time) for time in times] if rows else [],
        values,
        "bytes" if value.startswith("bytes") else "count",
    )


def _rankings(kind: str, heading: str, rows: Iterable[HourlyUsage]) -> list[Ranking]:
    rows = list(rows)
    return [
        ranking(f"{text} by {kind}", heading, _sums(rows, name), unit)
        for text, name, unit in RANKED
    ]


RANKED: Final[tuple[tuple[str, str, Unit], ...]] = (
    ("Messages out", "messages_out", "count"),
    ("Bytes in", "bytes_in", "bytes"),
)


def _sums(rows: Iterable[HourlyUsage], value: str) -> list[tuple[str, float]]:
    found: dict[str, float] = {}
    for row in rows:
        found[row.name] = found.get(row.name, 0) + getattr(row, value)
    return list(found.items())


def _audit_tables(rows: Sequence[HourlyUsage], audits: Sequence[QueueAudit]) -> list[ReportTable]:
    marked = (n for n, audit in enumerate(audits) if audit.comparison == Agreement.DIFFERS)
    headings = [name.replace("_", " ").capitalize() for name in QueueAudit._fields]
    tables = [ReportTable("By queue", headings, audits, frozenset(marked))]
    wrong = differing(rows)
    if wrong:
        tables.append(
            ReportTable(
                "Hours that differ",
                ["Hour", "Queue", "Counted", "In the log"],
                [(_time(r.hour), r.name, r.messages_in, r.log_messages) for r in wrong],
            )
        )
    return tables


JOB: Final = SparkJob(
    "report messages and bytes by hour, user and queue, checked against the logs",
    _add_arguments,
    _run,
)
