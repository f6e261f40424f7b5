"""Places of a streaming query, against what is there now: losses, and what is none."""

from __future__ import annotations

import pytest

from leveret.range_reader import PartitionOffsets, TopicBounds
from leveret.spark.errors import DataLossError
from leveret.spark.offsets import TopicOffsets
from leveret.spark.places import TopicsNow, check_present
from leveret.spark.read_options import TopicSelection

ORDERS, BOTH = TopicSelection(("orders",)), TopicSelection(("orders", "parcels"))
PATTERN = TopicSelection(pattern="o.*|p.*")


def now(selection, **topics):
    """Return topics with partitions of these numbers, each with offsets from 0 to 10."""
    bounds = {
        name: TopicBounds(name, [PartitionOffsets(number, 0, 10) for number in numbers])
        for name, numbers in topics.items()
    }
    return TopicsNow(bounds, selection)


def read_up_to(offset, **topics):
    places = {name: dict.fromkeys(numbers, offset) for name, numbers in topics.items()}
    return TopicOffsets(places, {name: name for name in topics})


START = read_up_to(5, orders=(0, 1), parcels=(0,))


def test_what_is_there_is_no_loss():
    there = now(BOTH, orders=(0, 1, 2), parcels=(0,))
    check_present(START, there, None)
    check_present(START, there, there.ends)


@pytest.mark.parametrize("selection", [ORDERS, TopicSelection(pattern="o.*")])
@pytest.mark.parametrize("is_first_look", [True, False])
def test_a_topic_that_is_not_chosen_any_more_is_named(selection, is_first_look):
    there = now(selection, orders=(0, 1))
    with pytest.raises(DataLossError, match="topic 'parcels', partitions 0"):
        check_present(START, there, None if is_first_look else there.ends)


def test_all_that_is_left_out_is_named():
    start = read_up_to(5, a=(0, 1), b=(2,), orders=(0,))
    with pytest.raises(DataLossError, match="topic 'a', partitions 0, 1; topic 'b', partitions 2"):
        check_present(start, now(ORDERS, orders=(0,)), None)


def test_a_partition_that_is_not_assigned_any_more_is_named():
    assigned = TopicSelection(("orders",), partitions={"orders": (0,)})
    with pytest.raises(DataLossError, match="topic 'orders', partitions 1"):
        check_present(read_up_to(5, orders=(0, 1)), now(assigned, orders=(0, 1)), None)


def test_a_partition_that_is_not_assigned_because_it_is_retired_is_no_loss():
    assigned = TopicSelection(("orders",), partitions={"orders": (0,)})
    check_present(read_up_to(5, orders=(0, 1)), now(assigned, orders=(0,)), None)


@pytest.mark.parametrize("selection", [ORDERS, TopicSelection(pattern="o.*")])
def test_a_retired_partition_is_no_loss_unless_it_was_seen_to_have_more(selection):
    start, there = read_up_to(5, orders=(0, 1)), now(selection, orders=(0,))
    check_present(start, there, None)
    check_present(start, there, read_up_to(5, orders=(0, 1)))
    with pytest.raises(DataLossError, match="partition 1: it is gone, and offsets 5 to 6"):
        check_present(start, there, read_up_to(6, orders=(0, 1)))


def test_a_topic_that_is_gone_is_a_loss_unless_it_was_seen_to_be_read():
    there = now(PATTERN, orders=(0, 1))
    with pytest.raises(DataLossError, match="topic 'parcels' is gone"):
        check_present(START, there, None)
    check_present(START, there, read_up_to(5, orders=(0, 1), parcels=(0,)))
    with pytest.raises(DataLossError, match="topic 'parcels', partition 0: it is gone"):
        check_present(START, there, read_up_to(6, orders=(0, 1), parcels=(0,)))


def test_a_topic_that_was_declared_again_is_told():
    start = TopicOffsets(START.by_topic, {"orders": "before", "parcels": "parcels"})
    with pytest.raises(DataLossError, match="'orders' was deleted and declared again"):
        check_present(start, now(BOTH, orders=(0, 1), parcels=(0,)), None)
