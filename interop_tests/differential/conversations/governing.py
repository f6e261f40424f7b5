"""Rules for clients: topic permissions, limits and policies (interop_tests.users has them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pamqp import commands

if TYPE_CHECKING:
    from interop_tests.differential.talk import Talk

TOPICAL = {"user": "topical", "password": "topical"}
FRUGAL = {"user": "frugal", "password": "frugal"}
THRIFTY = {"user": "thrifty", "password": "thrifty"}


@pytest.mark.covers("B-235", "B-407")
def publishing_to_topics_needs_write(talk: Talk) -> None:
    queue = talk.name("q")
    inspector = talk.channel()
    inspector.declare(queue)
    inspector.bind(queue, "amq.topic", "#")
    channel = talk.channel(**TOPICAL)
    channel.call(commands.Confirm.Select())
    channel.publish("amq.topic", "topical.a")
    channel.read()
    channel.publish("amq.topic", "topicalXa")
    channel.read_answer()
    inspector.get(queue)
    inspector.get(queue)


@pytest.mark.covers("B-407")
def other_exchanges_have_no_topics(talk: Talk) -> None:
    exchange = talk.name("x")
    channel = talk.channel(**TOPICAL)
    channel.exchange(exchange, "topic")
    channel.call(commands.Confirm.Select())
    for name in (exchange, "amq.direct"):
        channel.publish(name, "closed")
        channel.read()


@pytest.mark.covers("B-235", "B-407")
def binding_to_topics_needs_read(talk: Talk) -> None:
    queue, exchange = talk.name("q"), talk.name("x")
    connection = talk.connection(**TOPICAL)
    channel = connection.channel()
    channel.declare(queue)
    channel.exchange(exchange, "fanout")
    channel.bind(queue, "amq.topic", "open.a")
    channel.bind(queue, "amq.topic", "/")
    channel.bind(queue, "amq.topic", "closed")
    unbind = commands.Queue.Unbind(queue=queue, exchange="amq.topic", routing_key="closed")
    connection.channel(2).call(unbind)
    bind = commands.Exchange.Bind(destination=exchange, source="amq.topic", routing_key="closed")
    connection.channel(3).call(bind)


@pytest.mark.covers("B-304", "B-405")
def connections_of_a_user_are_limited(talk: Talk) -> None:
    talk.connection(**FRUGAL)
    talk.connection(**FRUGAL)


@pytest.mark.covers("B-306", "B-405")
def channels_of_a_user_are_limited(talk: Talk) -> None:
    connection = talk.connection(**THRIFTY)
    connection.channel(1)
    connection.channel(2)
    connection.send(3, commands.Channel.Open())
    connection.read()


@pytest.mark.covers("B-304", "B-404")
def connections_of_a_vhost_are_limited(talk: Talk) -> None:
    talk.connection(vhost="lonely")
    talk.connection(vhost="lonely")


@pytest.mark.covers("B-222", "B-404")
def queues_of_a_vhost_are_limited(talk: Talk) -> None:
    connection = talk.connection(vhost="narrow")
    channel = connection.channel()
    channel.declare("one", exclusive=True)
    channel.declare("one", exclusive=True)
    channel.declare("two", exclusive=True)


@pytest.mark.covers("B-400")
def policies_of_the_highest_priority_count_alone(talk: Talk) -> None:
    queue, longer = talk.name("q"), talk.name("longer")
    channel = talk.channel()
    channel.declare(queue)
    channel.declare(longer, arguments={"x-message-ttl": 60_000})
    channel.call(commands.Confirm.Select())
    for name in (queue, longer):
        for _ in range(2):
            channel.publish("", name)
            channel.read()
        channel.get(name)


@pytest.mark.covers("B-105", "B-400")
def alternate_by_policy_takes_the_unrouted(talk: Talk) -> None:
    queue, plain, told = talk.name("q"), talk.name("plain"), talk.name("told")
    channel = talk.channel()
    channel.declare(queue)
    channel.bind(queue, "amq.fanout")
    channel.exchange(plain)
    channel.exchange(told, arguments={"alternate-exchange": talk.name("nowhere")})
    channel.call(commands.Confirm.Select())
    for exchange in (plain, told):
        channel.publish(exchange, "k", mandatory=True)
        channel.read_answer()
    channel.read()
    channel.get(queue)
    channel.get(queue)
