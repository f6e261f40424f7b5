"""Clients of a cluster that publish, consume and reconnect as their libraries' manuals show."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import aio_pika
import pika
import pika.exceptions

from tests.cluster_processes.account import Account, MessageId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster_processes.launcher import LocalCluster, NodeProcess

HEARTBEAT_SECONDS: Final = 4
PACE_SECONDS: Final = 0.01
RETRY_SECONDS: Final = 0.2
WINDOW: Final = 8  # messages that an asynchronous publisher has unconfirmed at most
PREFETCH: Final = 20
JOIN_SECONDS_MAX: Final = 60

WORK, KEYED, KEPT, RETRIED, EVENTS = "work", "keyed", "kept", "retried", "events"
DELAYED = "delayed"
DELAY_MS: Final = 3000
QUEUES: Final = {
    WORK: {"x-queue-type": "quorum"},
    KEYED: {"x-queue-type": "quorum", "x-partitions": 3, "x-replicas": 3},
    KEPT: {"x-queue-type": "quorum"},
    RETRIED: {"x-queue-type": "quorum", "x-retry-attempts": 100, "x-retry-delay": 3000},
    EVENTS: {"x-queue-type": "stream"},
    DELAYED: {"x-queue-type": "quorum"},
}


def headers_of(queue: str, message: MessageId) -> dict[str, object]:
    """Return the headers with which a message is published to a queue."""
    delay = {"x-delay": DELAY_MS} if queue == DELAYED else {}
    return {"x-partition-key": message.key, **delay}


def pika_connection(node: NodeProcess) -> pika.BlockingConnection:
    """Connect with a node."""
    host, port = node.amqp
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            host,
            port,
            heartbeat=HEARTBEAT_SECONDS,
            socket_timeout=2,
            stack_timeout=4,
            blocked_connection_timeout=30,
        )
    )


@contextmanager
def channel_of(node: NodeProcess) -> Iterator[Any]:
    """Open a channel with confirms."""
    parameters = pika.ConnectionParameters(*node.amqp, blocked_connection_timeout=60)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


class Client(ABC):
    """A client in a thread of its own, until it is told to stop."""

    def __init__(self, cluster: LocalCluster, account: Account, queue: str, seed: int) -> None:
        self.account = account
        self.queue = queue
        self.node = 0
        self.rng = random.Random(seed)
        self.stopping = threading.Event()
        self._cluster = cluster
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self.stopping.set()
        self._thread.join(JOIN_SECONDS_MAX)
        if self._thread.is_alive():
            self.account.trouble(f"{self} hangs, connected with node {self.node}")

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self.queue}"

    def choose_node(self) -> NodeProcess:
        """Return a node, whatever state it is in."""
        self.node = self.rng.choice(list(self._cluster.nodes))
        return self._cluster.nodes[self.node]

    def _run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001  # a thread's failure is the test's
            self.account.trouble(f"{self}: {error!r}")

    @abstractmethod
    def work(self) -> None: ...


class PikaClient(Client):
    """Connects again, with any node, for as long as it is to work."""

    def work(self) -> None:
        while not self.stopping.is_set():
            connection = None
            try:
                connection = pika_connection(self.choose_node())
                self.use(connection)
            except (pika.exceptions.AMQPError, OSError) as error:
                if not self.stopping.is_set():
                    self.account.error(str(self), error)
                    time.sleep(RETRY_SECONDS)
            finally:
                if connection is not None and connection.is_open:
                    with suppress(pika.exceptions.AMQPError, OSError):
                        connection.close()

    @abstractmethod
    def use(self, connection: pika.BlockingConnection) -> None: ...


class PikaPublisher(PikaClient):
    """Waits for each confirm, and publishes again what has none."""

    def __init__(self, *arguments, publisher: int) -> None:
        super().__init__(*arguments)
        self._numbers = (MessageId(publisher, number) for number in itertools.count())
        self._next = next(self._numbers)

    def use(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        while not self.stopping.is_set():
            message = self._next
            properties = pika.BasicProperties(
                delivery_mode=2, headers=headers_of(self.queue, message)
            )
            try:
                channel.basic_publish("", self.queue, message.to_body(), properties, mandatory=True)
            except pika.exceptions.NackError:
                self.account.nacks += 1
                time.sleep(RETRY_SECONDS)
                continue
            self.account.confirmed(self.queue, message, self.node)
            self._next = next(self._numbers)
            time.sleep(PACE_SECONDS)


class PikaConsumer(PikaClient):
    """Acknowledges each message. `sees_order`: it is the only one of its queue."""

    def __init__(self, *arguments, sees_order: bool = True) -> None:
        super().__init__(*arguments)
        self._sees_order = sees_order

    def use(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        session = object() if self._sees_order else None
        for method, _, body in channel.consume(self.queue, inactivity_timeout=0.5):
            if method is not None:
                message = MessageId.of(body)
                key = message.key if self.queue == KEYED else ""
                self.account.delivered(
                    self.queue, message, session, redelivered=method.redelivered, key=key
                )
                channel.basic_ack(method.delivery_tag)
            if self.stopping.is_set():
                return


class FailingConsumer(PikaClient):
    """Rejects each message once, and acknowledges it when it comes back."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._rejected: set[MessageId] = set()

    def use(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(self.queue, inactivity_timeout=0.5):
            if method is not None:
                message = MessageId.of(body)
                if message in self._rejected:
                    self.account.delivered(
                        self.queue, message, None, redelivered=method.redelivered
                    )
                    channel.basic_ack(method.delivery_tag)
                else:
                    self._rejected.add(message)
                    channel.basic_reject(method.delivery_tag, requeue=False)
            if self.stopping.is_set():
                return


class PikaStreamReader(PikaClient):
    """Reads a stream on from where it was."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self._next = 0

    def use(self, connection: pika.BlockingConnection) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        arguments = {"x-stream-offset": self._next}
        for method, properties, body in channel.consume(
            self.queue, inactivity_timeout=0.5, arguments=arguments
        ):
            if method is not None:
                offset = properties.headers["x-stream-offset"]
                if offset != self._next:
                    self.account.trouble(f"{self.queue}: offset {offset} after {self._next - 1}")
                self._next = offset + 1
                # Of all its sessions: what it has read stays where it is.
                self.account.delivered(self.queue, MessageId.of(body), self, redelivered=False)
                channel.basic_ack(method.delivery_tag)
            if self.stopping.is_set():
                return


class RobustClient(Client):
    """A robust connection of aio-pika with one node, which comes back to it by itself."""

    def work(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        connection = await self._connect()
        try:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(self.use(connection))
                while not working.done():
                    await asyncio.wait([working], timeout=0.1)
                    if self.stopping.is_set():
                        working.cancel()
        finally:
            with suppress(Exception):
                async with asyncio.timeout(5):
                    await connection.close()

    async def _connect(self):
        while True:
            host, port = self.choose_node().amqp
            url = f"amqp://guest:guest@{host}:{port}/?heartbeat={HEARTBEAT_SECONDS}"
            try:
                async with asyncio.timeout(5):
                    return await aio_pika.connect_robust(url, reconnect_interval=RETRY_SECONDS)
            except (aio_pika.exceptions.AMQPError, OSError) as error:
                self.account.error(str(self), error)
                await asyncio.sleep(RETRY_SECONDS)

    @abstractmethod
    async def use(self, connection) -> None: ...


class RobustPublisher(RobustClient):
    """Publishes several messages at a time, and again from the first that has no confirm on."""

    def __init__(self, *arguments, publisher: int) -> None:
        super().__init__(*arguments)
        self._publisher = publisher

    async def use(self, connection) -> None:
        channel = await connection.channel(publisher_confirms=True)
        first = 0
        while True:
            window = [MessageId(self._publisher, first + at) for at in range(WINDOW)]
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._publish(channel, each)) for each in window]
            fates = [task.result() for task in tasks]
            if not all(fates):
                # What is sent again may come behind what had no error.
                self.account.uncertain(self.queue, window)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            first += WINDOW
            await asyncio.sleep(PACE_SECONDS * WINDOW)

    async def _publish(self, channel, message: MessageId) -> bool:
        body = aio_pika.Message(
            message.to_body(), delivery_mode=2, headers=headers_of(self.queue, message)
        )
        try:
            await channel.default_exchange.publish(body, self.queue, timeout=20)
        except aio_pika.exceptions.DeliveryError:
            self.account.nacks += 1
            return False
        except (aio_pika.exceptions.AMQPError, OSError, RuntimeError) as error:
            self.account.error(str(self), error)
            return False
        except asyncio.CancelledError as error:
            if asyncio.current_task().cancelling():
                raise
            self.account.error(str(self), error)  # so aio-pika tells that the channel has gone
            return False
        self.account.confirmed(self.queue, message, self.node)
        return True


class RobustConsumer(RobustClient):
    """Acknowledges each message."""

    async def use(self, connection) -> None:
        channel = await connection.channel()
        await channel.set_qos(PREFETCH)
        queue = await channel.get_queue(self.queue)
        await queue.consume(self._take)
        await asyncio.Event().wait()

    async def _take(self, message) -> None:
        self.account.delivered(
            self.queue, MessageId.of(message.body), None, redelivered=message.redelivered
        )
        with suppress(aio_pika.exceptions.AMQPError, OSError):
            await message.ack()


class Load:
    """All clients, of all queues."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self.account = Account(QUEUES)
        self._cluster = cluster
        rng = random.Random(seed)
        numbers = itertools.count()

        def client(kind, queue, **more):
            return kind(cluster, self.account, queue, rng.randrange(1 << 30), **more)

        self.publishers = [
            client(kind, queue, publisher=next(numbers))
            for queue in QUEUES
            for kind in (PikaPublisher, RobustPublisher)
        ]
        self.consumers = [
            client(PikaConsumer, WORK, sees_order=False),
            client(RobustConsumer, WORK),
            client(PikaConsumer, KEYED),
            client(FailingConsumer, RETRIED),
            client(PikaStreamReader, EVENTS),
            client(PikaConsumer, DELAYED, sees_order=False),
        ]

    def declare(self) -> None:
        """Declare the queues."""
        with pika_connection(self._cluster.nodes[1]) as connection:
            channel = connection.channel()
            for queue, arguments in QUEUES.items():
                channel.queue_declare(queue, durable=True, arguments=arguments)

    def start(self) -> None:
        for each in (*self.publishers, *self.consumers):
            each.start()

    def stop_publishing(self) -> None:
        for each in self.publishers:
            each.stopping.set()
        for each in self.publishers:
            each.join()

    def stop_consuming(self) -> None:
        for each in self.consumers:
            each.stopping.set()
        for each in self.consumers:
            each.join()

    def read_kept(self) -> None:
        """Consume the queue that nobody has consumed until now: it has everything, in order."""
        reader = PikaConsumer(self._cluster, self.account, KEPT, 0)
        self.consumers.append(reader)
        reader.start()

    def count_messages(self, queue: str) -> int:
        """Return how many messages a queue has."""
        with pika_connection(self._cluster.nodes[1]) as connection:
            return connection.channel().queue_declare(queue, passive=True).method.message_count
