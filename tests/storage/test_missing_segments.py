"""Segments that are gone: what they held is told, and nothing that went in good order is."""

import shutil

import pytest

from leveret.ports import Durability
from leveret.storage.state import MemoryStateStore
from tests.storage.harness import (
    abandon,
    bodies,
    committed,
    make_store,
    open_log,
    put,
    store_at,
)
from tests.support.waiting import eventually

LIMITS = {"segment_bytes_max": 800, "mark_interval_ms": 10}
COUNT = 30


class Kept:
    """A log of several segments, whose node has ended in one way or the other."""

    def __init__(self, data, stop):
        self.data = data
        self.stop = stop
        self.state = MemoryStateStore()

    async def fill(self, settled=()):
        store = make_store(self.data, state=self.state, **LIMITS)
        log = open_log(store, Durability.FSYNC)
        for number in range(COUNT):
            put(log, b"%03d" % number * 50)
        await committed(log, COUNT)
        log.settle(settled)
        log.write_settlements()
        log.flush()
        await eventually(lambda: log.noted[0] == COUNT and not store._notes._is_writing)
        await eventually(lambda: not (log.is_flushing or log._reclaimer.condemned))
        if self.stop == "clean":
            await store.close()
        else:
            abandon(store)
        return self

    @property
    def segments(self):
        return sorted(self.data.glob("topics/%2F/*/0/*.log"))

    @property
    def bases(self):
        return [int(path.name[:20]) for path in self.segments]

    async def found(self):
        """Return what is there, and what is told as lost."""
        async with store_at(self.data, state=self.state, **LIMITS) as store:
            log = open_log(store, Durability.FSYNC)
            there = [
                offset
                for offset in range(COUNT)
                if offset not in log.settled and await bodies(log, offset, offset + 1)
            ]
            return there, sum(loss.count for loss in store.losses.unacknowledged)


@pytest.fixture(params=["clean", "killed"])
def kept(request, tmp_path):
    return Kept(tmp_path / "data", request.param)


async def test_nothing_is_told_of_a_log_that_is_whole(kept):
    await kept.fill(settled=[(8, 20)])
    assert len(kept.segments) < COUNT // 5
    assert await kept.found() == ([*range(8), *range(20, COUNT)], 0)
    assert await kept.found() == ([*range(8), *range(20, COUNT)], 0)


@pytest.mark.parametrize("how", ["removed", "emptied", "cut"])
@pytest.mark.parametrize("which", [0, 2, -1])
async def test_a_segment_that_is_gone_is_told(kept, which, how):
    await kept.fill(settled=[(1, 3)])
    assert len(kept.segments) > 4
    path, stops = kept.segments[which], [*kept.bases[1:], COUNT]
    first, stop = kept.bases[which], stops[which]
    if how == "removed":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(0 if how == "emptied" else 100)
    # The last segment says what was settled, unless the mark of a clean stop does.
    settled = set() if kept.stop == "killed" and which == -1 else {1, 2}
    gone = set(range(first, stop)) - settled
    there = [offset for offset in range(COUNT) if offset not in {*settled, *gone}]
    assert await kept.found() == (there, len(gone))
    assert await kept.found() == (there, len(gone))  # told once, and shown until acknowledged


async def test_a_directory_that_is_gone_is_told(kept):
    await kept.fill(settled=[(0, 4)])
    shutil.rmtree(kept.data / "topics")
    async with store_at(kept.data, state=kept.state, **LIMITS) as store:
        assert store.exists("/", "orders", "i1", 0)
        log = open_log(store)
        # What was settled in segments that were there is known after a clean stop only.
        lost = sum(loss.count for loss in store.losses.unacknowledged)
        assert lost == (COUNT - 4 if kept.stop == "clean" else COUNT)
        assert put(log, b"anew") >= COUNT
    assert (await kept.found())[0] == []


async def test_an_older_copy_of_a_log_is_told(kept):
    data = kept.data
    await Kept.fill(kept, settled=[(0, 4)])
    shutil.copytree(data, data.with_name("copy"))
    async with store_at(data, state=kept.state, **LIMITS) as store:
        log = open_log(store, Durability.FSYNC)
        for number in range(5):
            put(log, b"%03d" % number * 50)
        await committed(log, log.end)
        log.settle([(4, 6)])
    shutil.rmtree(data)
    shutil.copytree(data.with_name("copy"), data)
    there, lost = await kept.found()
    assert (there, lost) == ([*range(6, COUNT)], 5)


async def test_an_older_state_store_costs_nothing(kept):
    await kept.fill(settled=[(0, 4)])
    older = MemoryStateStore()
    older.write(kept.state.scan(b""), durable=True)
    async with store_at(kept.data, state=kept.state, **LIMITS) as store:
        log = open_log(store, Durability.FSYNC)
        log.settle([(4, 20)])
        put(log, b"one more")
        await committed(log, COUNT + 1)
    kept.state = older
    assert await kept.found() == ([*range(20, COUNT)], 0)


async def test_a_log_that_was_deleted_is_not_missed(kept):
    await kept.fill()
    store = make_store(kept.data, state=kept.state, **LIMITS)
    log = open_log(store)
    await log.delete()
    abandon(store)  # before the state store was told
    async with store_at(kept.data, state=kept.state, **LIMITS) as store:
        assert not store.exists("/", "orders", "i1", 0)
        assert open_log(store).end == 0
        assert store.losses.unacknowledged == []


async def test_losses_are_acknowledged(kept):
    await kept.fill()
    kept.segments[1].unlink()
    async with store_at(kept.data, state=kept.state, **LIMITS) as store:
        open_log(store)
        (loss,) = store.losses.unacknowledged
        assert loss.subject == "queue 'orders' in vhost '/'"
        assert "is missing" in loss.what
        assert store.losses.message_count == loss.count
        assert store.losses.acknowledge([loss.number + 1]) == 0
        assert store.losses.acknowledge([loss.number]) == 1
    async with store_at(kept.data, state=kept.state, **LIMITS) as store:
        open_log(store)
        assert store.losses.unacknowledged == []
