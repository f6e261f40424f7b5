"""Publishers and consumers that keep account of every message, whatever happens to the broker.

A message is known by (queue, publisher, number). The account says for each what the clients know:
sent, confirmed, delivered, acked, and surely settled, which is an ack after which the broker has
had its settle interval and has answered twice since. `Account.check` holds that against what
a drained broker still had.
"""

from __future__ import annotations

import random
import struct
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pamqp import commands

from tests.harness.kills import Events
from tests.harness.wire import Client, ClosedError, Confirm, Delivery, check_open, publish_bytes
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

QUEUES = ("red", "green", "blue")
FANOUT = "amq.fanout"  # bound to the first two
FANOUT_MASK = 0b011
BODY = struct.Struct(">HHQI")  # publisher, mask of its queues, number, CRC-32 of the rest
OUTSTANDING_MAX = 2000
SETTLE_INTERVAL_SECONDS = 0.06  # the broker's 50 ms, and a little more

Key = tuple[int, int, int]  # queue, publisher, number


@dataclass
class Account:
    """Account of all clients together. Rounds are the lives of the broker process.

    `events` counts confirms and deliveries, `settlements` what is surely settled.
    """

    round: int = 0
    sent: dict[Key, int] = field(default_factory=dict)  # in which round
    confirmed: set[Key] = field(default_factory=set)
    refused: set[Key] = field(default_factory=set)
    delivered: dict[Key, int] = field(default_factory=dict)  # in which round first
    acked: set[Key] = field(default_factory=set)
    settled: set[Key] = field(default_factory=set)
    closed_with: list[str] = field(default_factory=list)  # reply texts of connection.close
    lost_with: list[str] = field(default_factory=list)  # how sockets ended without it
    troubles: list[str] = field(default_factory=list)
    events: Events = field(default_factory=Events)
    settlements: Events = field(default_factory=Events)

    def __str__(self) -> str:
        numbers = (len(self.sent), len(self.confirmed), len(self.delivered), len(self.settled))
        return "sent {}, confirmed {}, delivered {}, settled {}".format(*numbers)

    def take(self, queue: int, delivery: Delivery, last: dict[int, int]) -> Key:
        """Note a delivery and what is wrong with it. `last` are the publishers' last numbers."""
        publisher, mask, number, checksum = BODY.unpack_from(delivery.body)
        key = (queue, publisher, number)
        if zlib.crc32(delivery.body[BODY.size :]) != checksum or not mask >> queue & 1:
            self.troubles.append(f"{key}: not what was published")
        elif key not in self.sent:
            self.troubles.append(f"{key}: invented")
        if key in self.settled:
            self.troubles.append(f"{key}: came back after it was settled")
        if last.get(publisher, -1) >= number:
            self.troubles.append(f"{key}: after {last[publisher]}")
        last[publisher] = number
        self._check_flag(key, redelivered=delivery.redelivered)
        self.delivered.setdefault(key, self.round)
        self.events()
        return key

    def _check_flag(self, key: Key, *, redelivered: bool) -> None:
        before = self.delivered.get(key, self.round) < self.round
        if before and not redelivered:
            self.troubles.append(f"{key}: delivered in an earlier round, not flagged redelivered")
        if redelivered and self.sent.get(key) == self.round:
            self.troubles.append(f"{key}: flagged redelivered at its first delivery")

    def check(self, remaining: Iterable[Key]) -> None:
        """Every confirmed message was acked or remains; nothing unknown, nothing twice."""
        assert not self.troubles, f"{len(self.troubles)} troubles: {self.troubles[:20]}"
        found = list(remaining)
        assert len(found) == len(set(found)), "messages twice"
        lost = self.confirmed - set(found) - self.acked
        assert not lost, f"{len(lost)} confirmed messages lost: {sorted(lost)[:20]}"


class Worker(ABC):
    """A thread with a connection; ends when the connection does, or when told."""

    def __init__(self, account: Account, rng: random.Random) -> None:
        self.account = account
        self.rng = rng
        self._stopping = threading.Event()
        self._connected = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int) -> None:
        self._stopping.clear()
        self._connected.clear()
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def await_connected(self) -> None:
        assert self._connected.wait(LIMIT_SECONDS), "a client does not get in"

    def join(self) -> None:
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "a client hangs"

    def _run(self, port: int) -> None:
        try:
            with Client(port) as client:
                self._connected.set()
                try:
                    self.work(client)
                finally:
                    self.finish(client)
        except ClosedError as error:
            self.account.closed_with.append(error.text)
        except OSError as error:
            self.account.lost_with.append(
                f"{type(self).__name__}: {error!r}"
            )  # the broker was killed
        except Exception as error:  # noqa: BLE001  # a thread's failure is the test's
            self.account.troubles.append(f"{type(self).__name__}: {error!r}")

    @abstractmethod
    def work(self, client: Client) -> None:
        """Do the worker's part until the broker goes."""

    def finish(self, client: Client) -> None:  # noqa: B027  # most workers end without a word
        """Note what came before the end."""


class Publisher(Worker):
    """Publishes bursts with confirms; its numbers go on over the rounds."""

    def __init__(self, account: Account, rng: random.Random, number: int) -> None:
        super().__init__(account, rng)
        self.number = number
        self._next = 0
        self._published = 0  # on this connection
        self._outstanding: dict[int, list[Key]] = {}

    def work(self, client: Client) -> None:
        client.confirming()
        self._published, self._outstanding = 0, {}
        while not self._stopping.is_set():
            burst = self.rng.choice((1, 3, 40, 300))
            client.send_bytes(b"".join(self._publish() for _ in range(burst)))
            limit = self.rng.choice((0, OUTSTANDING_MAX, OUTSTANDING_MAX))
            self._await(client, limit)
        self._await(client, 0)

    def _publish(self) -> bytes:
        mask = self.rng.choice((1, 2, 4, FANOUT_MASK))
        size = self.rng.choice((0, 16, 16, 100, 100, 100, 5000))
        if self.rng.random() < 0.002:
            size = 200_000
        filler = self.rng.randbytes(size)
        body = BODY.pack(self.number, mask, self._next, zlib.crc32(filler)) + filler
        keys = [(i, self.number, self._next) for i in range(len(QUEUES)) if mask >> i & 1]
        self._next += 1
        self._published += 1
        self._outstanding[self._published] = keys
        for key in keys:
            self.account.sent[key] = self.account.round
        queue, exchange = ("", FANOUT) if mask == FANOUT_MASK else (QUEUES[keys[0][0]], "")
        return publish_bytes(queue, body, exchange=exchange)

    def _await(self, client: Client, limit: int) -> None:
        """Take in confirms until at most `limit` publishes are outstanding."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            for event in client.events(0.0 if len(self._outstanding) <= limit else 0.05):
                if isinstance(event, Confirm):
                    self._confirm(event)
                else:
                    check_open(event)
            if len(self._outstanding) <= limit:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"{len(self._outstanding)} publishes never confirmed")

    def _confirm(self, confirm: Confirm) -> None:
        tags = [confirm.tag]
        if confirm.multiple:
            tags = [tag for tag in self._outstanding if tag <= confirm.tag]
        for tag in tags:
            keys = self._outstanding.pop(tag)
            (self.account.refused if confirm.nack else self.account.confirmed).update(keys)
        self.account.events(len(tags))

    def finish(self, client: Client) -> None:
        for event in client.kept():
            if isinstance(event, Confirm):
                self._confirm(event)


class Consumer(Worker):
    """Consumes one queue, acks most of it now and then, and notes which acks are surely settled."""

    def __init__(self, account: Account, rng: random.Random, queue: int) -> None:
        super().__init__(account, rng)
        self.queue = queue
        self._held: deque[tuple[int, Key]] = deque()
        self._answered: deque[tuple[float, list[Key], int]] = deque()  # acked, until surely settled

    def work(self, client: Client) -> None:
        self._held.clear()
        self._answered.clear()
        last: dict[int, int] = {}
        client.qos(self.rng.choice((20, 300, 5000)))
        client.consume(QUEUES[self.queue])
        while not self._stopping.is_set():
            for event in client.events(0.02):
                if isinstance(event, Delivery):
                    self._held.append((event.tag, self.account.take(self.queue, event, last)))
                else:
                    check_open(event)
                if len(self._held) >= 15:
                    break
            self._ack(client)

    def _ack(self, client: Client) -> None:
        keys: list[Key] = []
        if self._held and self.rng.random() < 0.5:
            count = min(self.rng.randrange(1, 10), len(self._held))
            keys = [self._take_one(client) for _ in range(count)]
        elif len(self._held) > 5:
            tag = 0
            while len(self._held) > 3:
                tag, key = self._held.popleft()
                keys.append(key)
            self.account.acked.update(keys)
            client.ack(tag, multiple=True)
        self._make_sure(client, keys)

    def _take_one(self, client: Client) -> Key:
        self._held.rotate(-self.rng.randrange(3))
        tag, key = self._held.popleft()
        self._held = deque(sorted(self._held))
        self.account.acked.add(key)
        client.ack(tag)
        return key

    def _make_sure(self, client: Client, keys: list[Key]) -> None:
        """One round trip: what it follows was read; two after the interval: it was written."""
        began = time.monotonic()
        client.call(1, commands.Basic.Qos(prefetch_count=0, global_=True))
        if keys:
            self._answered.append((time.monotonic() + SETTLE_INTERVAL_SECONDS, keys, 2))
        for _ in range(len(self._answered)):
            due, acked, trips = self._answered.popleft()
            trips -= began >= due
            if trips:
                self._answered.append((due, acked, trips))
            else:
                self.account.settled.update(acked)
                self.account.settlements(len(acked))


def declare_topology(port: int) -> None:
    """The queues, and the exchange that feeds two of them at once."""
    with Client(port) as client:
        for queue in QUEUES:
            client.declare(queue)
        for queue in QUEUES[:2]:
            client.call(1, commands.Queue.Bind(queue=queue, exchange=FANOUT))


def drain(port: int, account: Account) -> list[Key]:
    """Consume everything there is, ack it, and note it like any other delivery."""
    found: list[Key] = []
    for number, queue in enumerate(QUEUES):
        last: dict[int, int] = {}
        with Client(port) as client:
            count = client.count(queue)
            client.consume(queue)
            tag = 0
            for delivery in client.deliveries(count):
                found.append(account.take(number, delivery, last))
                tag = delivery.tag
            if tag:
                client.ack(tag, multiple=True)
            client.call(1, commands.Basic.Qos(prefetch_count=0))
            assert client.count(queue) == 0
    return found


class Load:
    """Several publishers and consumers at once, the second queue with two consumers."""

    def __init__(self, seed: int) -> None:
        self.account = Account()
        self.publishers = [
            Publisher(self.account, random.Random(f"{seed} publisher {i}"), i) for i in range(4)
        ]
        self.consumers = [
            Consumer(self.account, random.Random(f"{seed} consumer {i}"), queue)
            for i, queue in enumerate((0, 1, 1, 2))
        ]
        self.workers: list[Worker] = [*self.publishers, *self.consumers]

    def start(self, port: int) -> None:
        """Start all clients, and wait until they are connected."""
        for worker in self.workers:
            worker.start(port)
        for worker in self.workers:
            worker.await_connected()

    def stop(self) -> None:
        """Ask all clients to end; publishers wait for their confirms."""
        for worker in self.workers:
            worker.stop()

    def join(self) -> None:
        for worker in self.workers:
            worker.join()
