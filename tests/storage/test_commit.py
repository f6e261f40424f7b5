"""The committer: whatever finishes is told to the loop, however the threads meet."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from leveret.storage.commit import Committer

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS = 2
MEETING_SECONDS_MAX = 0.5


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class MeetingPlace(list[Any]):
    """Whoever appends waits for another to append, too, if another can."""

    def __init__(self) -> None:
        super().__init__()
        self._both = threading.Barrier(THREADS)

    def append(self, item: Any) -> None:
        super().append(item)
        try:
            self._both.wait(MEETING_SECONDS_MAX)
        except threading.BrokenBarrierError:
            return  # the other may not come in meanwhile


def test_two_that_finish_at_once_are_both_told(loop: asyncio.AbstractEventLoop) -> None:
    committer = Committer(loop, THREADS)
    committer._finished = MeetingPlace()
    told: list[OSError | None] = []

    def done(error: OSError | None) -> None:
        told.append(error)
        if len(told) == THREADS:
            loop.stop()

    for _ in range(THREADS):
        committer.submit(lambda: None, done)
    loop.call_later(20 * MEETING_SECONDS_MAX, loop.stop)
    loop.run_forever()
    committer.close()
    assert told == [None] * THREADS


def test_a_failure_is_told_and_ends_no_thread(loop: asyncio.AbstractEventLoop) -> None:
    committer = Committer(loop, 1)
    told: list[OSError | None] = []

    def fail() -> None:
        raise OSError(5, "no such luck")

    def misbehave() -> None:
        raise KeyError("a bug")

    def done(error: OSError | None) -> None:
        told.append(error)
        if len(told) == 3:
            loop.stop()

    for work in (fail, misbehave, lambda: None):
        committer.submit(work, done)
    loop.run_forever()
    committer.close()
    assert [type(error) for error in told] == [OSError, OSError, type(None)]
    assert "KeyError" in str(told[1])
