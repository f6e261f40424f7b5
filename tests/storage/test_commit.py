"""The committer: whatever finishes is told to the loop, however the threads meet."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from leveret.storage.commit import Committer
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

THREADS = 3
ROUNDS = 500


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def run_until(loop: asyncio.AbstractEventLoop, is_over: Callable[[], bool]) -> None:
    loop.run_until_complete(eventually(is_over))


def test_whatever_finishes_is_told_however_the_threads_meet(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """Some is handed over while all threads sleep, some while they finish."""
    committer = Committer(loop, THREADS)
    told: list[int] = []
    with (tmp_path / "file").open("wb") as file:
        for number in range(ROUNDS):
            if number % 3:
                committer.flush([file.fileno()] * (number % 4), partial(tell, told, number))
            else:
                committer.submit(lambda: None, partial(tell, told, number))
            if number % 7 == 0:
                run_until(loop, lambda: len(told) == number + 1)  # noqa: B023
        run_until(loop, lambda: len(told) == ROUNDS)
        committer.close()
    assert sorted(told) == list(range(ROUNDS))


def tell(told: list[int], number: int, *_result: object) -> None:
    told.append(number)


def test_one_thread_does_all_in_order(loop: asyncio.AbstractEventLoop) -> None:
    committer = Committer(loop, 1)
    told: list[int] = []
    for number in range(10):
        committer.flush([], partial(tell, told, number))
    run_until(loop, lambda: len(told) == 10)
    committer.close()
    assert told == list(range(10))


def test_a_flush_tells_its_failure_and_its_time(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    committer = Committer(loop, 1)
    told: list[tuple[int, int]] = []
    reading, writing = os.pipe()
    with (tmp_path / "file").open("wb") as file:
        for descriptors in ([file.fileno()], [file.fileno(), reading], [], [-1]):
            committer.flush(descriptors, lambda *result: told.append(result))
        run_until(loop, lambda: len(told) == 4)
    committer.close()
    os.close(reading)
    os.close(writing)
    assert [failure for failure, _ in told] == [0, errno.EINVAL, 0, errno.EBADF]
    assert all(took_us >= 0 for _, took_us in told)


def test_the_oldest_flush_is_known_as_long_as_it_runs(loop: asyncio.AbstractEventLoop) -> None:
    committer = Committer(loop, 2)
    told: list[int] = []
    gates = [threading.Event() for _ in range(3)]
    for number, gate in enumerate(gates):
        committer.submit(gate.wait, partial(tell, told, number), is_flush=number != 1)
    first, other, second = gates
    run_until(loop, lambda: committer.oldest_flush_us > 0)
    before_us = committer.oldest_flush_us
    run_until(loop, lambda: committer.oldest_flush_us > before_us)
    other.set()  # its thread takes the second flush
    run_until(loop, lambda: told == [1])
    first.set()
    run_until(loop, lambda: told == [1, 0])
    run_until(loop, lambda: committer.oldest_flush_us > 0)
    second.set()
    run_until(loop, lambda: told == [1, 0, 2])
    assert committer.oldest_flush_us == 0
    committer.close()
    assert committer.oldest_flush_us == 0


def test_a_flush_of_open_files_is_one_that_runs(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    committer = Committer(loop, 1)
    told: list[int] = []
    begun = 0
    with (tmp_path / "file").open("wb") as file:

        def is_seen() -> bool:
            nonlocal begun
            if begun == len(told):  # the one before was over too soon
                committer.flush([file.fileno()] * 2**begun, partial(tell, told, begun))
                begun += 1
            return committer.oldest_flush_us > 0

        run_until(loop, is_seen)
        committer.close()


def test_other_work_is_no_flush(loop: asyncio.AbstractEventLoop) -> None:
    committer = Committer(loop, 1)
    told: list[int] = []
    began, gate = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        gate.wait()

    committer.submit(work, partial(tell, told, 1))
    run_until(loop, began.is_set)
    assert committer.oldest_flush_us == 0
    gate.set()
    run_until(loop, lambda: told == [1])
    committer.close()


def test_what_is_handed_over_is_freed_once_it_is_told(loop: asyncio.AbstractEventLoop) -> None:
    committer = Committer(loop, 1)
    told: list[int] = []

    class Work:
        def __call__(self) -> None:
            raise OSError(5, "no such luck")

    work = Work()
    freed = weakref.ref(work)
    committer.submit(work, partial(tell, told, 1))
    run_until(loop, lambda: bool(told))
    del work
    assert freed() is None
    committer.close()


def test_the_loop_may_be_closed_first() -> None:
    loop = asyncio.new_event_loop()
    committer = Committer(loop, 2)
    loop.close()
    committer.flush([], lambda *_: None)
    committer.close()


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
