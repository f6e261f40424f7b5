"""How long clients of another node wait when the leader of their queue is killed.

A publisher sends a message every `PACE_SECONDS`, each after the confirm of the one before; a
consumer acknowledges one by one. Both are connected with a node that stays. The interruption of a
round is the longest time between two confirms, and between two deliveries.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pika
import pika.exceptions

from bench.processes import BenchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.cluster.clusters import BenchCluster

__all__ = ["interruptions"]

PACE_SECONDS = 0.01
BEFORE_SECONDS = 2.0
GOING_ON_SECONDS = 1.0  # that clients must have worked again without a pause
ROUND_SECONDS_MAX = 60.0
PAUSE_SECONDS = 0.5  # more than this between two events is a pause, not the client's pace


class EventTimes:
    """Times of confirms, or of deliveries, of one round."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self.failure = ""

    def add(self) -> None:
        """Note one."""
        self._times.append(time.monotonic())

    @property
    def longest(self) -> float:
        """The longest time between two of them, in seconds."""
        pairs = itertools.pairwise(self._times)
        return max((later - earlier for earlier, later in pairs), default=0.0)

    def goes_on(self, since: float) -> bool:
        """Whether they have come without a pause for a while, the first of them after `since`."""
        times = self._times[-int(GOING_ON_SECONDS / PACE_SECONDS / 4) :]
        now = time.monotonic()
        return (
            len(times) > 2
            and times[0] > since
            and now - times[-1] < PAUSE_SECONDS
            and all(b - a < PAUSE_SECONDS for a, b in itertools.pairwise(times))
        )


def interruptions(
    cluster: BenchCluster, queue: str, rounds: int
) -> tuple[list[float], list[float]]:
    """Seconds without a confirm, and without a delivery, of each round. Raises BenchError."""
    found = [_round(cluster, queue) for _ in range(rounds)]
    return [confirms for confirms, _ in found], [deliveries for _, deliveries in found]


def _round(cluster: BenchCluster, queue: str) -> tuple[float, float]:
    leader = cluster.leader(queue)
    if leader is None:
        raise BenchError(f"nobody leads {queue}")
    node = leader % 3 + 1
    stopping = threading.Event()
    confirms, deliveries = EventTimes(), EventTimes()
    works: list[tuple[Callable[..., None], EventTimes]] = [
        (_publish, confirms),
        (_consume, deliveries),
    ]
    threads = [
        threading.Thread(target=_watched, args=[work, cluster.uri(node), queue, times, stopping])
        for work, times in works
    ]
    for thread in threads:
        thread.start()
    try:
        _wait_until_both_go_on(confirms, deliveries, 0)
        time.sleep(BEFORE_SECONDS)
        cluster.kill(leader)
        _wait_until_both_go_on(confirms, deliveries, time.monotonic())
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    cluster.restart(leader)
    return confirms.longest, deliveries.longest


def _wait_until_both_go_on(confirms: EventTimes, deliveries: EventTimes, since: float) -> None:
    deadline = time.monotonic() + ROUND_SECONDS_MAX
    while not (confirms.goes_on(since) and deliveries.goes_on(since)):
        failure = confirms.failure or deliveries.failure
        if failure or time.monotonic() > deadline:
            raise BenchError(failure or f"clients still wait after {ROUND_SECONDS_MAX} s")
        time.sleep(PACE_SECONDS)


def _watched(
    work: Callable[..., None], uri: str, queue: str, times: EventTimes, stopping: threading.Event
) -> None:
    try:
        work(uri, queue, times, stopping)
    except (pika.exceptions.AMQPError, OSError) as error:
        times.failure = f"{work.__name__}: {error!r}"


def _connect(uri: str) -> pika.BlockingConnection:
    parameters = pika.URLParameters(uri)
    parameters.heartbeat = 0
    parameters.blocked_connection_timeout = ROUND_SECONDS_MAX
    return pika.BlockingConnection(parameters)


def _publish(uri: str, queue: str, times: EventTimes, stopping: threading.Event) -> None:
    with _connect(uri) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2)
        while not stopping.wait(PACE_SECONDS):
            with suppress(pika.exceptions.NackError):  # refused for now: the next may be taken
                channel.basic_publish("", queue, b"x" * 16, properties)
                times.add()


def _consume(uri: str, queue: str, times: EventTimes, stopping: threading.Event) -> None:
    with _connect(uri) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=100)
        for method, _, _ in channel.consume(queue, inactivity_timeout=PACE_SECONDS):
            if method is not None:
                times.add()
                channel.basic_ack(method.delivery_tag)
            if stopping.is_set():
                break
        channel.cancel()
