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
    """Appends wait for others that can append, too."""

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


def test_one_that_raises_when_it_is_told_hurts_no_other(loop: asyncio.AbstractEventLoop) -> None:
    committer = Committer(loop, 1)
    told: list[int] = []
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

    def done(number: int) -> None:
        told.append(number)
        if number == 2:
            loop.stop()
        raise OverflowError(number)

    for number in range(3):
        committer.submit(lambda: None, lambda _, number=number: done(number))  # type: ignore[misc]
    committer.close()  # all of them finish before the loop is told of any
    loop.run_forever()
    assert told == [0, 1, 2]
    assert [error.args for error in reported] == [(0,), (1,), (2,)]
