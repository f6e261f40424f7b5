"""Each feature, ended at each step, starts with what it knew; damage costs what it hits."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import islice

import pytest
from pamqp import commands

from leveret.errors import StorageError
from leveret.features.delay.search import DelayedMessageFilter
from leveret.features.retry.commands import retry_cancel
from leveret.features.retry.key_order import KeyOrder
from leveret.features.retry.retrying import RetryTopic
from leveret.mgmt_ui.operations.topology import queue_purge
from leveret.ports.definitions import QueueDefinition
from leveret.storage.log import PartitionLog
from tests.recovery import scenarios
from tests.recovery.node import Node
from tests.recovery.scenarios import SCENARIOS
from tests.support.client import Client

LATER_SECONDS = 20  # everything that waits comes, or expires
KILLS = 30  # at points spread over all changes of files


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def steps_of(scenario, loop):
    node = Node(loop)
    count = sum(1 for _ in scenario(node))
    node.kill()
    return count


def played(scenario, loop, steps, **limits):
    """A node that has come to a step."""
    node = Node(loop, **limits)
    for _ in islice(scenario(node), steps):
        pass
    node.flush()
    return node


def contents(observed):
    """Return facts without their offsets, and how often each is known."""
    return Counter((fact.topic, fact.what, str(fact.value)) for fact in observed.facts)


def later(node):
    node.advance(LATER_SECONDS)
    return node.observe()


@pytest.mark.parametrize("end", [Node.close, Node.kill])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_state_survives_an_end_at_any_step(loop, scenario, end):
    for steps in range(1, 1 + steps_of(scenario, loop)):
        unended = played(scenario, loop, steps)
        expected = later(unended)
        unended.kill()
        node = played(scenario, loop, steps)
        before = node.observe()
        end(node)
        again = node.next_life()
        assert again.observe().difference(before) == [], steps
        assert later(again).difference(expected) == [], steps
        assert again.reported == []
        again.kill()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_kill_within_a_write_leaves_a_state_that_restarts_keep(loop, scenario):
    node = played(scenario, loop, None, segment_bytes_max=300)
    changes = node.files.calls
    node.kill()
    for fail_at in range(1, changes, 1 + changes // KILLS):
        node = Node(loop, segment_bytes_max=300)
        node.files.fail_at = fail_at
        with suppress(Exception):  # what clients are told by a node whose disk is dead
            for _ in scenario(node):
                pass
        node.kill()
        first = node.next_life()
        first.flush()
        found = first.observe()
        assert first.reported == [], fail_at
        first.kill()
        second = first.next_life()
        assert second.observe().difference(found) == [], fail_at
        second.kill()


@pytest.mark.parametrize("keeps_state", [False, True])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_everything_around_damage_is_restored(loop, scenario, keeps_state):
    node = played(scenario, loop, None, segment_bytes_max=300)
    before = node.observe()
    node.close()
    # Without the state store, damage in a last file looks like the end of a crash.
    lost = node.damage_middle(sealed_only=not keeps_state)
    assert lost
    again = node.next_life(keeps_state=keeps_state)
    assert again.observe().difference(before.without(lost)) == []
    again.kill()


@pytest.mark.parametrize("failing", [{1}, {2, 3}, {1, 3}])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_log_that_cannot_be_read_for_a_while_is_restored_whole(
    loop, monkeypatch, scenario, failing
):
    unended = played(scenario, loop, None, segment_bytes_max=300)
    for _ in range(LATER_SECONDS):
        unended.advance(1)
    expected = unended.observe()
    unended.kill()
    node = played(scenario, loop, None, segment_bytes_max=300)
    node.close()
    fetch, reads = PartitionLog.fetch, Counter()

    async def fetch_or_fail(log, offset, bytes_max):
        reads[log.directory] += 1
        if reads[log.directory] in failing:
            raise StorageError("too many open files")
        return await fetch(log, offset, bytes_max)

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "fetch", fetch_or_fail)
        again = node.next_life()
        for _ in range(LATER_SECONDS):
            again.advance(1)
    found = again.observe()
    if scenario in {scenarios.celery_eta, scenarios.delayed_messages}:
        assert contents(found) == contents(expected)  # what could not be read when due comes late
    else:
        assert found.difference(expected) == []
    assert {str(error) for _, error in again.reported} <= {"too many open files"}
    again.kill()


def test_each_order_of_keys_learns_those_of_retried_messages(loop):
    node = played(scenarios.key_order, loop, 2)
    node.close()
    again = node.next_life()
    again.run()
    (queue,) = (each for each in again.broker.vhosts["/"].queues.values() if order_of(each))
    order = order_of(queue)
    away = dict(order._away)
    assert away
    order._away.clear()  # as one has it that is made anew
    loop.run_until_complete(queue.extension(RetryTopic).recover())
    assert order._away == away
    again.kill()


def order_of(queue):
    return queue.extension(KeyOrder)


def test_what_was_delivered_at_most_once_never_comes_again(loop):
    node = Node(loop)
    node.declare("q", queue_type="stream")
    arguments = {"x-consumer-group": "g", "x-stream-offset": "first"}
    member = Client(node).open()
    member.consume("q", "c", no_ack=True, arguments=arguments)
    node.publish("q", *(b"%d" % number for number in range(5)))
    assert len(member.deliveries()) == 5
    node.kill()
    node = node.next_life()
    member = Client(node).open()
    member.consume("q", "c", no_ack=True, arguments=arguments)
    assert member.deliveries() == []
    node.kill()


@pytest.mark.parametrize("end", [Node.close, Node.kill])
@pytest.mark.parametrize("kind", ["classic", "quorum", "stream"])
def test_filters_find_after_an_end_what_they_would_have_found(loop, end, kind):
    node = Node(loop)
    node.declare("q", queue_type=kind)
    for number in range(300):
        tags = ["even" if number % 2 == 0 else "odd", f"t{number}"]
        node.publish("q", b"%d" % number, headers={"x-tags": tags, "n": number})
    node.flush()
    end(node)
    node = node.next_life()
    node.client.prefetch(1000)
    for filtered, found in (
        ({"x-filter-tags": "t7 || t150"}, [b"7", b"150"]),
        ({"x-filter-tags": "odd", "x-filter-sql": "n BETWEEN 290 AND 293"}, [b"291", b"293"]),
    ):
        start = {"x-stream-offset": "first"} if kind == "stream" else {}
        node.client.consume("q", arguments={**filtered, **start})
        node.run()
        assert [delivery.body for delivery in node.client.deliveries()] == found
        node.client.call(commands.Basic.Cancel(consumer_tag="c"))
    node.kill()


def test_a_queue_whose_arguments_would_be_refused_today_is_restored(loop):
    node = Node(loop)
    arguments = {"x-partitions": 2, "x-partition-by": "roundrobin", "x-group-assign": [7]}
    node.broker.vhosts["/"].add_queue(QueueDefinition("/", "q", arguments=arguments))
    loop.run_until_complete(node.metadata.flush())
    node.publish("q", b"kept")
    node.flush()
    node.kill()
    node = node.next_life()
    node.client.declare("q", durable=True, arguments=arguments)
    assert node.client.count("q") == 1
    node.kill()


@pytest.mark.parametrize(("end", "flagged"), [(Node.close, False), (Node.kill, True)])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_was_never_delivered_is_flagged_after_a_crash_only(loop, kind, end, flagged):
    node = Node(loop)
    node.declare("q", queue_type=kind)
    node.publish("q", *(b"%d" % number for number in range(5)))
    node.flush()
    end(node)
    node = node.next_life(keeps_state=end is Node.close)
    node.client.consume("q")
    assert [each.redelivered for each in node.client.deliveries()] == [flagged] * 5
    node.kill()


def purge_by_client(node):
    node.client.send(commands.Queue.Purge(queue="q"))
    node.run()
    assert node.client.methods() == [("Queue.PurgeOk", 3)]


def purge_by_operator(node):
    assert node.operate(queue_purge, name="q", waiting=False) == 3


@pytest.mark.parametrize("purge", [purge_by_client, purge_by_operator])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_what_was_purged_does_not_come_back_by_a_kill_right_after_the_answer(loop, kind, purge):
    node = Node(loop)
    node.declare("q", queue_type=kind)
    node.publish("q", *(b"%d" % number for number in range(3)))
    purge(node)
    node.kill()
    node = node.next_life()
    assert node.client.count("q") == 0
    node.kill()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("is_written_later", [False, True])
def test_a_purge_that_the_disk_refuses_is_not_answered_before_it_takes_it(
    loop, kind, is_written_later
):
    node = Node(loop)
    node.declare("q", queue_type=kind)
    node.publish("q", *(b"%d" % number for number in range(3)))
    node.files.fail_at = node.files.calls
    for _ in range(2):  # the second purge finds nothing in the queue
        client = Client(node).open()
        client.send(commands.Queue.Purge(queue="q"))
        node.run()
        ((_, close),) = client.received()
        assert (close.name, close.reply_code) == ("Connection.Close", 541)
        assert close.reply_text.startswith("INTERNAL_ERROR - queue 'q' is purged, but a restart")
    assert node.client.count("q") == 0
    if is_written_later:
        node.files.fail_at = None
        node.client.send(commands.Queue.Purge(queue="q"))
        node.run()
        assert node.client.methods() == [("Queue.PurgeOk", 0)]
    node.kill()
    node = node.next_life()
    assert node.client.count("q") == (0 if is_written_later else 3)
    node.kill()


def waiting(node):
    """A node with two retries, a task and a schedule that wait."""
    node.declare("q", retry_delays=[5000], celery_eta=True)
    node.publish("q", b"0", b"1")
    node.reject("q", 2)
    node.publish("q", b"2", headers={"task": "t", "id": "1", "eta": "2999-01-01T00:00:00Z"})
    node.publish("q", b"3", headers={"x-delay": 10_000})
    node.flush()
    return node


def unsettled_after_a_kill(node):
    """Return topics that still have something long after the node was killed and started again."""
    node.kill()
    node = node.next_life()
    found = {fact.topic for fact in later(node).facts if fact.what in {"due", "unsettled"}}
    node.kill()
    return found


def test_what_waited_when_it_was_purged_does_not_come_back_by_a_kill(loop):
    node = waiting(Node(loop))
    assert node.operate(queue_purge, name="q", waiting=True) == 3
    assert unsettled_after_a_kill(node) == {"q"}  # the schedule is no message of the queue yet


def test_what_was_cancelled_does_not_come_back_by_a_kill(loop):
    node = waiting(Node(loop))
    assert node.operate(retry_cancel, queue="q", ids=[], all_=True) == 2
    schedules = node.broker.schedules
    assert node.ask(schedules.cancel("/", DelayedMessageFilter())) == 1
    assert node.ask(schedules.cancel("/", DelayedMessageFilter(), queue="q")) == 1
    assert unsettled_after_a_kill(node) == set()


def test_a_cancellation_that_the_disk_refuses_is_refused_until_it_takes_it(loop):
    node = waiting(Node(loop))

    def cancel():
        return node.ask(node.broker.schedules.cancel("/", DelayedMessageFilter()))

    node.files.fail_at = node.files.calls
    for _ in range(2):  # the second one finds nothing any more
        with pytest.raises(StorageError):
            cancel()
    node.files.fail_at = None
    assert cancel() == 0
    assert node.operate(queue_purge, name="q", waiting=True) == 3
    assert unsettled_after_a_kill(node) == set()
