"""Kills of a node at what its clients count: the seed says at which event; no clock is asked."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

from tests.support.waiting import LIMIT_SECONDS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.harness.broker import BrokerProcess

LOOK_SECONDS = 0.05
LINES_OF_A_START = 4  # that every start writes


class Events:
    """Counts what clients hear of a node: confirms, deliveries, answers. Any thread may call it."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._at = 0
        self._then: Callable[[], None] | None = None

    def __call__(self, number: int = 1) -> None:
        with self._lock:
            self.count += number
            then = None
            if self.count >= self._at:
                then, self._then = self._then, None
        if then is not None:
            then()

    def after(self, number: int, then: Callable[[], None]) -> None:
        """Have the thread that counts the `number`-th event from now on call `then`."""
        with self._lock:
            self._at, self._then = self.count + number, then


def kill_after(
    broker: BrokerProcess,
    events: Events,
    number: int,
    *,
    first: Callable[[], None] | None = None,
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Kill a node at the `number`-th event from now on, or where no more will come.

    `first` is called immediately before.
    """
    killed = threading.Event()

    def kill() -> None:
        if first is not None:
            first()
        broker.popen.send_signal(signal.SIGKILL)
        killed.set()

    events.after(number, kill)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not killed.wait(LOOK_SECONDS) and not (is_over is not None and is_over()):
        assert broker.is_alive or killed.wait(LIMIT_SECONDS), "the node ended by itself"
        assert time.monotonic() < deadline, f"fewer than {number} events"
    broker.kill()


def kill_starts(broker: BrokerProcess, rng: random.Random, chance: float) -> None:
    """Launch a node and kill it after some lines of its log, as often as chance will have it."""
    while rng.random() < chance:
        lines = _lines(broker) + rng.randint(1, LINES_OF_A_START)
        broker.launch()
        deadline = time.monotonic() + LIMIT_SECONDS
        while _lines(broker) < lines:
            assert time.monotonic() < deadline, broker.log()[-4000:]
            time.sleep(0.001)
        broker.kill()


def _lines(broker: BrokerProcess) -> int:
    return broker.log().count("\n")


def durability_of(seed: int) -> str:
    """Return the durability of a run that is the same but for its seed in both."""
    return ("os", "fsync")[seed % 2]
