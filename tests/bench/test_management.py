"""The comparison of a watched node with a bare one runs, and judges what it finds."""

import sys

import pytest

from bench import management


@pytest.mark.usefixtures("processes")
def test_a_small_comparison(monkeypatch, capsys):
    short = ("--duration", "0.5", "--warm-up", "0.1")
    monkeypatch.setattr(management, "THROUGHPUT", short)
    monkeypatch.setattr(management, "LATENCY", ("--rate", "500", "--persistent", *short))
    monkeypatch.setattr(management, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(
        sys, "argv", ["management", "--rounds", "1", "--queues", "5", "--connections", "3"]
    )
    management.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        "messages/s",
        "p99, ms",
        "a page of queues",
    ]


@pytest.mark.parametrize(
    ("watched", "page", "status"),
    [
        ((95.0, 1.05), 99.0, 0),
        ((89.0, 1.0), 1.0, 1),
        ((100.0, 1.2), 1.0, 1),
        ((100.0, 1.0), 101, 1),
    ],
)
def test_more_than_a_tenth_is_too_much(watched, page, status):
    readings = {"bare": [(100.0, 1.0)] * 3, "watched": [watched] * 3}
    assert management.report(readings, page) == status
