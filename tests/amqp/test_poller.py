"""The loop is kept awake for a moment where the next request comes soon, and for no longer."""

import asyncio
import os
import select
import time
from types import SimpleNamespace

import pytest
import uvloop

from leveret.amqp.poller import BusyPoller, backend_descriptor

WINDOW_US = 500
FAR_US = 3_600_000_000


class Loop:
    """A loop that watches a pipe; nothing runs but in `run_until_idle`."""

    def __init__(self, watched):
        self.epoll = select.epoll()
        self.epoll.register(watched, select.EPOLLIN)
        self._selector = SimpleNamespace(fileno=self.epoll.fileno)
        self.callbacks = []

    def call_soon(self, callback):
        self.callbacks.append(callback)

    def run_until_idle(self):
        while self.callbacks:
            self.callbacks.pop()()


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", 0) as reader, os.fdopen(writing, "wb", 0) as writer:
        yield reader, writer


@pytest.fixture
def loop(pipe):
    loop = Loop(pipe[0])
    yield loop
    loop.epoll.close()


def test_it_polls_until_the_window_is_over(loop):
    poller = BusyPoller(loop, WINDOW_US)
    started = time.monotonic_ns()
    poller.expect_more()
    poller.expect_more()
    assert len(loop.callbacks) == 1
    loop.run_until_idle()
    assert time.monotonic_ns() - started >= WINDOW_US * 1000


def test_it_polls_no_longer_than_until_something_comes(loop, pipe):
    poller = BusyPoller(loop, FAR_US)
    pipe[1].write(b"1")
    poller.expect_more()
    loop.run_until_idle()  # returns
    assert loop.callbacks == []


def polls(poller, loop, requests):
    """Return how many of the requests are followed by polling."""
    count = 0
    for _ in range(requests):
        poller.expect_more()
        count += len(loop.callbacks)
        loop.run_until_idle()
    return count


def test_it_mostly_sleeps_where_polling_is_in_vain(loop):
    poller = BusyPoller(loop, 1)
    assert polls(poller, loop, 1000) < 16
    assert polls(poller, loop, 257) == 1


def test_it_mostly_sleeps_where_polling_is_in_vain_half_of_the_time(loop, pipe):
    poller = BusyPoller(loop, 1)
    for _ in range(100):
        polls(poller, loop, 1)
        pipe[1].write(b"1")
        polls(poller, loop, 1)
        pipe[0].read(1)
    assert polls(poller, loop, 257) <= 2


def test_it_polls_after_each_request_where_that_is_mostly_of_use(loop, pipe):
    poller = BusyPoller(loop, 1)
    pipe[1].write(b"1")
    assert polls(poller, loop, 100) == 100
    pipe[0].read(1)
    assert polls(poller, loop, 4) == 4
    pipe[1].write(b"1")
    assert polls(poller, loop, 100) == 100


def test_without_a_window_the_loop_may_sleep_at_once(loop):
    BusyPoller(loop, 0).expect_more()
    assert loop.callbacks == []


def test_a_loop_without_a_descriptor_may_sleep_at_once():
    loop = SimpleNamespace(call_soon=None)
    BusyPoller(loop, WINDOW_US).expect_more()


def test_loops_have_a_descriptor_that_says_that_something_has_come(pipe):
    for loop in (uvloop.new_event_loop(), asyncio.SelectorEventLoop()):
        ready = select.poll()
        ready.register(backend_descriptor(loop), select.POLLIN)
        loop.add_reader(pipe[0], lambda: None)
        loop.run_until_complete(asyncio.sleep(0.001))
        assert ready.poll(0) == []
        pipe[1].write(b"1")
        assert ready.poll(0)
        pipe[0].read(1)
        loop.remove_reader(pipe[0])
        loop.close()
