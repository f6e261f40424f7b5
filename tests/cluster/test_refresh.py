"""Reading again, as often as something may have changed."""

import asyncio

from leveret.cluster.refresh import Refresh
from tests.support.waiting import eventually


async def test_no_request_is_lost_at_the_end_of_a_run():
    loop, runs = asyncio.get_running_loop(), []

    async def work():
        runs.append(1)
        if len(runs) < 5:
            loop.call_soon(refresh.ask)  # when the run has ended, and nobody knows of it yet

    refresh = Refresh(work)
    refresh.ask()
    await eventually(lambda: len(runs) == 5)
    await refresh.close()


async def test_one_run_serves_all_who_asked_before_it():
    gate, runs = asyncio.Event(), []

    async def work():
        runs.append(1)
        await gate.wait()

    refresh = Refresh(work)
    for _ in range(3):
        refresh.ask()
    await eventually(lambda: runs)
    for _ in range(3):
        refresh.ask()
    gate.set()
    await eventually(lambda: len(runs) == 2)
    await asyncio.sleep(0)
    assert len(runs) == 2
    await refresh.close()


async def test_what_fails_is_reported_and_asked_for_again():
    loop, reports, runs = asyncio.get_running_loop(), [], []
    loop.set_exception_handler(lambda _, context: reports.append(context["exception"]))

    async def work():
        runs.append(1)
        if len(runs) == 1:
            raise ValueError("a mistake")

    refresh = Refresh(work)
    refresh.ask()
    await eventually(lambda: reports)
    refresh.ask()
    await eventually(lambda: len(runs) == 2)
    await refresh.close()
