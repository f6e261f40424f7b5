import asyncio

import pytest

from leveret.ports.after_all import AfterAll
from leveret.ports.callbacks import call_each, has_failed


def test_one_that_raises_is_reported_and_hurts_no_other():
    called, reported = [], []

    def fail():
        called.append("fails")
        raise KeyError("a bug")

    call_each(
        [lambda: called.append("first"), fail, lambda: called.append("last")],
        lambda callback, error: reported.append((callback, str(error))),
    )
    assert called == ["first", "fails", "last"]
    assert reported == [(fail, "'a bug'")]


@pytest.mark.parametrize("ends", [(False,), (False, False), (True, False), (False, True)])
def test_the_callback_comes_after_the_last_end_and_tells_of_failures(ends):
    told = []
    waiter = AfterAll(len(ends), lambda *, failed: told.append(failed))
    for failed in ends:
        assert told == []
        waiter.done(failed=failed)
    assert told == [any(ends)]


def test_a_waiter_is_awaited_without_a_loop():
    waiter = AfterAll(1)
    steps = waiter.__await__()
    next(steps)
    waiter.done(failed=True)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value is True


@pytest.mark.parametrize("ends", [(False,), (True, False)])
async def test_a_coroutine_waits_for_all_that_it_begins(ends):
    begun = []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(has_failed(*(begun.append for _ in ends)))
        await asyncio.sleep(0)
        for waiter, failed in zip(begun, ends, strict=True):
            assert not waiting.done()
            waiter.done(failed=failed)
    assert waiting.result() is any(ends)


async def test_a_coroutine_that_was_cancelled_is_not_told():
    begun = []
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(has_failed(begun.append))
        await asyncio.sleep(0)
        waiting.cancel()
    begun[0].done(failed=False)
    assert waiting.cancelled()
