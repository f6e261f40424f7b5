"""Contract of every TopicLog and TopicStore for parts of transactions."""

from contextlib import asynccontextmanager

import pytest

from leveret.errors import NotEnoughCopiesError, StorageError
from leveret.ports import Durability
from leveret.ports.records import BatchBuilder
from tests.storage.harness import open_log, put, store_at
from tests.support.memory_log import MemoryTopicStore
from tests.support.waiting import eventually

DURABILITIES = [Durability.FSYNC, Durability.OS, Durability.NONE]


class Answers:
    """Answers of a log to what was asked of it."""

    def __init__(self):
        self.errors = []

    def __call__(self, error):
        self.errors.append(error)


class Opened:
    """A store under test. `rest` waits until everything is flushed that was written."""

    def __init__(self, store, durability):
        self.store = store
        self.durability = durability
        self.logs = []

    def log(self, topic):
        log = open_log(self.store, self.durability, topic)
        self.logs.append(log)
        return log

    async def rest(self, *, condition=lambda: True):
        if isinstance(self.store, MemoryTopicStore):
            for log in self.logs:
                log.commit()
            assert condition()
        else:
            await eventually(condition)


@pytest.fixture(params=DURABILITIES)
def durability(request):
    return request.param


@pytest.fixture(params=["memory", "files"])
def opened(request, tmp_path, durability):
    @asynccontextmanager
    async def open_store():
        if request.param == "memory":
            yield Opened(MemoryTopicStore(), durability)
            return
        async with store_at(tmp_path, durability=durability) as store:
            yield Opened(store, durability)

    return open_store


def records(*bodies):
    builder = BatchBuilder()
    for body in bodies:
        builder.add(1, 1_700_000_000_000, b"x", b"key", b"header", body)
    return builder


def visible(log):
    """Everything that can be read, by offset."""
    found = {}
    for first, stop in log.settled.gaps(0, log.committed):
        offset = first
        while offset < stop:
            batches = log.read(offset, 1 << 20)
            for batch in batches:
                found |= {each[0]: each[6] for each in batch.records() if first <= each[0] < stop}
            offset = batches[-1].stop_offset
    return found


async def prepare(opened, transaction, parts):
    answers = Answers()
    for log, bodies, ranges in parts:
        log.prepare(transaction, records(*bodies), ranges, answers)
    await opened.rest(condition=lambda: len(answers.errors) == len(parts))
    assert answers.errors == [None] * len(parts)


async def decide(opened, transaction, logs):
    answers = Answers()
    opened.store.decide({transaction: logs}, answers)
    await opened.rest(condition=lambda: answers.errors)
    assert answers.errors == [None]


async def test_a_part_is_shown_once_its_transaction_has_committed(opened):
    async with opened() as store:
        a, b = store.log("a"), store.log("b")
        put(a, b"consumed")
        await store.rest(condition=lambda: a.committed == 1)
        await prepare(store, 7, [(a, [], [(0, 1)]), (b, [b"x", b"y"], [])])
        assert visible(a) == {0: b"consumed"}
        assert (b.committed, b.end) == (0, 2)
        await decide(store, 7, [a, b])
        told = []
        b.on_commit(lambda: told.append(b.committed))
        for log in (a, b):
            log.resolve(7, committed=True)
        assert (visible(a), visible(b)) == ({}, {0: b"x", 1: b"y"})
        assert told == [2]
        assert not a.takes_part(7)


async def test_nothing_remains_of_an_aborted_part(opened):
    async with opened() as store:
        a, b = store.log("a"), store.log("b")
        put(a, b"consumed")
        await store.rest(condition=lambda: a.committed == 1)
        await prepare(store, 7, [(a, [], [(0, 1)]), (b, [b"x"], [])])
        for log in (a, b):
            log.resolve(7, committed=False)
        assert (visible(a), visible(b)) == ({0: b"consumed"}, {})
        assert (b.committed, list(b.settled)) == (1, [(0, 1)])
        put(b, b"later")
        await store.rest(condition=lambda: b.committed == 2)
        assert visible(b) == {1: b"later"}


@pytest.mark.parametrize("committed", [True, False])
async def test_what_a_committed_part_erases_nobody_reads(opened, committed):
    async with opened() as store:
        log = store.log("a")
        put(log, b"moved", b"stays")
        await store.rest(condition=lambda: log.committed == 2)
        told = []
        log.on_remove(told.extend)
        answers = Answers()
        log.prepare(7, records(), [(0, 1)], answers, erases=True)
        await store.rest(condition=lambda: answers.errors)
        log.resolve(7, committed=committed)
        assert list(log.erased) == list(log.settled) == ([(0, 1)] if committed else [])
        assert told == ([(0, 1)] if committed else [])


async def test_settled_and_unsettled_records_can_be_erased(opened):
    async with opened() as store:
        log = store.log("a")
        put(log, b"consumed", b"ready", b"stays")
        await store.rest(condition=lambda: log.committed == 3)
        log.settle([(0, 1)])
        log.erase([(0, 2)])
        log.erase([(1, 2)])
        assert list(log.erased) == [(0, 2)]
        assert visible(log) == {2: b"stays"}


async def test_records_behind_a_part_wait_with_it(opened):
    async with opened() as store:
        log = store.log("a")
        await prepare(store, 1, [(log, [b"first"], [])])
        put(log, b"by itself")
        await prepare(store, 2, [(log, [b"second"], [])])
        put(log, b"at the end")
        await decide(store, 2, [log])
        log.resolve(2, committed=True)
        assert log.committed == 0
        log.resolve(1, committed=False)
        await store.rest(condition=lambda: log.committed == 4)
        assert visible(log) == {1: b"by itself", 2: b"second", 3: b"at the end"}


async def test_a_part_that_is_aborted_before_it_is_flushed_is_passed_over(opened):
    async with opened() as store:
        log = store.log("a")
        log.prepare(1, records(b"undone"), [], Answers())
        log.resolve(1, committed=False)
        put(log, b"later")
        await store.rest(condition=lambda: log.committed == 2)
        assert visible(log) == {1: b"later"}


async def test_only_logs_that_are_kept_are_asked_after_a_crash(opened, durability):
    async with opened() as store:
        log = store.log("a")
        await prepare(store, 1, [(log, [b"m"], [])])
        assert log.takes_part(1) == (durability is not Durability.NONE)
        assert not log.takes_part(2)
        await decide(store, 1, [log])
        log.resolve(1, committed=True)
        log.resolve(2, committed=True)  # without a part nothing happens
        assert visible(log) == {0: b"m"}


async def test_deciding_about_a_log_that_is_gone(opened):
    async with opened() as store:
        a, b = store.log("a"), store.log("b")
        answers = Answers()
        a.prepare(1, records(b"x"), [], answers)
        b.prepare(1, records(b"y"), [], answers)
        if not isinstance(store.store, MemoryTopicStore):
            await a.delete()
            await store.rest(condition=lambda: answers.errors == [None, None])
            await decide(store, 1, [b])
            b.resolve(1, committed=True)
            assert visible(b) == {0: b"y"}


async def test_what_cannot_be_written_was_never_there(tmp_path):
    log = MemoryTopicStore().open("/", "a", "i", 0, Durability.OS)
    log.append_error = StorageError("disk on fire")
    builder = records(b"m")
    with pytest.raises(StorageError):
        log.prepare(1, builder, [], Answers())
    assert (log.end, builder.count) == (0, 0)


async def test_a_log_that_lacks_copies_takes_nothing_and_says_so(opened):
    async with opened() as store:
        log, told = store.log("a"), []
        log.on_failure(told.append)
        assert not log.is_refusing
        log.refuse(few := NotEnoughCopiesError("one node is in sync"))
        assert (log.is_refusing, told) == (True, [few])
        with pytest.raises(NotEnoughCopiesError):
            put(log, b"m")
        part = records(b"m")
        with pytest.raises(NotEnoughCopiesError):
            log.prepare(7, part, [], Answers())
        assert (log.end, log.builder.count, part.count) == (0, 0, 0)
        log.refuse(None)
        assert not log.is_refusing
        put(log, b"later")
        await store.rest(condition=lambda: log.committed == 1)
        assert visible(log) == {0: b"later"}


async def test_what_is_in_memory_can_be_looked_at(opened):
    async with opened() as store:
        log = store.log("a")
        empty = log.held_bytes
        put(log, b"x" * 1000, b"y")
        await store.rest(condition=lambda: log.committed == 2)
        batch = log.peek(1)
        assert [each[6] for each in batch.records()] == [b"x" * 1000, b"y"]
        assert log.peek(2) is None
        assert log.held_bytes - empty >= 1000
