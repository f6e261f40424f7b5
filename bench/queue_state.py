"""Measure the cost of a queue's state for each message and each range operation.

    PYTHONPATH=. python bench/queue_state.py

Each line is the best of some rounds, in nanoseconds, with the shell's part (sockets, bytes) left
out; `capacity()` is a Python method here and a compiled one in the broker. Read "ns/operation"
against the time one turn of the event loop has, and "ns/message" against the 160 ns that a message
costs in all from socket to socket: where ranges are long the state must vanish beside that.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from leveret.core.ledgers.ledger import Ledger
from leveret.core.queues.state import QueueState
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable

PREFETCH = 2_000
MESSAGES = 200_000
ROUNDS = 5


class Channel:
    """A consumer with a prefetch limit."""

    __slots__ = ("in_flight", "priority")

    def __init__(self) -> None:
        self.priority = 0
        self.in_flight = 0

    def capacity(self) -> int:
        return PREFETCH - self.in_flight

    def credit(self) -> int:
        return self.capacity()


def pump(state: QueueState) -> tuple[list[tuple[Channel, int, int]], int]:
    """Deliver all that can be; what was leased, and how many operations it took."""
    leases = []
    while (channel := state.next()) is not None:
        assert isinstance(channel, Channel)
        offer = state.credit(channel, channel.capacity())
        if offer is None:
            continue
        state.deliver(offer, offer.stop)
        channel.in_flight += offer.stop - offer.first
        leases.append((channel, offer.first, offer.stop))
    return leases, 2 * len(leases) + 1


def in_chunks(consumers: int, published: int) -> tuple[int, int]:
    """Publish `published`, pump, settle each lease as one range; again and again."""
    state = QueueState(Ledger(0, 0, RangeSet()))
    for _ in range(consumers):
        state.add_consumer(Channel())
    operations = 0
    for stop in range(published, MESSAGES + 1, published):
        state.commit(stop)
        leases, pumped = pump(state)
        for channel, first, last in leases:
            channel.in_flight -= state.settle([(first, last)])
            state.wake(channel)
        operations += 1 + pumped + len(leases)
    return MESSAGES, operations


def acked_singly(order: str, consumers: int = 1) -> tuple[int, int]:
    """`PREFETCH` leased for each consumer, settled one by one, each settlement refilled at once."""
    state = QueueState(Ledger(0, MESSAGES, RangeSet()))
    for _ in range(consumers):
        state.add_consumer(Channel())
    chance = random.Random(1)
    held: list[tuple[Channel, int]] = []
    operations = 0
    for position in range(MESSAGES // 4):
        leases, pumped = pump(state)
        for lease_channel, first, stop in leases:
            held += [(lease_channel, offset) for offset in range(first, stop)]
        if order == "random":
            at = chance.randrange(position, len(held))
            held[position], held[at] = held[at], held[position]
        channel, offset = held[position]
        channel.in_flight -= state.settle(((offset, offset + 1),))
        state.wake(channel)
        operations += pumped + 1
    return MESSAGES // 4, operations


def settled_only(order: str) -> tuple[int, int]:
    """`PREFETCH` leased at once, then only the settlements, one by one."""
    state = QueueState(Ledger(0, MESSAGES, RangeSet()))
    state.add_consumer(Channel())
    chance = random.Random(1)
    for _ in range(MESSAGES // PREFETCH):
        [(channel, first, stop)], _ = pump(state)
        offsets = list(range(first, stop))
        if order == "random":
            chance.shuffle(offsets)
        for offset in offsets:
            state.settle(((offset, offset + 1),))
        channel.in_flight = 0
        state.wake(channel)
    return MESSAGES, MESSAGES


CASES: dict[str, Callable[[], tuple[int, int]]] = {
    "1 consumer, chunks of 2,000": lambda: in_chunks(1, 2_000),
    "3 consumers in turn, 6,000 at a time": lambda: in_chunks(3, 6_000),
    "3 consumers in turn, 30 at a time (one by one)": lambda: in_chunks(3, 30),
    "acked one by one in order, refilled each time": lambda: acked_singly("order"),
    "acked one by one at random, refilled each time": lambda: acked_singly("random"),
    "3 consumers, acked one by one at random, refilled": lambda: acked_singly("random", 3),
    "settlements alone, in order (bookkeeping included)": lambda: settled_only("order"),
    "settlements alone, at random (bookkeeping included)": lambda: settled_only("random"),
}


def main() -> None:
    print(f"{'':52} {'ns/message':>10} {'ns/operation':>13}")
    for name, case in CASES.items():
        best, messages, operations = float("inf"), 0, 0
        for _ in range(ROUNDS):
            started = time.perf_counter()
            messages, operations = case()
            best = min(best, time.perf_counter() - started)
        print(f"{name:52} {best * 1e9 / messages:10.1f} {best * 1e9 / operations:13.0f}")


if __name__ == "__main__":
    main()
