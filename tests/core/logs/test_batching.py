"""Waiters of a log that refuses what comes, since too few nodes are in sync."""

from functools import partial

import pytest
from pamqp import commands

from leveret.core.settings.queue_settings import Overflow, QueueSettings
from leveret.errors import NotEnoughCopiesError
from leveret.ports import Durability
from tests.support.client import Client
from tests.support.queue_bench import Bench, Waiter
from tests.support.stage import Stage

FEW = NotEnoughCopiesError("it needs 2 nodes in sync, and has 1")
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


@pytest.fixture
def full():
    """A full queue with a record that is not committed yet."""
    bench = Bench(Durability.FSYNC, QueueSettings(max_length=1, overflow=Overflow.REJECT_PUBLISH))
    bench.store()
    return bench


def waiter_of(bench):
    waiter = Waiter()
    bench.queue.await_commit(waiter)
    return waiter


def publish(bench):
    """Publish a record, and return who waits for it after the turn."""
    bench.publish()
    waiter = waiter_of(bench)
    bench.run()
    return waiter


def test_what_appends_nothing_waits_for_no_copies(full):
    full.log.refuse(FEW)
    for _ in range(2):
        assert publish(full).fates == [True]
        assert waiter_of(full).fates == [True]
    assert full.log.end == 1
    assert full.reported == []


def test_what_appends_nothing_succeeds_if_all_before_it_is_committed(full):
    full.log.commit()
    full.log.refuse(FEW)
    assert publish(full).fates == [False]


def test_commits_are_waited_for_again_once_there_are_copies(full):
    first = waiter_of(full)
    full.log.refuse(FEW)
    assert first.fates == [True]
    full.log.refuse(None)
    second, third = waiter_of(full), publish(full)
    assert (second.fates, third.fates) == ([], [])
    full.log.commit()
    assert (first.fates, second.fates, third.fates) == ([True], [False], [False])


def test_a_queue_is_caught_up_while_its_log_refuses_but_keeps_its_order(full):
    assert not full.queue.is_caught_up
    full.log.refuse(FEW)
    assert full.queue.is_caught_up
    assert not full.queue.can_reorder  # it may be committed yet, and has its place
    full.publish()
    assert not full.queue.is_caught_up
    full.run()
    full.log.refuse(None)
    assert not full.queue.is_caught_up
    full.log.commit()
    full.run()
    assert full.queue.is_caught_up
    assert full.queue.can_reorder


def test_a_log_that_refuses_from_the_start_lets_nobody_wait():
    bench = Bench(Durability.FSYNC)
    bench.store()
    bench.log.refuse(FEW)
    bench.reopen()
    assert waiter_of(bench).fates == [True]
    assert publish(bench).fates == [True]
    assert [error for _, error in bench.reported] == [FEW]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (commands.Basic.Get(queue="q"), "Basic.GetEmpty"),
        (commands.Queue.Purge(queue="q"), "Queue.PurgeOk"),
        (commands.Queue.Declare(queue="q", passive=True), "Queue.DeclareOk"),
        (commands.Queue.Delete(queue="q"), "Queue.DeleteOk"),
    ],
)
def test_a_rejected_publish_holds_up_neither_its_channel_nor_its_queue(method, answer):
    stage = Stage(Durability.FSYNC)
    client, other = Client(stage).open(), Client(stage).open()
    client.declare("q", durable=True, arguments=FULL)
    client.declare("other", durable=True)
    client.call(commands.Confirm.Select())
    send = partial(client.publish, delivery_mode=2)
    send("q", b"stored, and refused for lack of copies")
    stage.run()
    stage.log("q").refuse(FEW)
    send("q", b"rejected")
    stage.run()
    assert client.names() == ["Basic.Nack", "Basic.Nack"]
    send("other", b"stored")
    stage.run()
    stage.log("other").commit()
    stage.run()
    assert client.names() == ["Basic.Ack"]
    other.send(method)
    stage.run()
    assert other.names() == [answer]
