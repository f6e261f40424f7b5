"""Publisher confirms, returns and transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk


@pytest.mark.covers("B-101", "confirm.select")
def confirm_select_and_confirms(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"), durable=True)
    channel.call(commands.Confirm.Select())
    channel.call(commands.Confirm.Select())
    channel.publish("", talk.name("q"), delivery_mode=2)
    channel.read()
    for _ in range(20):
        channel.publish("", talk.name("q"), delivery_mode=2)
    channel.connection.read_confirms(21, first=2)
    channel.count(talk.name("q"), 21)


@pytest.mark.covers("confirm.select", "nowait")
def confirm_select_nowait(talk: Talk) -> None:
    channel = talk.channel()
    channel.send(commands.Confirm.Select(nowait=True))
    channel.publish("amq.fanout", "nobody")
    channel.connection.read_confirms(1)


@pytest.mark.covers("B-101")
def unroutable_is_confirmed(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(commands.Confirm.Select())
    channel.publish("", talk.name("missing"))
    channel.connection.read_confirms(1)


@pytest.mark.covers("B-101", "B-102")
def return_comes_before_the_confirm(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(commands.Confirm.Select())
    channel.publish("amq.direct", "nobody", b"come back", mandatory=True, message_id="m")
    channel.read(2)
    channel.publish("", talk.name("missing"), b"", mandatory=True)
    channel.read(2)


@pytest.mark.covers("B-102")
def returned_large_message(talk: Talk) -> None:
    channel = talk.channel(frame_max=4096)
    channel.publish("", talk.name("missing"), b"x" * 4000, mandatory=True)
    channel.read()


@pytest.mark.covers("B-102")
def mandatory_and_routed_is_not_returned(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"), mandatory=True)
    channel.count(talk.name("q"), 1)


@pytest.mark.covers("B-314")
def immediate_is_not_implemented(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"), immediate=True)
    channel.read_answer()


@pytest.mark.covers("B-101")
def confirms_for_several_queues(talk: Talk) -> None:
    channel = talk.channel()
    channel.exchange(talk.name("x"), "fanout")
    for word in ("one", "two", "three"):
        channel.declare(talk.name(word), durable=word == "one")
        channel.bind(talk.name(word), talk.name("x"))
    channel.call(commands.Confirm.Select())
    for number in range(10):
        channel.publish(talk.name("x"), "", b"%d" % number, delivery_mode=2)
    channel.connection.read_confirms(10)
    for word in ("one", "two", "three"):
        channel.count(talk.name(word), 10)


def confirms_after_the_channel_error_do_not_come(talk: Talk) -> None:
    connection = talk.connection()
    channel = connection.channel()
    channel.call(commands.Confirm.Select())
    channel.publish(talk.name("missing"), "k")
    channel.read_answer()
    again = connection.channel()
    again.call(commands.Confirm.Select())
    again.publish("", talk.name("q"))
    again.connection.read_confirms(1)


@pytest.mark.covers("B-112", "tx")
def transaction_commits(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.call(commands.Tx.Select())
    channel.call(commands.Tx.Select())
    for word in (b"one", b"two"):
        channel.publish("", talk.name("q"), word)
    channel.count(talk.name("q"))
    channel.call(commands.Tx.Commit())
    channel.count(talk.name("q"), 2)
    channel.get(talk.name("q"))
    channel.ack(1)
    channel.call(commands.Tx.Commit())
    channel.call(commands.Basic.Recover(requeue=True))
    channel.count(talk.name("q"))


@pytest.mark.covers("B-112", "tx")
def transaction_rolls_back(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"), b"before")
    channel.call(commands.Tx.Select())
    channel.publish("", talk.name("q"), b"discarded")
    channel.get(talk.name("q"))
    channel.ack(1)
    channel.call(commands.Tx.Rollback())
    channel.count(talk.name("q"))
    channel.ack(1)
    channel.call(commands.Tx.Commit())
    channel.get(talk.name("q"))


@pytest.mark.covers("B-112")
def transaction_with_returns_and_rejects(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.publish("", talk.name("q"), b"rejected")
    channel.call(commands.Tx.Select())
    channel.get(talk.name("q"))
    channel.reject(1, requeue=True)
    channel.publish("", talk.name("missing"), b"returned", mandatory=True)
    channel.expect_quiet()
    channel.send(commands.Tx.Commit())
    channel.read(2)
    channel.get(talk.name("q"))


@pytest.mark.covers("B-112")
def transaction_closed_without_commit(talk: Talk) -> None:
    channel = talk.channel()
    channel.declare(talk.name("q"))
    channel.call(commands.Tx.Select())
    channel.publish("", talk.name("q"))
    channel.close()
    channel.connection.channel(2).count(talk.name("q"))


def publish_errors_in_a_transaction_come_at_once(talk: Talk) -> None:
    channel = talk.channel()
    channel.call(commands.Tx.Select())
    channel.publish(talk.name("missing"), "k")
    channel.read_answer()


@pytest.mark.covers("B-216")
def commit_outside_a_transaction(talk: Talk) -> None:
    connection = talk.connection()
    connection.channel(1).call(commands.Tx.Commit())
    connection.channel(2).call(commands.Tx.Rollback())


@pytest.mark.covers("B-216")
def confirm_and_transaction_exclude_each_other(talk: Talk) -> None:
    connection = talk.connection()
    one = connection.channel(1)
    one.call(commands.Confirm.Select())
    one.call(commands.Tx.Select())
    two = connection.channel(2)
    two.call(commands.Tx.Select())
    two.call(commands.Confirm.Select())


@pytest.mark.covers("B-112", "B-216")
def a_transaction_that_a_full_queue_refuses(talk: Talk) -> None:
    channel = talk.channel()
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.declare(talk.name("full"), arguments=full)
    channel.declare(talk.name("q"))
    channel.call(commands.Tx.Select())
    channel.publish("", talk.name("full"), b"1")
    channel.call(commands.Tx.Commit())
    for queue in ("full", "q"):
        channel.publish("", talk.name(queue), b"2")
    channel.call(commands.Tx.Commit())
    other = channel.connection.channel(2)
    other.count(talk.name("full"), 1)
    other.count(talk.name("q"), 1)
