"""pika's blocking clients, each in a thread: `python -m … DIRECTORY SEED PORT,PORT,… CLIENT…`.

After an error a client begins anew with a node that it draws.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, NackError, UnroutableError

from tests.harness.cluster_load.journal import (
    ACKED,
    CONFIRMED,
    CONNECTED,
    GOT,
    REFUSED,
    SENT,
    STRANGE,
    Journal,
)
from tests.harness.cluster_load.topology import (
    GROUP,
    LATE,
    LEFT,
    MAILS,
    OF_EACH,
    PLAIN,
    TX,
    VIEWS,
    body_of,
    connected,
    parse,
)

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

RETRY_SECONDS = 0.2
QUIET_SECONDS = 0.5
PREFETCH = 30
END_SECONDS = 20.0
DURABLE = 2

stopping = Event()


class PikaClient(ABC):
    """Works until it is to stop, over as many connections as that takes."""

    def __init__(self, name: str, directory: Path, ports: list[int], seed: int) -> None:
        self.name = name
        self.rng = random.Random(f"{seed} {name}")
        self.journal = Journal(directory, name)
        self._ports = ports

    def run(self) -> None:
        while not stopping.is_set():
            port = self.rng.choice(self._ports)
            try:
                with connected(port) as connection:
                    self.journal.write(CONNECTED, "-", port)
                    self.work(connection, connection.channel())
            except (AMQPError, AMQPConnectorException, OSError) as error:
                self.journal.error(error)
            except Exception as error:  # noqa: BLE001  # of pika; it is looked at afterwards
                traceback.print_exc()
                self.journal.error(error, kind=STRANGE)
            time.sleep(RETRY_SECONDS)

    @abstractmethod
    def work(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        """Do what this client does, until it is to stop."""


class ConfirmedPublisher(PikaClient):
    """Publishes messages one by one, each with its confirm."""

    queue = PLAIN
    pause = 0.02

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.number = 0

    def work(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        while not stopping.is_set():
            self.number += 1
            self.publish(channel)
            connection.sleep(self.pause)

    def properties(self) -> tuple[pika.BasicProperties, int]:
        """Return those of the next message, and what its body says."""
        return pika.BasicProperties(delivery_mode=DURABLE), 0

    def publish(self, channel: BlockingChannel) -> None:
        properties, more = self.properties()
        self.journal.write(SENT, self.name, self.number, more)
        try:
            body = body_of(self.name, self.number, more)
            channel.basic_publish("", self.queue, body, properties, mandatory=True)
        except (NackError, UnroutableError) as error:
            self.journal.write(REFUSED, self.name, self.number, type(error).__name__)
        else:
            self.journal.write(CONFIRMED, self.name, self.number)


class MailsPublisher(ConfirmedPublisher):
    queue = MAILS
    pause = 0.05


class LatePublisher(ConfirmedPublisher):
    """Publishes messages that are to come later. Their bodies say when."""

    queue = LATE
    pause = 0.06

    def properties(self) -> tuple[pika.BasicProperties, int]:
        delay = self.rng.choice((200, 1000, 3000, 8000, 15_000)) + self.rng.randrange(500)
        due = int(time.time() * 1000) + delay
        headers = {"x-delay": delay}
        return pika.BasicProperties(delivery_mode=DURABLE, headers=headers), due


class TransactionPublisher(ConfirmedPublisher):
    """Publishes to two queues in transactions. A number is that of the transaction."""

    pause = 0.08

    def work(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        channel.tx_select()
        while not stopping.is_set():
            self.number += 1
            self.journal.write(SENT, TX, self.number)
            for place in range(OF_EACH):
                for queue in (LEFT, VIEWS):
                    body = body_of(TX, self.number, place)
                    properties = pika.BasicProperties(delivery_mode=DURABLE)
                    channel.basic_publish("", queue, body, properties)
            channel.tx_commit()
            self.journal.write(CONFIRMED, TX, self.number)
            connection.sleep(self.pause)


class AckingConsumer(PikaClient):
    """Acknowledges what it gets, one by one."""

    queue = PLAIN
    arguments: dict[str, Any] = {}

    def work(self, connection: pika.BlockingConnection, channel: BlockingChannel) -> None:
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, properties, body in channel.consume(
            self.queue, inactivity_timeout=QUIET_SECONDS, arguments=self.arguments
        ):
            if stopping.is_set():
                return
            if method is None:
                continue
            message = parse(body)
            headers = properties.headers or {}
            place = headers.get("x-offset", -1)
            self.journal.write(
                GOT, *message[:2], self.queue, message.more, int(method.redelivered), place
            )
            channel.basic_ack(method.delivery_tag)
            self.journal.write(ACKED, *message[:2], self.queue, message.more)


class LeftConsumer(AckingConsumer):
    queue = LEFT


class PikaReader(AckingConsumer):
    """A member of the group, which reads what transactions have published."""

    queue = VIEWS
    arguments = {"x-consumer-group": GROUP, "x-stream-offset": "first"}


CLIENTS: dict[str, type[PikaClient]] = {
    "pika": ConfirmedPublisher,
    "mails": MailsPublisher,
    "late": LatePublisher,
    "transactions": TransactionPublisher,
    "pika-consumer": AckingConsumer,
    "left-consumer": LeftConsumer,
    "pika-reader": PikaReader,
}


def main() -> None:
    faulthandler.register(signal.SIGUSR1)  # shows where the threads are
    directory, seed, ports, *names = sys.argv[1:]
    numbers = [int(port) for port in ports.split(",")]
    threads = [
        Thread(
            target=CLIENTS[name](name, Path(directory), numbers, int(seed)).run,
            name=name,
            daemon=True,
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopping.set()
    deadline = time.monotonic() + END_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    hung = [thread.name for thread in threads if thread.is_alive()]
    if hung:
        print(f"hung: {hung}", flush=True)
        faulthandler.dump_traceback()
    os._exit(bool(hung))


if __name__ == "__main__":
    main()
