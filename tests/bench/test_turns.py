"""Brokers of a row are started, read and stopped in order."""

import pytest

from bench import turns
from bench.measure import Reading
from bench.processes import BenchError
from bench.rows import FLOOR, LAVINMQ, Bound, Kind, Row, Target
from bench.turns import Turns

NAMES = ("Leveret", FLOOR, LAVINMQ)


class FakeBroker:
    """Notes what is done with it, and fails to start as often as it is told to."""

    version = "1"

    def __init__(self, name, done, failures):
        self.name, self.done, self.failures = name, done, failures

    def start(self):
        if self.failures:
            raise BenchError(self.failures.pop())
        self.done.append(f"start {self.name}")

    def stop(self):
        self.done.append(f"stop {self.name}")


@pytest.fixture
def done(monkeypatch):
    """Return the list of what is done; reading and resting take no time."""
    done = []

    def measure(row, broker, timing):
        done.append(f"read {broker.name}")
        return Reading({"figure": 1})

    monkeypatch.setattr(turns, "measure", measure)
    monkeypatch.setattr(turns.time, "sleep", lambda seconds: done.append(f"rest {seconds}"))
    return done


def taking(done, names=NAMES, kind=Kind.FLOW, failures=()):
    row = Row("name", "A title", (Target("figure", "messages/s", Bound.SHOWN),), kind=kind)
    left = list(failures)
    return Turns(row, names, None, lambda name: FakeBroker(name, done, left))


def test_brokers_rest_while_another_is_read_and_the_floor_starts_for_each_reading(done):
    row = taking(done)
    row.settle(60)
    assert done == ["start Leveret", "start LavinMQ", "rest 60"]
    done.clear()
    assert [name for name, _ in row.take()] == list(NAMES)
    floor = ["start Floor", "read Floor", "stop Floor"]
    assert done == ["read Leveret", *floor, "read LavinMQ"]
    done.clear()
    assert all(reading.figures == {"figure": 1} for _, reading in row.take())
    row.close()
    assert done == ["read Leveret", *floor, "read LavinMQ", "stop Leveret", "stop LavinMQ"]
    assert row.versions == dict.fromkeys(NAMES, "1")


def test_each_reading_of_a_start_is_a_start(done):
    row = taking(done, ["Leveret"], Kind.START)
    for _ in range(2):
        list(row.take())
    assert done == ["start Leveret", "read Leveret", "stop Leveret"] * 2


def test_a_broker_that_does_not_start_is_stopped_and_its_reading_says_why(done):
    row = taking(done, ["Leveret"], failures=["a second time", "at first"])
    row.settle(1)
    assert [reading.failure for _, reading in row.take()] == ["a second time"]
    assert done == ["stop Leveret", "rest 1", "stop Leveret"]
    assert row.versions == {}
    row.close()
