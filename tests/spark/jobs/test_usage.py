"""The page of usage: totals of clients, charts without holes, differences that stand out."""

from __future__ import annotations

import datetime as dt

from leveret.spark.jobs.usage import UsagePeriod, report_of, summary_of
from leveret.spark.jobs.usage_audit import HourlyUsage, QueueAudit
from leveret.spark.reports.page import render

NOW = dt.datetime(2026, 1, 5, 9, 30, tzinfo=dt.UTC)
HOUR = 3600
ROWS = [
    HourlyUsage(0, "vhost", "/", "/", 10, 1000, 20, 2000),
    HourlyUsage(0, "user", "/", "guest", 10, 1000, 20, 2000),
    HourlyUsage(0, "queue", "/", "orders", 6, 600, 20, 2000, 6, 600, "agrees"),
    HourlyUsage(3 * HOUR, "queue", "/", "orders", 4, 400, 0, 0, 5, 500, "differs"),
]
AUDITS = [QueueAudit("orders", 10, 11, 11, -1, "differs")]


def test_the_report_has_totals_and_differences():
    report = report_of(ROWS, AUDITS, UsagePeriod(0, 4 * HOUR, "/"), NOW)
    assert dict(report.figures) == {
        "Messages in": "10",
        "Bytes in": "1,000 B",
        "Messages out": "20",
        "Bytes out": "2.0 KiB",
        "Queues that differ": "1 of 1",
    }
    queues, users, compared = report.sections
    chart = queues.charts[0]
    assert chart.categories == [f"1970-01-01 0{hour}:00" for hour in range(4)]
    assert chart.series[0].values == [6, 0, 0, 4]
    assert users.rankings[0].rows[0].name == "guest"
    by_queue, hours = compared.tables
    assert by_queue.marked == {0}
    assert hours.rows == [("1970-01-01 03:00", "orders", 4, 5)]
    assert "-1" in render(report)


def test_nothing_used_is_a_page():
    assert "Nothing to show." in render(report_of([], [], UsagePeriod(0, 4 * HOUR, "/"), NOW))


def test_many_hours_are_shown_as_days():
    period = UsagePeriod(5 * HOUR, (5 + 24 * 30) * HOUR, "/")
    rows = [row._replace(hour=row.hour + 30 * HOUR) for row in ROWS]
    chart = report_of(rows, [], period, NOW).sections[0].charts[0]
    assert (chart.axis, len(chart.categories)) == ("day", 31)
    assert chart.categories[1] == "1970-01-02"
    assert chart.series[0].values[:3] == [0, 10, 0]


def test_differences_fail_the_job():
    summary = summary_of("out/", ROWS, AUDITS)
    assert (summary["messages_in"], summary["messages_out"]) == (10, 20)
    assert (summary["hours_that_differ"], summary["page"]) == (1, "out/usage.html")
    assert summary["differences"] == [AUDITS[0]._asdict()]
    assert not summary["ok"]
    agreeing = [AUDITS[0]._replace(difference=0, comparison="agrees")]
    assert summary_of("out", ROWS[:3], agreeing)["ok"]
