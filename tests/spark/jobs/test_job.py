"""The context of a job: progress, and how the broker is reached."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest

from leveret.spark.jobs import job
from leveret.spark.jobs.runner import common_arguments


@pytest.fixture
def context():
    return job.JobContext("count", common_arguments().parse_args([], argparse.Namespace()))


def test_progress_is_told_every_now_and_then(context, capsys, monkeypatch):
    times = iter((100.0, 101.0, 103.0, 103.1))
    monkeypatch.setattr(job, "time", SimpleNamespace(monotonic=lambda: next(times)))
    for number in range(3):
        context.report(f"{number} of 3")
    context.report("done", always=True)
    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["leveret: 0 of 3", "leveret: 2 of 3", "leveret: done"]
    assert shown.out == ""


def test_the_broker_is_on_this_machine_unless_it_is_told_otherwise(context):
    assert context.connection.servers == ("http://localhost:15672",)
    assert (context.connection.user, context.connection.vhost) == ("guest", "/")


def test_a_context_ends_the_session_that_it_has_begun(context):
    ended = []
    context.close()  # it has none
    context._spark = SimpleNamespace(stop=lambda: ended.append(True))
    context.close()
    context.close()
    assert ended == [True]
