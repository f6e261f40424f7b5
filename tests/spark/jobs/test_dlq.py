"""The page of dead letters: by day, and where they come from."""

from __future__ import annotations

import datetime as dt

from leveret.spark.jobs.dlq import DeadLetterGroup, report_of
from leveret.spark.reports.page import render

NOW = dt.datetime(2026, 1, 5, 9, 30, tzinfo=dt.UTC)
GROUPS = [
    DeadLetterGroup("q.dlq", "rejected", "q", "x", "<b>", "2026-01-04", 5, 0),
    DeadLetterGroup("q.dlq", "expired", "q", "x", "k", "2026-01-02", 2, 0),
    DeadLetterGroup("q.dlq", "rejected", "r", "", "k", "2026-01-04", 1, 0),
    DeadLetterGroup("q.dlq", None, None, None, None, None, 3, 2),
]


def test_the_report_has_days_and_origins():
    report = report_of(GROUPS, [("Virtual host", "/")], NOW)
    assert dict(report.figures) == {"Dead letters": "11", "Source queues": "2", "Malformed": "2"}
    by_day, origins, _ = report.sections
    (chart,) = by_day.charts
    assert chart.categories == ["2026-01-02", "2026-01-03", "2026-01-04"]
    assert {each.name: each.values for each in chart.series} == {
        "rejected": [0, 0, 6],
        "expired": [2, 0, 0],
    }
    ranked = {each.title: [(row.name, row.value) for row in each.rows] for each in origins.rankings}
    assert ranked["By reason"] == [("rejected", "6"), ("(no dead letter)", "3"), ("expired", "2")]
    assert ranked["By source queue"] == [("q", "7"), ("(no dead letter)", "3"), ("r", "1")]
    assert ranked["By exchange"][-1] == ("(default)", "1")
    text = render(report)
    assert "&lt;b&gt;" in text
    assert "<b>" not in text


def test_no_dead_letters_are_a_page():
    assert "Nothing to show." in render(report_of([], [], NOW))
