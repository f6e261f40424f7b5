"""Partitioned queues, consumer groups and the layout of super streams, with three clients.

pika and aio-pika here, the Java client in clients/Partitions.java. RabbitMQ has the super streams
only.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import aio_pika
import pika
import pytest

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
    from pika.adapters.blocking_connection import BlockingChannel

    from interop_tests.brokers import Broker

QUIET_SECONDS = 0.5
JAVA_SECONDS_MAX = 120
PARTITIONS = 4
KEYS = [f"customer-{number}" for number in range(20)]  # enough that each partition has some
OF_EACH_KEY = 5
MESSAGES = len(KEYS) * OF_EACH_KEY
KINDS = {
    "stream": {"x-queue-type": "stream"},
    "quorum": {"x-queue-type": "quorum", "x-retention": "1h"},
    "classic": {"x-retention": "1h"},
}


class Delivered(NamedTuple):
    tag: int
    partition: int
    offset: int
    key: str
    number: int
    redelivered: bool


def numbered() -> Iterator[tuple[str, bytes]]:
    """The key and the body of each message, the keys in turn."""
    for number in range(OF_EACH_KEY):
        for key in KEYS:
            yield key, f"{key} {number}".encode()


def delivered(tag: int, headers: Any, body: bytes, redelivered: bool | None) -> Delivered:
    """A delivery to a member of a group."""
    place = headers["x-partition"], headers["x-offset"]
    assert all(isinstance(number, int) for number in place)
    key, number = body.decode().split()
    assert headers["x-partition-key"] == key
    return Delivered(tag, *place, key, int(number), bool(redelivered))


def in_order(deliveries: list[Delivered]) -> None:
    """Each partition comes in the order of its offsets, each key in that of its numbers."""
    offsets, numbers = defaultdict(list), defaultdict(list)
    for each in deliveries:
        offsets[each.partition].append(each.offset)
        numbers[each.key].append(each.number)
    assert all(found == sorted(set(found)) for found in offsets.values())
    assert all(found == sorted(set(found)) for found in numbers.values())


def bodies(deliveries: list[Delivered]) -> set[tuple[str, int]]:
    return {(each.key, each.number) for each in deliveries}


EVERYTHING = {(key, number) for key in KEYS for number in range(OF_EACH_KEY)}


@pytest.fixture
def partitions(broker: Broker) -> None:
    if broker.name == "rabbitmq":
        pytest.skip("RabbitMQ has no partitioned queues")


# -- pika


def opened(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.address.host, broker.address.port, blocked_connection_timeout=LIMIT_SECONDS
        )
    )


def declare(channel: BlockingChannel, queue: str, arguments: dict[str, Any]) -> None:
    channel.queue_declare(queue, durable=True, arguments={"x-partitions": PARTITIONS, **arguments})


def publish(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    for key, body in numbered():
        properties = pika.BasicProperties(delivery_mode=2, headers={"x-partition-key": key})
        channel.basic_publish("", queue, body, properties)


class PikaMember:
    """A member of a group, or a plain consumer without one."""

    def __init__(self, broker: Broker, queue: str, prefetch: int = 1000, **arguments: Any) -> None:
        self.connection = opened(broker)
        self.channel = self.connection.channel()
        self.channel.basic_qos(prefetch_count=prefetch)
        self.came: list[Delivered] = []
        self.plain: list[tuple[int, bytes]] = []
        asked = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        take = self._take if asked else self._take_plain
        self.tag = self.channel.basic_consume(queue, take, arguments=asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.connection.is_open:
            self.connection.close()

    def _take(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        tag, redelivered = method.delivery_tag, method.redelivered
        self.came.append(delivered(tag, properties.headers, body, redelivered))

    def _take_plain(self, _channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self.plain.append((method.delivery_tag, body))

    def await_that(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"{len(self.came)} and {len(self.plain)} came"
            self.connection.process_data_events(0.05)

    def stay(self) -> None:
        self.connection.process_data_events(QUIET_SECONDS)

    def settle(self) -> list[Delivered]:
        """Acknowledge what has come, and forget it."""
        came, self.came = self.came, []
        if came:
            self.channel.basic_ack(max(each.tag for each in came), multiple=True)
        self.channel.basic_qos(prefetch_count=1000)  # it was read
        return came


@pytest.fixture
def queue(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a queue that is deleted afterwards."""
    name = re.sub(r"\W+", ".", f"partitions.{request.node.name}")  # pamqp allows no brackets
    yield name
    with opened(broker) as connection:
        connection.channel().queue_delete(name)


@pytest.mark.usefixtures("partitions")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_plain_consumers_compete_over_all_partitions(broker: Broker, queue: str, kind: str) -> None:
    with opened(broker) as connection:
        channel = connection.channel()
        declare(channel, queue, KINDS[kind])
        publish(channel, queue)
        assert channel.queue_declare(queue, passive=True).method.message_count == MESSAGES
        with PikaMember(broker, queue, 5) as one, PikaMember(broker, queue, 5) as two:
            consumers = one, two
            counts: Counter[bytes] = Counter()
            got = {one: 0, two: 0}
            deadline = time.monotonic() + LIMIT_SECONDS
            while counts.total() < MESSAGES and time.monotonic() < deadline:
                for consumer in consumers:
                    consumer.connection.process_data_events(0.01)
                    for tag, body in consumer.plain:
                        counts[body] += 1
                        got[consumer] += 1
                        consumer.channel.basic_ack(tag)
                    consumer.plain.clear()
            assert counts == Counter(body for _, body in numbered())
            assert all(got.values())
        assert channel.queue_declare(queue, passive=True).method.message_count == 0


@pytest.mark.usefixtures("partitions")
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_member_takes_over(broker: Broker, queue: str, kind: str) -> None:
    with opened(broker) as connection:
        declare(connection.channel(), queue, KINDS[kind])
        publish(connection.channel(), queue)
    group = {"consumer_group": "g", "stream_offset": "first"}
    with PikaMember(broker, queue, **group) as one:
        one.await_that(lambda: len(one.came) == MESSAGES)
        in_order(one.came)
        assert bodies(one.came) == EVERYTHING
        assert {each.partition for each in one.came} == set(range(PARTITIONS))
        assert not any(each.redelivered for each in one.came)
        # The first few of each partition are acknowledged, the others come back when it leaves.
        settled = [each for each in one.came if each.offset < 3]
        for each in settled:
            one.channel.basic_ack(each.tag)
        with PikaMember(broker, queue, **group) as two:
            two.stay()
            assert not two.came, "a partition has one member at a time"
            one.close()
            two.await_that(lambda: len(two.came) == MESSAGES - len(settled))
            in_order(two.came)
            assert bodies(two.came) == EVERYTHING - bodies(settled)
            assert all(each.redelivered for each in two.came)
            two.settle()
    with PikaMember(broker, queue, **group) as three:
        three.stay()
        assert not three.came, "all is committed"


@pytest.mark.usefixtures("partitions")
def test_members_share_the_partitions(broker: Broker, queue: str) -> None:
    group = {"consumer_group": "g", "stream_offset": "first"}
    with opened(broker) as connection:
        channel = connection.channel()
        declare(channel, queue, KINDS["stream"])
        with PikaMember(broker, queue, **group) as one, PikaMember(broker, queue, **group) as two:
            publish(channel, queue)

            def is_all() -> bool:
                two.connection.process_data_events(0.05)
                return len(one.came) + len(two.came) == MESSAGES

            one.await_that(is_all)
            shares = [{each.partition for each in member.came} for member in (one, two)]
            assert [len(share) for share in shares] == [2, 2]
            assert bodies(one.came) | bodies(two.came) == EVERYTHING
            in_order(one.came)
            in_order(two.came)


@pytest.mark.usefixtures("partitions")
@pytest.mark.parametrize("kind", KINDS)
def test_a_member_wants_some_partitions(broker: Broker, queue: str, kind: str) -> None:
    with opened(broker) as connection:
        declare(connection.channel(), queue, KINDS[kind])
        publish(connection.channel(), queue)
    group: dict[str, Any] = {"consumer_group": "g", "stream_offset": "first"}
    with PikaMember(broker, queue, **group, group_assign=[3, 1]) as some:
        some.await_that(lambda: {each.partition for each in some.came} == {1, 3})
        some.stay()
        assert {each.partition for each in some.came} == {1, 3}
        in_order(some.came)
        with PikaMember(broker, queue, **group) as rest:
            rest.await_that(lambda: len(rest.came) + len(some.came) == MESSAGES)
            assert {each.partition for each in rest.came} == {0, 2}
            in_order(rest.came)


@pytest.mark.usefixtures("partitions")
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_begins_where_it_wants(broker: Broker, queue: str, kind: str) -> None:
    with opened(broker) as connection:
        declare(connection.channel(), queue, KINDS[kind])
        publish(connection.channel(), queue)
    with PikaMember(broker, queue, consumer_group="all", stream_offset="first") as member:
        member.await_that(lambda: len(member.came) == MESSAGES)
        everything = member.settle()
    last = {each.partition: each.offset for each in everything}
    for name, start, wanted in (
        ("offset", 2, {each for each in everything if each.offset >= 2}),
        ("last", "last", {each for each in everything if each.offset == last[each.partition]}),
        ("age", "1h", set(everything)),
        ("next", "next", set()),
        ("default", None, set()),
    ):
        asked = {"consumer_group": name} | ({} if start is None else {"stream_offset": start})
        with PikaMember(broker, queue, **asked) as member:
            member.await_that(lambda: len(member.came) >= len(wanted))  # noqa: B023
            member.stay()
            assert bodies(member.came) == bodies(list(wanted)), name
            in_order(member.came)


def test_the_layout_of_super_streams(broker: Broker) -> None:
    """Declare what RabbitMQ's tools do: a direct exchange, and a stream for each partition."""
    name = "invoices"
    with opened(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "direct", durable=True, arguments={"x-super-stream": True})
        for number in range(3):
            stream = f"{name}-{number}"
            channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
            order = {"x-stream-partition-order": number}
            channel.queue_bind(stream, name, str(number), order)
        channel.confirm_delivery()
        for number in range(30):
            channel.basic_publish(
                name, str(number % 3), b"%d" % number, pika.BasicProperties(delivery_mode=2), True
            )
        channel.basic_qos(prefetch_count=100)
        for number in range(3):
            stream, found = f"{name}-{number}", []
            arguments = {"x-stream-offset": "first"}
            for method, properties, body in channel.consume(
                stream, arguments=arguments, inactivity_timeout=LIMIT_SECONDS
            ):
                assert method is not None, f"{found} came from {stream}"
                found.append((properties.headers["x-stream-offset"], body))
                channel.basic_ack(method.delivery_tag)
                if len(found) == 10:
                    break
            channel.cancel()
            expected = range(number, 30, 3)
            assert found == [(place, b"%d" % each) for place, each in enumerate(expected)]
            channel.queue_delete(stream)
        channel.exchange_delete(name)


# -- aio-pika


class AioPikaMember:
    """A member of a group on a channel of its own."""

    def __init__(self) -> None:
        self.came: list[Delivered] = []
        self.messages: list[AbstractIncomingMessage] = []
        self._arrived = asyncio.Event()

    async def join(self, channel: AbstractChannel, queue: str, **arguments: Any) -> None:
        self.channel = channel
        asked = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        await channel.set_qos(1000)
        await (await channel.get_queue(queue)).consume(self._take, arguments=asked)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        assert message.delivery_tag is not None
        tag, redelivered = message.delivery_tag, message.redelivered
        self.came.append(delivered(tag, message.headers, message.body, redelivered))
        self.messages.append(message)
        self._arrived.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            while len(self.came) < count:
                self._arrived.clear()
                await self._arrived.wait()


@pytest.mark.usefixtures("partitions")
@pytest.mark.parametrize("kind", KINDS)
async def test_aio_pika_members_take_over(broker: Broker, queue: str, kind: str) -> None:
    connection = await aio_pika.connect(broker.address.url())
    async with connection:
        channel = await connection.channel()
        arguments = {"x-partitions": PARTITIONS, **KINDS[kind]}
        await channel.declare_queue(queue, durable=True, arguments=arguments)
        for key, body in numbered():
            message = aio_pika.Message(
                body,
                headers={"x-partition-key": key},
                delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            )
            await channel.default_exchange.publish(message, queue)
        group = {"consumer_group": "g", "stream_offset": "first"}
        one, two, three = AioPikaMember(), AioPikaMember(), AioPikaMember()
        await one.join(await connection.channel(), queue, **group)
        await one.wait_for(MESSAGES)
        in_order(one.came)
        assert bodies(one.came) == EVERYTHING
        of_first = [each for each in one.came if each.partition == 0]
        for message, each in zip(one.messages, one.came, strict=True):
            if each.partition == 0:
                await message.ack()
        await two.join(await connection.channel(), queue, **group)
        await asyncio.sleep(QUIET_SECONDS)
        assert not two.came
        await one.channel.close()
        await two.wait_for(MESSAGES - len(of_first))
        in_order(two.came)
        assert bodies(two.came) == EVERYTHING - bodies(of_first)
        assert all(each.redelivered for each in two.came)
        await two.messages[-1].ack(multiple=True)
        await two.channel.close()
        await three.join(await connection.channel(), queue, **group)
        await asyncio.sleep(QUIET_SECONDS)
        assert not three.came


@pytest.mark.usefixtures("partitions")
async def test_aio_pika_consumers_compete_and_members_choose(broker: Broker, queue: str) -> None:
    connection = await aio_pika.connect(broker.address.url())
    async with connection:
        channel = await connection.channel()
        arguments = {"x-partitions": PARTITIONS, **KINDS["quorum"]}
        await channel.declare_queue(queue, durable=True, arguments=arguments)
        counts: Counter[bytes] = Counter()
        done = asyncio.Event()

        async def take(message: AbstractIncomingMessage) -> None:
            counts[message.body] += 1
            await message.ack()
            if counts.total() == MESSAGES:
                done.set()

        for _ in range(2):
            consuming = await connection.channel()
            await consuming.set_qos(5)
            await (await consuming.get_queue(queue)).consume(take)
        for key, body in numbered():
            message = aio_pika.Message(body, headers={"x-partition-key": key})
            await channel.default_exchange.publish(message, queue)
        async with asyncio.timeout(LIMIT_SECONDS):
            await done.wait()
        assert counts == Counter(body for _, body in numbered())
        some, offset = AioPikaMember(), AioPikaMember()
        await some.join(
            await connection.channel(),
            queue,
            consumer_group="some",
            stream_offset="first",
            group_assign=[2],
        )
        await offset.join(
            await connection.channel(), queue, consumer_group="offset", stream_offset=3
        )
        await asyncio.sleep(QUIET_SECONDS)
        await some.wait_for(1)
        await offset.wait_for(1)
        assert {each.partition for each in some.came} == {2}
        assert min(each.offset for each in offset.came) == 3
        in_order(some.came)
        in_order(offset.came)


# -- the Java client


def test_java(own_broker: Broker) -> None:
    jars = [Path("/usr/share/java") / f"{name}.jar" for name in JARS]
    if shutil.which("javac") is None or not all(jar.exists() for jar in jars):
        pytest.skip("Java or its client is not installed (make interop)")
    program = Path(__file__).parent / "clients" / "Partitions.java"
    class_path = os.pathsep.join(map(str, jars))
    parts = ["super-stream"] if own_broker.name == "rabbitmq" else JAVA_PARTS
    done = subprocess.run(
        ["java", "-cp", class_path, str(program), *parts],
        env={**os.environ, "INTEROP_BROKER_URL": own_broker.address.url()},
        stdout=subprocess.PIPE,
        text=True,
        timeout=JAVA_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.args
    assert done.stdout.split() == parts


JARS = ("amqp-client", "slf4j-api", "slf4j-nop")
JAVA_PARTS = ["compete", "commit", "take-over", "assign", "begin", "super-stream"]
