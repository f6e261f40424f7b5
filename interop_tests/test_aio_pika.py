"""aio-pika: plain connections, and robust ones through cuts, stalls and broker restarts."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import aio_pika
import pytest
from aio_pika import exceptions

from interop_tests.tcp_proxy import TcpProxy

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection

    from interop_tests.brokers import Address, Broker

PATIENCE_SECONDS = 40.0  # RabbitMQ alone takes 15 s to start on a busy machine

# What a publish on a robust channel raises while its connection is away.
INTERRUPTED = (exceptions.AMQPError, ConnectionError, TimeoutError, RuntimeError)


async def robust(address: Address, query: str = "?heartbeat=60") -> AbstractRobustConnection:
    return await aio_pika.connect_robust(address.url(query), reconnect_interval=0.2)


def persistent(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


class Collector:
    """A consumer's callback that keeps bodies and acknowledges."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.arrived = asyncio.Event()

    async def __call__(self, message: AbstractIncomingMessage) -> None:
        self.bodies.append(message.body)
        self.arrived.set()
        await message.ack()

    async def wait_for(self, wanted: set[bytes]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not wanted <= set(self.bodies):
                self.arrived.clear()
                await self.arrived.wait()


async def publish_until_taken(channel: aio_pika.abc.AbstractChannel, key: str, body: bytes) -> None:
    """Publish with a confirm, again after a failure: what an application does with a robust one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                await channel.default_exchange.publish(persistent(body), key, timeout=60)
            except INTERRUPTED:
                await asyncio.sleep(0.1)
            else:
                return


@pytest.mark.covers("B-503")
async def test_publish_get_and_properties(broker: Broker) -> None:
    connection = await aio_pika.connect(broker.address.url())
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("aio.properties", exclusive=True)
        headers: dict[str, aio_pika.abc.FieldValue] = {"number": 5, "text": "é", "list": [1, "a"]}
        sent = aio_pika.Message(b"body", headers=headers, correlation_id="c", priority=3)
        await channel.default_exchange.publish(sent, queue.name)
        got = await queue.get()
        await got.ack()
        assert (got.body, got.headers, got.correlation_id, got.priority) == (
            *(b"body", headers),
            *("c", 3),
        )
        assert await queue.get(fail=False) is None


async def test_iterator_and_prefetch(broker: Broker) -> None:
    connection = await aio_pika.connect(broker.address.url())
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=3)
        queue = await channel.declare_queue("aio.iterator", exclusive=True)
        for number in range(50):
            await channel.default_exchange.publish(persistent(b"%d" % number), queue.name)
        got = []
        async with queue.iterator(timeout=60) as messages:
            async for message in messages:
                async with message.process():
                    got.append(int(message.body))
                if len(got) == 50:
                    break
        assert got == list(range(50))


async def test_thousand_confirms_at_once(broker: Broker) -> None:
    connection = await aio_pika.connect(broker.address.url())
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("aio.confirms", durable=True)
        publish = channel.default_exchange.publish
        await asyncio.gather(*(publish(persistent(b"x"), queue.name) for _ in range(1000)))
        again = await channel.declare_queue("aio.confirms", passive=True)
        assert again.declaration_result.message_count == 1000
        await queue.delete(if_empty=False)


@pytest.mark.covers("B-102")
async def test_unroutable_mandatory_publish_raises(broker: Broker) -> None:
    connection = await aio_pika.connect(broker.address.url())
    async with connection:
        channel = await connection.channel(on_return_raises=True)
        with pytest.raises(exceptions.DeliveryError):
            await channel.default_exchange.publish(persistent(b"x"), "aio.nowhere")


@pytest.mark.covers("B-503")
async def test_errors_become_their_classes(broker: Broker) -> None:
    connection = await aio_pika.connect(broker.address.url())
    async with connection, await aio_pika.connect(broker.address.url()) as other:
        channel = await connection.channel()
        with pytest.raises(exceptions.ChannelNotFoundEntity, match=r"no queue 'aio\.missing'"):
            await channel.declare_queue("aio.missing", passive=True)
        await channel.reopen()
        await channel.declare_queue("aio.locked", exclusive=True)
        with pytest.raises(exceptions.ChannelPreconditionFailed, match="inequivalent arg"):
            await channel.declare_queue("aio.locked", exclusive=True, auto_delete=True)
        elsewhere = await other.channel()
        with pytest.raises(aio_pika.exceptions.ChannelClosed, match="RESOURCE_LOCKED"):
            await elsewhere.declare_queue("aio.locked", exclusive=True)


@pytest.mark.covers("B-301")
async def test_wrong_password_is_refused(broker: Broker) -> None:
    url = broker.address.url().replace("guest:guest", "guest:wrong")
    with pytest.raises(exceptions.ProbableAuthenticationError):
        await aio_pika.connect(url)


@pytest.mark.covers("B-503")
async def test_rpc_pattern(broker: Broker) -> None:
    async with await aio_pika.connect(broker.address.url()) as connection:
        channel = await connection.channel()
        rpc = await aio_pika.patterns.RPC.create(channel)

        async def double(*, value: int) -> int:
            return value * 2

        await rpc.register("aio.double", double, auto_delete=True)
        assert await rpc.proxy.aio.double(value=21) == 42
        await rpc.close()


async def test_robust_consumer_survives_a_cut(broker: Broker) -> None:
    async with TcpProxy(broker.address) as proxy, await robust(proxy.address) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("aio.cut", durable=True)
        collector = Collector()
        await queue.consume(collector)
        for round_number in range(3):
            body = b"after cut %d" % round_number
            await publish_until_taken(channel, queue.name, body)
            await collector.wait_for({body})
            proxy.cut()
        await publish_until_taken(channel, queue.name, b"last")
        await collector.wait_for({b"last"})
        await queue.delete(if_unused=False, if_empty=False)


@pytest.mark.covers("B-503")
async def test_robust_topology_comes_back(broker: Broker) -> None:
    """Exclusive and auto-delete things are gone with the connection; the client declares them."""
    async with TcpProxy(broker.address) as proxy, await robust(proxy.address) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("aio.topology", "topic", auto_delete=True)
        queue = await channel.declare_queue("aio.topology", exclusive=True, auto_delete=True)
        await queue.bind(exchange, "a.*")
        collector = Collector()
        await queue.consume(collector)
        await proxy.refuse()
        await asyncio.sleep(0.5)
        await proxy.listen()
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while b"back" not in collector.bodies:
            assert asyncio.get_running_loop().time() < deadline, "the binding did not come back"
            await _publish_or_pass(exchange, b"back")


async def _get_when_there(queue: aio_pika.abc.AbstractQueue) -> AbstractIncomingMessage:
    async with asyncio.timeout(PATIENCE_SECONDS), queue.iterator() as messages:
        return await anext(messages)


async def _publish_or_pass(exchange: aio_pika.abc.AbstractExchange, body: bytes) -> None:
    with contextlib.suppress(*INTERRUPTED):
        await exchange.publish(persistent(body), "a.b", mandatory=False, timeout=2)
    await asyncio.sleep(0.1)


async def test_stalled_connection_is_given_up_and_its_messages_return(broker: Broker) -> None:
    """The broker hears nothing for two heartbeats and gives the unacknowledged messages back."""
    direct = await aio_pika.connect(broker.address.url())
    async with direct, TcpProxy(broker.address) as proxy:
        stalled = await aio_pika.connect(proxy.address.url("?heartbeat=1"))
        channel = await stalled.channel()
        queue = await channel.declare_queue("aio.stalled", durable=True)
        await channel.default_exchange.publish(persistent(b"held"), queue.name)
        await queue.get(no_ack=False)
        proxy.stall()
        elsewhere = await (await direct.channel()).get_queue("aio.stalled")
        again = await _get_when_there(elsewhere)
        assert (again.body, again.redelivered) == (b"held", True)
        await again.ack()
        await elsewhere.delete()
        proxy.cut()
        await stalled.close()


@pytest.mark.covers("B-503")
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_robust_connection_survives_a_broker_restart(own_broker: Broker, how: str) -> None:
    async with await robust(own_broker.address) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("aio.restart", durable=True)
        collector = Collector()
        await queue.consume(collector)
        await publish_until_taken(channel, queue.name, b"before")
        await collector.wait_for({b"before"})
        await asyncio.to_thread(getattr(own_broker, how))
        await asyncio.to_thread(own_broker.start)
        await publish_until_taken(channel, queue.name, b"after")
        await collector.wait_for({b"after"})


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_confirmed_messages_survive_a_restart(own_broker: Broker, how: str) -> None:
    async with await aio_pika.connect(own_broker.address.url()) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("aio.kept", durable=True)
        await channel.declare_queue("aio.lost", durable=False)
        for number in range(200):
            await channel.default_exchange.publish(persistent(b"%d" % number), queue.name)
        await asyncio.to_thread(getattr(own_broker, how))
    await asyncio.to_thread(own_broker.start)
    async with await aio_pika.connect(own_broker.address.url()) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue("aio.kept")
        got = [await queue.get(no_ack=True) for _ in range(200)]
        assert [int(message.body) for message in got if message] == list(range(200))
        with pytest.raises(exceptions.ChannelNotFoundEntity):
            await channel.get_queue("aio.lost")


class Traffic:
    """Numbered messages through one queue: what was confirmed, and what has come out again."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.confirmed: set[bytes] = set()
        self.arrived = Collector()
        self.going = True

    async def publish(self, channel: aio_pika.abc.AbstractChannel) -> None:
        while self.going:
            body = b"%d" % len(self.confirmed)
            await publish_until_taken(channel, self.queue, body)
            self.confirmed.add(body)

    async def goes_on(self) -> None:
        """Return when a message has come that was not confirmed before now."""
        await self.arrived.wait_for({b"%d" % (len(self.confirmed) + 1)})


@pytest.mark.covers("B-503")
@pytest.mark.timeout(400)  # RabbitMQ's restarts take long; Leveret's test is over in 20 s
async def test_traffic_goes_on_through_ten_restarts(own_broker: Broker) -> None:
    """Nothing that was confirmed is lost, whether the broker is stopped or killed; none stalls."""
    flows = [Traffic(f"aio.traffic.{number}") for number in range(3)]
    address = own_broker.address
    async with await robust(address) as publishing, await robust(address) as consuming:
        async with asyncio.TaskGroup() as publishers:
            for flow in flows:
                queue = await (await consuming.channel()).declare_queue(flow.queue, durable=True)
                await queue.consume(flow.arrived)
                publishers.create_task(flow.publish(await publishing.channel()))
            for how in [own_broker.stop, own_broker.kill] * 5:
                await asyncio.gather(*(flow.goes_on() for flow in flows))
                await asyncio.to_thread(how)
                await asyncio.to_thread(own_broker.start)
            await asyncio.gather(*(flow.goes_on() for flow in flows))
            for flow in flows:
                flow.going = False
        for flow in flows:
            await flow.arrived.wait_for(flow.confirmed)
