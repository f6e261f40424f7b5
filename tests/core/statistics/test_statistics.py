"""Sums over virtual hosts, and what remains of those that are gone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from leveret.core.statistics.statistics import Statistics
from leveret.ports.counters import DELIVER, GET, PUBLISH, Counters
from leveret.ports.definitions import QueueDefinition


def queue(kind: str = "classic", vhost: str = "/") -> SimpleNamespace:
    definition = QueueDefinition(vhost, "q", True, False, False, {"x-queue-type": kind})
    return SimpleNamespace(definition=definition, counters=Counters())


def test_a_deleted_virtual_host_still_counts_for_the_node():
    statistics = Statistics()
    statistics.vhost("a").count(PUBLISH, 3)
    statistics.vhost("b").count(PUBLISH, 4)
    statistics.vhost_deleted("a")
    statistics.vhost_deleted("a")
    assert statistics.totals() == {"publish": 7}
    assert statistics.vhost("a").counted() == {}


@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_what_is_handed_out_counts_for_the_type_of_queue(kind):
    statistics, source, channel = Statistics(), queue(kind), Counters()
    statistics.delivery_statistics(DELIVER, source, channel).delivered(2, 10, False, 0)
    statistics.delivery_statistics(GET, source, channel).delivered(1, 5, False, 0)
    counted = {"deliver": 2, "get": 1, "bytes_out": 15, "deliver_get": 3}
    assert statistics.of(source) == statistics.totals() == counted
    assert statistics.by_queue_type[kind].value(DELIVER) == 2
    assert sum(each.value(DELIVER) for each in statistics.by_queue_type.values()) == 2
    assert statistics.latency.count == (0 if kind == "stream" else 3)


def test_churn_counts_what_it_knows():
    churn = Statistics().churn
    for event in ("queue.created", "queue.created", "queue.declared", "vhost.created"):
        churn.happened(event)
    expected = {"queue_created": 2, "queue_declared": 1}
    assert {name: n for name, n in churn.totals().items() if n} == expected
    assert len(churn.totals()) == 7
