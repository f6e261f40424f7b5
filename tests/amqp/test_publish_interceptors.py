"""Interceptors see what a message asks of the broker before it is routed."""

from __future__ import annotations

import pytest
from pamqp import commands

from leveret.core.logs.log_writer import Waiter
from leveret.core.publish_interceptors import PublishContext
from leveret.errors import ChannelError
from leveret.ports.records import RecordFlag
from tests.support.client import Client, message, wire
from tests.support.stage import Stage


class Keeper:
    """Takes what asks for a delay, commits it when told, and refuses what is `bad`."""

    def __init__(self) -> None:
        self.taken: list[PublishContext] = []
        self.waiters: list[Waiter] = []

    def would_take(self, context: PublishContext) -> bool:
        delay = context.message.headers.get("x-delay")
        if delay == "bad":
            raise ChannelError(406, "no such delay")
        return delay != 0

    def intercept(self, context: PublishContext):
        if not self.would_take(context):
            return None
        self.taken.append(context)
        return [self] if context.message.headers["x-delay"] != "drop" else []

    def await_commit(self, waiter: Waiter) -> None:
        self.waiters.append(waiter)


@pytest.fixture
def stage():
    stage = Stage()
    yield stage
    assert stage.reported == []


@pytest.fixture
def keeper(stage):
    keeper = Keeper()
    stage.broker.publish_interceptors.interceptors[:] = [(RecordFlag.WANTS_DELAY, keeper)]
    return keeper


@pytest.fixture
def client(stage, keeper):
    client = Client(stage).open()
    client.declare("q")
    assert client.call(commands.Confirm.Select()).name == "Confirm.SelectOk"
    return client


def test_the_confirm_waits_for_whoever_took_the_message(client, keeper):
    client.publish("q", b"later", headers={"x-delay": 5})
    assert client.methods() == []
    (context,) = keeper.taken
    assert context.message.body == b"later"
    assert context.keys == (b"q",)
    assert context.tag == 1
    client.publish("q", b"now", headers={"x-delay": 0})
    assert client.methods() == []  # its confirm stands behind the first one's
    for waiter in keeper.waiters:
        waiter.done(failed=False)
    client.stage.run()
    assert client.methods()[-1][:2] == ("Basic.Ack", 2)
    assert client.count("q") == 1


def test_what_is_taken_of_one_read_is_confirmed_together(client, keeper):
    client.publish("q", b"1", b"2", b"3", headers={"x-delay": 5})
    (waiter,) = keeper.waiters
    waiter.done(failed=False)
    assert client.methods() == [("Basic.Ack", 3, True)]


def test_what_is_taken_is_confirmed_before_a_method_behind_it_is_handled(client, keeper):
    later = message("q", b"later", headers={"x-delay": 5})
    client.feed(later + later + wire(commands.Basic.Qos(prefetch_count=1)))
    assert client.names() == ["Basic.QosOk"]
    (waiter,) = keeper.waiters
    waiter.done(failed=True)
    assert client.methods() == [("Basic.Nack", 2, True)]


def test_what_is_taken_waits_for_no_rest_of_a_message(client, keeper):
    later = message("q", b"later", headers={"x-delay": 5})
    client.feed(later + later + later[:-1])
    (waiter,) = keeper.waiters
    waiter.done(failed=False)
    assert client.methods() == [("Basic.Ack", 2, True)]


def test_what_is_dropped_is_confirmed_at_once(client):
    client.publish("q", b"seen", headers={"x-delay": "drop"})
    assert client.methods()[-1][:2] == ("Basic.Ack", 1)
    assert client.count("q") == 0


def test_a_refusal_closes_the_channel_and_stores_nothing(client, stage):
    client.publish("q", b"never", headers={"x-delay": "bad"})
    assert client.methods()[-1][0] == "Channel.Close"
    assert stage.broker.find_queue(stage.broker.vhosts["/"], "q", None).message_count == 0


def test_a_command_exchange_takes_whatever_is_published_to_it(client, stage, keeper):
    stage.broker.publish_interceptors.commands[b"leveret.test"] = keeper
    client.publish("anything", b"command", exchange="leveret.test", headers={"x-delay": "drop"})
    assert keeper.taken[-1].message.routing_key == b"anything"
    assert client.methods()[-1][0] == "Basic.Ack"


def test_messages_of_blind_copies_are_taken_with_all_their_keys(client, keeper):
    client.publish("q", b"m", headers={"x-delay": 5, "BCC": ["other"]})
    (context,) = keeper.taken
    assert context.keys == (b"q", b"other")
    assert context.message.flags & RecordFlag.BLIND_COPIED
    assert context.message.headers["BCC"] == ["other"]


def begin(stage):
    client = Client(stage).open(1, 2)
    client.declare("q", channel=2)
    client.publish("q", b"given", channel=2)
    assert client.call(commands.Tx.Select()).name == "Tx.SelectOk"
    client.consume("q")
    (delivery,) = client.deliveries()
    client.send(commands.Basic.Ack(delivery_tag=delivery.tag))
    return client


def test_a_transaction_hands_in_its_messages_first_and_takes_effect_when_they_are_safe(
    stage, keeper
):
    client = begin(stage)
    client.publish("q", b"later", headers={"x-delay": 5})
    client.publish("q", b"now", headers={"x-delay": 0})
    assert keeper.taken == []
    client.send(commands.Tx.Commit())
    assert len(keeper.taken) == 1
    assert client.methods() == []
    assert stage.queue("q").message_count == 0
    (waiter,) = keeper.waiters
    waiter.done(failed=False)
    stage.run()
    client.send()
    assert client.received()[0][1].name == "Tx.CommitOk"
    assert stage.queue("q").state.leased_count == 1  # of the message that went on at once


def test_what_cannot_be_kept_fails_the_transaction_and_gives_its_acks_back(stage, keeper):
    client = begin(stage)
    client.publish("q", b"later", headers={"x-delay": 5})
    client.send(commands.Tx.Commit())
    (waiter,) = keeper.waiters
    waiter.done(failed=True)
    stage.run()
    client.send()
    assert client.methods()[-1][0] == "Channel.Close"
    assert stage.queue("q").message_count == 1


def test_what_is_refused_at_the_commit_closes_the_channel_with_nothing_done(stage, keeper):
    client = begin(stage)
    client.publish("q", b"later", headers={"x-delay": "bad"})
    client.send(commands.Tx.Commit())
    assert client.methods()[-1][0] == "Channel.Close"
    assert stage.queue("q").message_count == 1


def test_a_rollback_forgets_what_a_feature_would_have_taken(stage, keeper):
    client = begin(stage)
    client.publish("q", b"later", headers={"x-delay": 5})
    assert client.call(commands.Tx.Rollback()).name == "Tx.RollbackOk"
    assert client.call(commands.Tx.Commit()).name == "Tx.CommitOk"
    assert keeper.taken == []


def test_a_command_takes_effect_at_once_in_a_transaction_too(stage, keeper):
    stage.broker.publish_interceptors.commands[b"leveret.test"] = keeper
    client = begin(stage)
    client.publish("key", b"command", exchange="leveret.test", headers={"x-delay": "drop"})
    assert len(keeper.taken) == 1
