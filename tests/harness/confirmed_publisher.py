"""A publisher that goes on, whatever happens to the nodes, and remembers what was confirmed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

import pika
from pika.exceptions import AMQPError, NackError

from tests.support.waiting import LIMIT_SECONDS, wait_until
from tests.support.zookeeper import HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

PERSISTENT = pika.BasicProperties(delivery_mode=2)
PAUSE_SECONDS = 0.005
RETRY_SECONDS = 0.2


class ConfirmedPublisher:
    """Publishes numbers to a quorum queue, in a thread, over whichever of some ports answers.

    Each body has `size` bytes. `events` tells of blocked connections, and of publishes that were
    refused.
    """

    def __init__(self, ports: Sequence[int], queue: str, size: int = 10_000) -> None:
        self.confirmed: list[int] = []
        self.events: list[str] = []
        self._parameters = [
            pika.ConnectionParameters(
                HOST,
                port,
                heartbeat=0,
                socket_timeout=LIMIT_SECONDS,
                stack_timeout=LIMIT_SECONDS,
                blocked_connection_timeout=LIMIT_SECONDS,
            )
            for port in ports
        ]
        self._queue = queue
        self._filler = b" " * size
        self._number = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "a publish is not answered"

    def wait_for_more(self, count: int = 50) -> None:
        """Wait until so many more are confirmed."""
        wanted = len(self.confirmed) + count
        wait_until(lambda: len(self.confirmed) >= wanted, f"{count} confirmed messages more")

    def read_all(self) -> set[int]:
        """Take everything out of the queue; return the numbers."""
        found: set[int] = set()
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            while True:
                method, _, body = channel.basic_get(self._queue, auto_ack=True)
                if method is None:
                    return found
                found.add(int(body))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with pika.BlockingConnection(self._parameters) as connection:
                    self._publish(connection)
            except (AMQPError, OSError) as error:
                self.events.append(repr(error))
                time.sleep(RETRY_SECONDS)

    def _publish(self, connection: pika.BlockingConnection) -> None:
        connection.add_on_connection_blocked_callback(lambda *_: self.events.append("blocked"))
        channel = connection.channel()
        channel.queue_declare(self._queue, durable=True, arguments={"x-queue-type": "quorum"})
        channel.confirm_delivery()
        while not self._stopping.is_set():
            body = b"%d" % self._number + self._filler
            try:
                channel.basic_publish("", self._queue, body, PERSISTENT)
            except NackError:
                self.events.append("refused")
                time.sleep(RETRY_SECONDS)
                continue
            self.confirmed.append(self._number)
            self._number += 1
            time.sleep(PAUSE_SECONDS)
