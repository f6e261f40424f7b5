"""A well-behaved client that must notice nothing of what others do to the broker."""

from __future__ import annotations

import threading
import time
from typing import Self

import pika

from tests.support.waiting import LIMIT_SECONDS


class Bystander:
    """A pika client on a thread of its own that publishes, gets and acks all the time.

    Leaving the `with` block fails where a round trip failed, or where none is made any more.
    """

    def __init__(self, port: int, queue: str = "bystander") -> None:
        self.queue = queue
        self.trips = 0
        self.slowest_seconds = 0.0
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=20)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._await_trips(1)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._await_trips(self.trips + 2)
        finally:
            self._stopping.set()
            self._thread.join(LIMIT_SECONDS)

    def _await_trips(self, trips: int) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while self.trips < trips:
            assert self._error is None, f"after {self.trips} round trips: {self._error!r}"
            assert time.monotonic() < deadline, "the bystander is not served any more"
            time.sleep(0.001)

    def _run(self) -> None:
        try:
            connection = pika.BlockingConnection(self._parameters)
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare(self.queue, durable=True)
            while not self._stopping.is_set():
                self._round_trip(channel)
                connection.sleep(0.002)
            connection.close()
        except BaseException as error:  # noqa: BLE001  # told by __exit__
            self._error = error

    def _round_trip(self, channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
        began = time.monotonic()
        body = b"trip %d" % self.trips
        channel.basic_publish("", self.queue, body, mandatory=True)
        method, _, got = channel.basic_get(self.queue)
        assert method is not None, "a confirmed message was not there to be got"
        assert got == body
        channel.basic_ack(method.delivery_tag)
        self.trips += 1
        self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - began)
