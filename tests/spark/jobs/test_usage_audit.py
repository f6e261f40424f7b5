"""Counters and logs compared: what agrees, what retention removed, and what differs."""

from __future__ import annotations

from leveret.spark.jobs.usage_audit import (
    Agreement,
    LoggedHour,
    LoggedQueue,
    audit_queues,
    differing,
    usage_by_hour,
)

HOUR = 3600


def counted(hour, messages, name="q", subject="queue"):
    return {
        "hour": hour * HOUR,
        "subject": subject,
        "vhost": "/",
        "name": name,
        "messages_in": messages,
        "bytes_in": 10 * messages,
        "messages_out": 0,
        "bytes_out": 0,
    }


def logged(hours, ends=None, removed_until=None):
    total = sum(hours.values())
    return {
        "q": LoggedQueue(
            ends or (total, total),
            total,
            None if removed_until is None else removed_until * HOUR,
            {hour * HOUR: LoggedHour(count, 10 * count) for hour, count in hours.items()},
        )
    }


def compared(counts, log):
    rows = usage_by_hour([counted(hour, n) for hour, n in counts.items()], log, "/")
    return {row.hour // HOUR: row.comparison for row in rows}


def test_hours_that_agree():
    assert compared({1: 5, 2: 7}, logged({1: 5, 2: 7})) == {1: "agrees", 2: "agrees"}


def test_a_row_has_both():
    (row,) = usage_by_hour([counted(1, 5)], logged({1: 5}), "/")
    assert row[1:] == ("queue", "/", "q", 5, 50, 0, 0, 5, 50, "agrees")


def test_what_is_in_the_log_alone_has_a_row():
    assert compared({1: 5}, logged({1: 5, 2: 3})) == {1: "agrees", 2: "differs"}


def test_an_hour_that_differs():
    rows = usage_by_hour([counted(1, 5), counted(2, 5)], logged({1: 5, 2: 6}), "/")
    assert [row.hour // HOUR for row in differing(rows)] == [2]
    assert compared({1: 6, 2: 5}, logged({1: 5, 2: 5}))[1] == Agreement.DIFFERS


def test_what_retention_removed_is_no_difference():
    log = logged({2: 3, 3: 4}, removed_until=2)
    assert compared({1: 9, 2: 5, 3: 4}, log) == {
        1: "partly removed",
        2: "partly removed",
        3: "agrees",
    }
    assert compared({2: 2}, logged({2: 3}, removed_until=2))[2] == Agreement.DIFFERS  # more


def test_neighbouring_hours_make_up_for_each_other():
    assert compared({1: 6, 2: 4, 3: 5}, logged({1: 5, 2: 5, 3: 5})) == {
        1: "turn of the hour",
        2: "turn of the hour",
        3: "agrees",
    }


def test_what_comes_meanwhile_is_no_difference():
    assert compared({1: 5, 2: 8}, logged({1: 5, 2: 7}, ends=(12, 13)))[2] == Agreement.AGREES
    assert compared({1: 5, 2: 9}, logged({1: 5, 2: 7}, ends=(12, 13)))[2] == Agreement.DIFFERS


def test_users_and_other_queues_are_not_compared():
    rows = usage_by_hour([counted(1, 5, "q", "user"), counted(1, 5, "other")], logged({1: 5}), "/")
    by_name = {(row.subject, row.name): row.comparison for row in rows}
    assert by_name["user", "q"] == by_name["queue", "other"] == Agreement.NOT_COMPARED


def test_queues_are_compared_by_all_that_was_ever_stored():
    log = logged({9: 3}, ends=(20, 20), removed_until=9)
    (audit,) = audit_queues([counted(1, 12), counted(9, 8), counted(9, 99, "x")], log)
    assert audit == ("q", 20, 20, 3, 0, "agrees")
    (audit,) = audit_queues([counted(1, 12)], log)
    assert audit == ("q", 12, 20, 3, -8, "differs")
    log = logged({9: 3}, ends=(20, 25))
    assert audit_queues([counted(1, 23)], log)[0].comparison == Agreement.AGREES
    assert audit_queues([counted(1, 26)], log)[0].difference == 1
