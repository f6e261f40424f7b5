"""Recoveries of logs: bounded, one for each log, and for all who wait for it."""

import asyncio
from concurrent.futures import Future
from functools import partial

import pytest

from leveret.errors import StorageError
from leveret.storage.recoveries import TOGETHER_MAX, Recoveries
from leveret.storage.recovery import Recovered

PARALLEL = 3


class StepPool:
    """An executor whose work is done when the test says so."""

    def __init__(self):
        self.submitted = []

    def submit(self, work, *arguments):
        future = Future()
        self.submitted.append(partial(self._run, future, work, *arguments))
        return future

    def _run(self, future, work, *arguments):
        future.set_result(work(*arguments))

    async def step(self):
        self.submitted.pop(0)()
        await asyncio.sleep(0)  # the loop hears of it

    async def drain(self):
        while self.submitted:
            await self.step()


class Bench:
    def __init__(self):
        self.pool = StepPool()
        self.recoveries = Recoveries(asyncio.get_running_loop(), self.pool, parallel=PARALLEL)
        self.done = []  # keys of the logs that were recovered
        self.error = None

    def begin(self, key):
        return self.recoveries.begin(key, lambda: self._recover(key))

    def _recover(self, key):
        if self.error is not None:
            raise self.error
        self.done.append(key)
        return Recovered(end=len(self.done))


@pytest.fixture
async def bench():
    return Bench()


async def test_a_log_is_recovered_once_for_all_who_ask(bench):
    ends = [bench.begin("a"), bench.begin("a"), bench.begin("b")]
    assert "a" not in bench.recoveries
    await bench.pool.drain()
    for end in ends:
        await end
    assert bench.done == ["a", "b"]
    assert "a" in bench.recoveries
    assert bench.recoveries.take("a").end == 1
    assert bench.recoveries.take("a") is None


async def test_so_many_threads_are_used_at_once(bench):
    for number in range(1000):
        bench.begin(f"{number}")
    while bench.pool.submitted:
        assert len(bench.pool.submitted) <= PARALLEL
        before = len(bench.done)
        await bench.pool.step()
        assert 0 < len(bench.done) - before <= TOGETHER_MAX
    assert sorted(bench.done, key=int) == [f"{number}" for number in range(1000)]


async def test_a_failure_is_everybodys_and_can_be_tried_again(bench):
    bench.error = StorageError("the disk is gone")
    ends = [bench.begin("a"), bench.begin("a")]
    await bench.pool.drain()
    for end in ends:
        with pytest.raises(StorageError, match="the disk is gone"):
            await end
    assert "a" not in bench.recoveries
    bench.error = None
    again = bench.begin("a")
    await bench.pool.drain()
    await again
    assert "a" in bench.recoveries


async def test_it_goes_on_when_one_who_waits_is_cancelled(bench):
    async def wait():
        await asyncio.wait([bench.begin("a")])

    async with asyncio.TaskGroup() as tasks:
        one, other = tasks.create_task(wait()), tasks.create_task(wait())
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.sleep(0)
        await bench.pool.drain()
    assert one.cancelled()
    assert not other.cancelled()
    assert "a" in bench.recoveries


async def test_what_is_dropped_is_not_kept(bench):
    bench.begin("a")
    async with asyncio.TaskGroup() as tasks:
        dropping = tasks.create_task(bench.recoveries.drop("a"))
        await asyncio.sleep(0)
        assert not dropping.done()
        await bench.pool.drain()
    assert "a" not in bench.recoveries


async def test_nothing_is_kept_once_it_is_closed(bench):
    kept = bench.begin("kept")
    await bench.pool.drain()
    await kept
    ends = [bench.begin(f"{number}") for number in range(PARALLEL * TOGETHER_MAX + 1)]
    assert len(bench.pool.submitted) == PARALLEL
    async with asyncio.TaskGroup() as tasks:
        closing = tasks.create_task(bench.recoveries.close())
        await asyncio.sleep(0)
        assert not closing.done()
        assert ends[-1].done()  # had not begun
        await bench.pool.drain()
    for end in ends:
        with pytest.raises(StorageError, match="the node stops"):
            end.result()
    with pytest.raises(StorageError, match="the node stops"):
        bench.begin("late")
    assert "kept" not in bench.recoveries
    assert "0" not in bench.recoveries
