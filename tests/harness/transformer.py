"""Consume, transform, publish, in transactions: nothing may happen twice or be forgotten."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from pamqp import commands

from tests.harness.wire import Client, ClosedError, Delivery, check_open, publish_bytes
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from tests.harness.kills import Events

PREFETCH = 50
GROUP_MAX = 8  # messages moved by one transaction


class Transformer:
    """A thread that moves messages from `source` to each of `targets` until it loses the broker."""

    def __init__(self, source: str, targets: tuple[str, ...], seed: int, events: Events) -> None:
        self.source, self.targets = source, targets
        self.committed = 0  # transactions whose commit was answered
        self.events = events  # deliveries and answers
        self.troubles: list[str] = []
        self._rng = random.Random(seed)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, port: int) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End when nothing comes any more."""
        self._stopping.set()
        self.join()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "the transformer hangs"

    def _run(self, port: int) -> None:
        try:
            with Client(port) as client:
                client.call(1, commands.Tx.Select())
                client.qos(PREFETCH)
                client.consume(self.source)
                self._transform(client)
        except ClosedError as error:
            if error.code != 320:
                self.troubles.append(str(error))
        except OSError:
            pass  # the broker was killed

    def _transform(self, client: Client) -> None:
        held: list[Delivery] = []
        while True:
            came = 0
            for event in client.events(0.0 if held else 0.3):
                check_open(event)
                if isinstance(event, Delivery):
                    held.append(event)
                    self.events()
                    came += 1
                    break
            if not came and not held and self._stopping.is_set():
                return
            if held and (not came or len(held) >= self._rng.randint(1, GROUP_MAX)):
                self._commit(client, held)
                held = []

    def _commit(self, client: Client, held: list[Delivery]) -> None:
        parts = [
            publish_bytes(target, b"was " + delivery.body)
            for delivery in held
            for target in self.targets
        ]
        client.send_bytes(b"".join(parts))
        for delivery in held:
            client.ack(delivery.tag)
        client.call(1, commands.Tx.Commit())
        self.committed += 1
        self.events()
