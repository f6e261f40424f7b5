"""Brokers of a row: its yardsticks where they are installed, or one broker alone."""

import pytest

from bench import __main__ as bench
from bench.rows import FLOORS, LAVINMQ, ROWS

BY_NAME = {row.name: row for row in ROWS}


@pytest.fixture(params=[True, False])
def installed(request, monkeypatch):
    monkeypatch.setattr(bench.LavinMq, "is_installed", lambda: request.param)
    return request.param


def test_lavinmq_is_left_out_where_it_is_not_installed(installed):
    names = bench._brokers(BY_NAME["1-waiting"], "")
    assert names == ["RabbitMQ", "Leveret", *FLOORS, *([LAVINMQ] if installed else [])]
    assert bench._brokers(BY_NAME["transient"], "") == ["RabbitMQ", "Leveret"]


def test_one_broker_alone(installed):
    assert bench._brokers(BY_NAME["get-sleeping"], "floor") == ["Floor"]
    assert bench._brokers(BY_NAME["get-sleeping"], "leveret") == ["Leveret"]
    assert bench._brokers(BY_NAME["transient"], "floor") == []
