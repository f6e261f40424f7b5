"""The loop is kept awake for a moment after a lone request, and for no longer."""

import time

from leveret.amqp.poller import BusyPoller


class Loop:
    def __init__(self):
        self.callbacks = []
        self.passes = 0

    def call_soon(self, callback):
        self.callbacks.append(callback)

    def run_until_idle(self):
        while self.callbacks:
            self.passes += 1
            self.callbacks.pop()()


def test_it_polls_until_the_window_is_over():
    loop = Loop()
    poller = BusyPoller(loop, 500)
    started = time.monotonic_ns()
    poller.expect_more()
    poller.expect_more()
    assert len(loop.callbacks) == 1
    loop.run_until_idle()
    assert time.monotonic_ns() - started >= 500_000
    poller.expect_more()
    assert len(loop.callbacks) == 1


def test_without_a_window_the_loop_may_sleep_at_once():
    loop = Loop()
    BusyPoller(loop, 0).expect_more()
    assert loop.callbacks == []
