"""A publisher that sends again whatever was not confirmed, as long as it takes.

It numbers its messages 0, 1, 2, …; each message's body is its number. After the broker was lost,
`run` begins with the oldest message that nobody has confirmed, in order.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from pamqp import commands, header

from tests.harness.wire import Client, ClosedError, Confirm, check_open, publish_bytes
from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.kills import Events

OUTSTANDING_MAX = 2000
BURST = 200


def property_bytes(**properties: object) -> bytes:
    """Property flags and values, as `publish_bytes` wants them."""
    given = commands.Basic.Properties(delivery_mode=2, **properties)
    return header.ContentHeader(0, 0, given).marshal()[12:]


class Resender:
    """`properties(number)` are those of a message, whenever it is sent."""

    def __init__(
        self,
        exchange: str,
        key: str,
        properties: Callable[[int], dict[str, object]],
        events: Events,
    ) -> None:
        self.exchange, self.key, self.properties = exchange, key, properties
        self.unconfirmed: list[int] = []
        self.next = 0
        self.resent = 0
        self.troubles: list[str] = []
        self.events = events  # confirms
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self, port: int) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(port,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send nothing new; wait until all is confirmed or the broker is gone."""
        self._stopping.set()
        self.join()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(LIMIT_SECONDS)
        assert not self._thread.is_alive(), "the publisher hangs"

    def _run(self, port: int) -> None:
        try:
            with Client(port) as client:
                self._publish(client.confirming())
        except ClosedError as error:
            if error.code != 320:
                self.troubles.append(str(error))
        except OSError:
            pass  # the broker was killed

    def _publish(self, client: Client) -> None:
        again = deque(self.unconfirmed)
        self.resent += len(again)
        tag, numbers = 0, {}
        while again or self.unconfirmed or not self._stopping.is_set():
            burst = []
            while len(burst) < BURST and len(numbers) < OUTSTANDING_MAX:
                if again:
                    number = again.popleft()
                elif self._stopping.is_set():
                    break
                else:
                    number = self.next
                    self.next += 1
                    self.unconfirmed.append(number)
                tag += 1
                numbers[tag] = number
                burst.append(self._bytes(number))
            if burst:
                client.send_bytes(b"".join(burst))
            for event in client.events(0.0 if burst else 0.01):
                check_open(event)
                if isinstance(event, Confirm):
                    self._confirmed(event, numbers)

    def _confirmed(self, confirm: Confirm, numbers: dict[int, int]) -> None:
        first = min(numbers) if confirm.multiple else confirm.tag
        for tag in range(first, confirm.tag + 1):
            number = numbers.pop(tag)
            if confirm.nack:
                self.troubles.append(f"{number} was refused")
            self.unconfirmed.remove(number)
            self.events()

    def _bytes(self, number: int) -> bytes:
        return publish_bytes(
            self.key,
            str(number).encode(),
            properties=property_bytes(**self.properties(number)),
            exchange=self.exchange,
        )
