"""How long a consumer of a stream waits for its first message, wherever it begins."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pamqp import commands

from bench.processes import BenchError
from leveret.perf.plan import Address
from leveret.perf.session import LoadSession

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["seek_times_ms"]

SEEKS = 20  # of each kind


def seek_times_ms(uri: str, name: str, count: int, written: tuple[float, float]) -> list[float]:
    """Return the times from basic.consume to the first delivery, for offsets and for times.

    The stream has `count` messages, which were written between two times in seconds since 1970.
    """
    chance = random.Random(1)  # the same places in each run
    first, last = written
    offsets = [chance.randrange(count) for _ in range(SEEKS)]
    seconds = [first + (last - first) * chance.random() for _ in range(SEEKS)]
    times = [datetime.fromtimestamp(int(second), UTC) for second in seconds]
    return list(_seek_all(uri, name, [*offsets, *times]))


def _seek_all(uri: str, name: str, places: Sequence[int | datetime]) -> Iterator[float]:
    for place in places:
        with LoadSession.connect(Address.parse(uri)) as session:
            session.call(commands.Channel.Open(), 1)
            session.call(commands.Basic.Qos(prefetch_count=1), 1)
            begun = time.perf_counter()
            method = commands.Basic.Consume(queue=name, arguments={"x-stream-offset": place})
            session.call(method, 1)
            if not isinstance(session.receive(), commands.Basic.Deliver):
                raise BenchError(f"nothing is delivered from {place} on")
            yield (time.perf_counter() - begun) * 1000
