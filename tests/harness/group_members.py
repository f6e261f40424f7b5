"""Clients around one partitioned queue: members of groups with pika and with aio-pika, publishers.

Each is a thread that goes on until it is stopped or loses the broker. Members join, stay for a
while, leave and join again, in ways drawn from a seed.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import aio_pika
import pika
import pika.exceptions

from leveret.errors import StorageError
from leveret.mgmt_ui.control_client import request
from tests.harness.group_account import Message, Place
from tests.harness.resender import property_bytes
from tests.harness.wire import Client, ClosedError, Confirm, check_open, publish_bytes
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.harness.group_account import Account

QUEUE = "q"
KEY_HEADER = "x-partition-key"
PREFETCHES = (1, 5, 20, 100)
STAY_SECONDS = (0.2, 1.5)
AWAY_SECONDS = (0.0, 0.3)
SLEEPER_SESSION_MS = 300
OUTSTANDING_MAX = 200
PARTITIONS_MAX = 12  # that an operator asks for

# What a client says when its broker is gone.
LOST = (
    *(OSError, TimeoutError, RuntimeError, ClosedError, StorageError),
    *(pika.exceptions.AMQPError, aio_pika.exceptions.AMQPError),
)


class Party(ABC):
    """A thread with a connection to the broker. Losing that is a trouble unless it was said."""

    def __init__(self, account: Account, rng: random.Random) -> None:
        self.account = account
        self.rng = rng
        self.port = 0
        self.is_doomed = False  # the broker is about to be killed
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int) -> None:
        self.port, self.is_doomed = port, False
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(2 * LIMIT_SECONDS)
        assert not self._thread.is_alive(), f"{type(self).__name__} hangs"

    def _run(self) -> None:
        try:
            self.work()
        except LOST as error:
            if not self.is_doomed:
                self.account.trouble(f"{type(self).__name__} lost the broker: {error!r}")
        except Exception as error:  # noqa: BLE001  # a thread's failure is the test's
            if self.is_doomed and type(error) is Exception:
                return  # how aiormq says that an acknowledgement could not be sent any more
            self.account.trouble(f"{type(self).__name__}: {traceback.format_exc()}")

    @abstractmethod
    def work(self) -> None:
        """Do the party's part until it is stopped."""


# -- members


class Member(Party):
    """A member of a group, with one library or the other."""

    def __init__(self, account: Account, rng: random.Random, group: str) -> None:
        super().__init__(account, rng)
        self.group = account.groups[group]
        self.is_steady = False  # stays, and acknowledges everything
        self.chooses = True  # asks for some of the partitions now and then; else they may be gone
        self.joined = self.sleeps = 0
        self.prefetch = 0
        self.held: dict[int, Message] = {}  # by delivery tag
        self._left = False

    def _arguments(self) -> dict[str, Any]:
        arguments = {"x-consumer-group": self.group.name, "x-stream-offset": "first"}
        if self.chooses and not self.is_steady and self.rng.random() < 0.15:
            arguments["x-group-assign"] = self.rng.sample(range(4), 2)
        if self._left:
            arguments["x-group-session"] = SLEEPER_SESSION_MS
        return arguments

    def _begin(self) -> float:
        """Prepare to join; returns until when to stay."""
        self.held.clear()
        # A sleeper never looks at what it gets, which goes to others after its session or its end.
        self._left = not self.is_steady and self.rng.random() < 0.15
        self.sleeps += self._left
        self.prefetch = self.rng.choice(PREFETCHES)
        self.joined += 1
        return time.monotonic() + self.rng.uniform(*STAY_SECONDS)

    def _stays(self, until: float) -> bool:
        return not self._stopping.is_set() and (self.is_steady or time.monotonic() < until)

    def _take(self, tag: int, body: bytes, headers: dict[str, Any], *, redelivered: bool) -> None:
        if self._left:
            return  # what it was sent comes back as if it had not seen it
        partition, offset = headers["x-partition"], headers["x-offset"]
        assert isinstance(partition, int)
        assert isinstance(offset, int)
        message = Message.of(body)
        self.held[tag] = message
        self.group.delivered(self, message, Place(partition, offset), redelivered=redelivered)

    def _plan(self) -> list[tuple[str, list[int], bool]]:
        """Which tags to acknowledge or to return next, and whether with `multiple`."""
        tags, luck = sorted(self.held), self.rng.random()
        if self.is_steady:
            return [("ack", tags, True)] if tags else []
        if not tags or luck < 0.15:
            return []
        count = self.rng.randint(1, len(tags))
        if luck < 0.6:
            return [("ack", tags[:count], True)]
        if luck < 0.95:
            return [("ack", [tag], False) for tag in self.rng.sample(tags, count)]
        return [("nack", tags[:count], True)]

    def _taken(self, verb: str, tags: Sequence[int]) -> list[Message]:
        """Note that deliveries are about to be acknowledged or returned; returns the former."""
        messages = [self.held.pop(tag) for tag in tags]
        if verb == "ack":
            self.group.settles(messages)
            return messages
        self.group.returns(messages)
        return []

    def _leaves(self) -> None:
        """Note that all that is held is about to come back."""
        self._left = True
        self._taken("nack", list(self.held))

    def _answered(self, began: float, acknowledged: list[Message]) -> None:
        self.account.answered(began)
        self.group.read(acknowledged)


class PikaMember(Member):
    """A member with pika's blocking connection."""

    def work(self) -> None:
        while not self._stopping.is_set():
            self._stay()
            time.sleep(self.rng.uniform(*AWAY_SECONDS))

    def _stay(self) -> None:
        until = self._begin()
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                *("127.0.0.1", self.port),
                heartbeat=0,
                socket_timeout=LIMIT_SECONDS,
                blocked_connection_timeout=LIMIT_SECONDS,
            )
        )
        with connection:
            self._stay_on(connection, until)

    def _stay_on(self, connection: Any, until: float) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self.prefetch)
        consumer = channel.basic_consume(QUEUE, self._came, arguments=self._arguments())
        while self._stays(until):
            connection.process_data_events(0.02)
            self._settle(channel, self._plan())
        if self.is_steady or self.rng.random() < 0.3:
            channel.basic_cancel(consumer)
            self._settle(channel, [("ack", sorted(self.held), True)] if self.held else [])
        self._leaves()
        if self.rng.random() < 0.5:
            channel.close()

    def _came(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self._take(
            method.delivery_tag, body, properties.headers, redelivered=bool(method.redelivered)
        )

    def _settle(self, channel: Any, plan: list[tuple[str, list[int], bool]]) -> None:
        acknowledged = []
        for verb, tags, multiple in plan:
            acknowledged += self._taken(verb, tags)
            method = channel.basic_ack if verb == "ack" else channel.basic_nack
            method(tags[-1], multiple=multiple)
        began = time.monotonic()
        channel.basic_qos(prefetch_count=self.prefetch)
        self._answered(began, acknowledged)


class AioPikaMember(Member):
    """A member with aio-pika, in an event loop of its own."""

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        while not self._stopping.is_set():
            async with asyncio.timeout(2 * LIMIT_SECONDS):
                connection = await aio_pika.connect(
                    f"amqp://guest:guest@127.0.0.1:{self.port}/?heartbeat=0",
                    timeout=LIMIT_SECONDS,
                )
                async with connection:
                    await self._stay(connection)
            await asyncio.sleep(self.rng.uniform(*AWAY_SECONDS))

    async def _stay(self, connection: Any) -> None:
        until = self._begin()
        self._messages: dict[int, Any] = {}
        channel = await connection.channel()
        await channel.set_qos(self.prefetch)
        queue = await channel.get_queue(QUEUE, ensure=False)
        consumer = await queue.consume(self._came, arguments=self._arguments())
        while self._stays(until):
            await asyncio.sleep(0.02)
            await self._settle(channel, self._plan())
        if self.is_steady or self.rng.random() < 0.3:
            await queue.cancel(consumer)
            await self._settle(channel, [("ack", sorted(self.held), True)] if self.held else [])
        self._leaves()
        if self.rng.random() < 0.5:
            await channel.close()

    async def _came(self, message: Any) -> None:
        self._messages[message.delivery_tag] = message
        self._take(
            message.delivery_tag, message.body, message.headers, redelivered=message.redelivered
        )

    async def _settle(self, channel: Any, plan: list[tuple[str, list[int], bool]]) -> None:
        acknowledged = []
        for verb, tags, multiple in plan:
            last = self._messages[tags[-1]]
            acknowledged += self._taken(verb, tags)
            await (last.ack if verb == "ack" else last.nack)(multiple=multiple)
            for tag in tags:
                del self._messages[tag]
        began = time.monotonic()
        await channel.set_qos(self.prefetch)
        self._answered(began, acknowledged)


# -- publishers; each has keys of its own, so that the order of a key is that of its numbers


class Publisher(Party):
    def __init__(self, account: Account, rng: random.Random, keys: Sequence[str]) -> None:
        super().__init__(account, rng)
        self.keys = keys


class WirePublisher(Publisher):
    """Publishes bursts; their confirms come while it goes on."""

    def work(self) -> None:
        outstanding: dict[int, Message] = {}
        with Client(self.port) as client:
            try:
                self._publish(client.confirming(), outstanding)
            finally:
                for event in client.kept():
                    self._confirm(event, outstanding)

    def _publish(self, client: Client, outstanding: dict[int, Message]) -> None:
        tag = 0
        while outstanding or not self._stopping.is_set():
            burst = []
            if len(outstanding) < OUTSTANDING_MAX and not self._stopping.is_set():
                for _ in range(self.rng.choice((1, 3, 30))):
                    message = self.account.next(self.rng.choice(self.keys))
                    tag += 1
                    outstanding[tag] = message
                    burst.append(self._bytes(message))
                client.send_bytes(b"".join(burst))
            for event in client.events(self.rng.uniform(0.01, 0.06)):
                check_open(event)
                self._confirm(event, outstanding)

    def _bytes(self, message: Message) -> bytes:
        properties = property_bytes(headers={KEY_HEADER: message.key})
        return publish_bytes(QUEUE, message.body, properties=properties)

    def _confirm(self, event: Any, outstanding: dict[int, Message]) -> None:
        if isinstance(event, Confirm):
            tags = [event.tag]
            if event.multiple:
                tags = [tag for tag in outstanding if tag <= event.tag]
            for tag in tags:
                message = outstanding.pop(tag)
                if event.nack:
                    self.account.trouble(f"{message} was refused")
                else:
                    self.account.confirmed.add(message)
                    self.account.events()


class AioPikaPublisher(Publisher):
    """Publishes one message of each key at a time."""

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        connection = await aio_pika.connect(
            f"amqp://guest:guest@127.0.0.1:{self.port}/?heartbeat=0", timeout=LIMIT_SECONDS
        )
        async with connection:
            exchange = (await connection.channel()).default_exchange
            while not self._stopping.is_set():
                publishing = (self._publish(exchange, key) for key in self.keys)
                results = await asyncio.gather(*publishing, return_exceptions=True)
                for result in results:
                    if result is not None:
                        raise result
                await asyncio.sleep(self.rng.uniform(0.0, 0.05))

    async def _publish(self, exchange: Any, key: str) -> None:
        message = self.account.next(key)
        packed = aio_pika.Message(
            message.body,
            headers={KEY_HEADER: key},
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await exchange.publish(packed, QUEUE, timeout=LIMIT_SECONDS)
        self.account.confirmed.add(message)
        self.account.events()


# -- others


class Drainer(Party):
    """Consumes the queue itself, without acknowledgements: its retention keeps what groups read."""

    def work(self) -> None:
        with Client(self.port) as client:
            client.consume(QUEUE, no_ack=True)
            while not self._stopping.is_set():
                for event in client.events(0.1):
                    check_open(event)


class Operator(Party):
    """Changes how many partitions the queue has."""

    def __init__(self, account: Account, rng: random.Random, data: Path) -> None:
        super().__init__(account, rng)
        self.data = data
        self.changes = 0

    def work(self) -> None:
        # Some partitions are retired before anything is in them, and soon removed.
        while not self._stopping.wait(self.rng.choice((0.0, 0.0, 0.2, 0.5))):
            count = self.rng.randint(1, PARTITIONS_MAX)
            asked = {"vhost": "/", "name": QUEUE, "count": count, "dry_run": False}
            try:
                answer = request(self.data / "control.sock", "topic.set_partitions", asked)
            except ValueError as error:  # half an answer
                raise ConnectionError(str(error)) from None
            assert answer["ok"], answer
            assert len(answer["result"]["active"]) == count
            self.changes += 1
            self.account.events()
