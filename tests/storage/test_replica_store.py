"""Logs of a node that follows, whatever its disk does: described, flushed, cut, dropped."""

import asyncio
import contextlib
import errno
import threading

import pytest

from leveret.errors import CorruptBatchError, StorageError
from leveret.ports import Durability, LogName
from leveret.ports.replication import START, LogPlace, PlaceGoneError
from leveret.storage.marks import LogMark, LogMarks
from leveret.storage.names import TRASH
from leveret.storage.replica_files import describe_log
from leveret.storage.replica_store import ReplicaStore
from leveret.storage.segment import Segment
from leveret.storage.state import MemoryStateStore
from leveret.storage.threads import StorageThreads
from leveret.storage.trash import trash_name
from tests.storage.compaction_harness import CompactedLog
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import committed, make_store, open_log, put
from tests.storage.test_replica_machine import DATA, Copies, Leader
from tests.support.waiting import LIMIT_SECONDS, eventually

ONE = "%2F/orders~~i1/0"
FILE = "00000000000000000000.log"
DEADLINE_SECONDS = 60
OPEN_MAX = 4


class Node:
    """A replica store, and the log that it copies."""

    def __init__(self, leader, **limits):
        self.leader, self.limits = leader, limits
        self.files, self.state = FaultyFileSystem(), MemoryStateStore()
        self.rest = START, 0
        self.open()

    def open(self):
        loop = asyncio.get_running_loop()
        self.threads = StorageThreads.start(loop, commit_threads=2, fetch_threads=2)
        self.store = ReplicaStore(DATA, self.files, self.state, loop, self.threads, **self.limits)

    async def stop(self):
        await self.store.close()
        self.threads.close()

    async def die(self, files):
        """Begin anew with what a process or a machine has left."""
        self.threads.close()
        self.files = files
        self.open()

    async def copy(self, bytes_max=1 << 20):
        """Append what the log has more, without a flush."""
        log = self.leader.log
        while self.rest[0] != log.place:
            place, offset = self.rest
            raw = await log._reader.fetch_raw(place, offset, bytes_max)
            if raw.data:
                self.store.append(ONE, place, raw.data)
            self.rest = raw.stop, raw.offset

    async def flush(self):
        end = asyncio.get_running_loop().create_future()
        self.store.flush(end.set_result)
        async with asyncio.timeout(DEADLINE_SECONDS):
            error = await end
        if error is not None:
            raise error

    @property
    def wanted(self):
        log = self.leader.log
        return describe_log(self.leader.files, ONE, log.segments, log.place, log.end)

    @property
    def names(self):
        return self.files.list_names(DATA / "topics" / ONE)

    def fail(self, name):
        """Have the next call of a kind fail."""
        calls = FaultyFileSystem.__dict__[name]

        def failing(*arguments, **options):
            setattr(self.files, name, calls.__get__(self.files))
            raise OSError(errno.EIO, "an error of the device")

        setattr(self.files, name, failing)


class Stalled:
    """A function that waits, in its thread, until it may go on."""

    def __init__(self, function):
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()
        self._function = function

    def __call__(self, *arguments, **options):
        self.has_begun.set()
        assert self.may_go_on.wait(LIMIT_SECONDS)
        return self._function(*arguments, **options)


async def close_during(stalled, node, work):
    """Cancel what waits for a stalled call, and close the store, which has to wait for the call."""
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    try:
        await eventually(stalled.has_begun.is_set)
        closing = loop.create_task(node.store.close())
        for _ in range(2):  # who is told twice waits still
            working.cancel()
            await asyncio.sleep(0.01)
        assert not closing.done()
    finally:
        stalled.may_go_on.set()
    await closing
    assert working.cancelled()


@pytest.fixture
async def node():
    loop = asyncio.get_running_loop()
    leader = Leader(loop, FaultyFileSystem(), Durability.FSYNC, encrypted=False)
    leader.log.copy_to(Copies())
    node = Node(leader)
    await node.store.describe(keeps=True)
    yield node
    await node.stop()
    leader.threads.pool.shutdown()


def publish(node, *numbers):
    for number in numbers:
        put(node.leader.log, b"%d" % number + b"x" * 100)
        node.leader.drain()


@pytest.fixture
async def quick_node(node):
    """A node whose disk is so quick that the loop waits for it."""
    for _ in range(100):
        node.store._figures.ended(0, 0, failed=False)
    publish(node, 0)
    await node.copy()
    await node.flush()  # in a thread, since it makes the file's name durable
    return node


class Noting:
    """A committer that notes what is handed to threads."""

    def __init__(self, node):
        self.works = []
        self._committer = node.threads.committer
        for log in node.store._logs.values():
            log._committer = self

    def submit(self, work, done, *, is_flush=False):
        self.works.append(work)
        self._committer.submit(work, done, is_flush=is_flush)


async def is_whole(node):
    """Whether the node has all of the log, which it opens anew."""
    found = (await node.store.describe(keeps=True))[ONE]
    return (found.place, found.offset) == (node.leader.log.place, node.leader.log.end)


async def test_a_quick_disk_is_waited_for_on_the_loop(quick_node):
    noting = Noting(quick_node)
    publish(quick_node, 1)
    await quick_node.copy()
    await quick_node.flush()
    assert noting.works == []
    await quick_node.die(quick_node.files.lose_machine())
    assert await is_whole(quick_node)


async def test_a_flush_covers_what_is_read_in_the_same_turn(quick_node):
    publish(quick_node, 1, 2)
    place, offset = quick_node.rest
    raw = await quick_node.leader.log._reader.fetch_raw(place, offset, 1 << 20)
    end = asyncio.get_running_loop().create_future()
    quick_node.store.flush(end.set_result)
    quick_node.store.append(ONE, place, raw.data)
    assert await end is None
    await quick_node.die(quick_node.files.lose_machine())
    assert await is_whole(quick_node)


async def test_a_flush_that_fails_on_the_loop_is_told(quick_node):
    publish(quick_node, 1)
    await quick_node.copy()
    quick_node.fail("fdatasync")
    with pytest.raises(StorageError):
        await quick_node.flush()
    assert await is_whole(quick_node)


@pytest.mark.parametrize("why", ["slow", "much"])
async def test_a_thread_flushes_what_takes_long(quick_node, why, monkeypatch):
    noting = Noting(quick_node)
    if why == "slow":
        quick_node.store._figures.ended(1_000_000, 0, failed=False)
    else:
        monkeypatch.setattr("leveret.storage.replica_log.LOOP_FLUSH_BYTES_MAX", 100)
    publish(quick_node, 1)
    await quick_node.copy()
    await quick_node.flush()
    assert len(noting.works) == 1


async def test_a_flush_of_several_files_is_known_as_long_as_it_runs(node):
    publish(node, *range(12))
    await node.copy()
    assert len(node.wanted.files) > 1
    node.files.fdatasync = stalled = Stalled(node.files.fdatasync)
    flushing = asyncio.get_running_loop().create_task(node.flush())
    try:
        await eventually(stalled.has_begun.is_set)
        await eventually(lambda: node.store.oldest_flush_ms > 0)
    finally:
        stalled.may_go_on.set()
    await flushing
    assert node.store.oldest_flush_ms == 0


async def test_what_was_flushed_is_described_like_the_leaders(node):
    publish(node, *range(30))
    await node.copy(700)
    await node.flush()
    described = await node.store.describe(keeps=True)
    wanted = node.wanted
    assert len(wanted.files) > 2
    assert described == {
        ONE: wanted._replace(last=described[ONE].last, checksum=described[ONE].checksum)
    }
    assert node.store.has_last(described[ONE])
    assert not node.store.has_last(described[ONE]._replace(checksum=1))


async def test_a_log_is_not_compared_once_it_is_left_to_a_reign(node):
    publish(node, 1)
    await node.copy()
    await node.flush()
    theirs = (await node.store.describe(keeps=True))[ONE]
    await node.store.leave()
    with pytest.raises(StorageError, match="is about to lead"):
        node.store.has_last(theirs)


async def test_a_machine_that_dies_leaves_what_was_flushed(node):
    publish(node, 1, 2, 3)
    await node.copy()
    await node.flush()
    flushed = node.rest[0]
    publish(node, 4, 5)
    await node.copy()
    await node.die(node.files.lose_machine())
    described = await node.store.describe(keeps=True)
    assert described[ONE].place == flushed


async def test_a_new_file_that_a_power_cut_has_emptied_is_removed(node):
    publish(node, 1, 2)
    await node.copy()
    await node.die(node.files.lose_machine(keeps_names=True))
    assert node.names == [FILE]
    assert await node.store.describe(keeps=True) == {}
    assert node.names == []
    node.rest = START, 0
    await node.copy()
    await node.flush()
    assert await is_whole(node)


async def test_a_description_flushes_what_was_appended(node):
    publish(node, 1, 2, 3)
    await node.copy()
    await node.store.describe(keeps=True)
    await node.die(node.files.lose_machine())
    described = await node.store.describe(keeps=True)
    assert described[ONE].place == node.leader.log.place


@pytest.mark.parametrize("lost", ["the file", "the directory", "its end"])
async def test_who_keeps_what_it_has_refuses_damaged_logs(node, lost):
    publish(node, 1, 2, 3)
    await node.copy()
    await node.flush()
    await node.store._notes.written()
    if lost == "the file":
        node.files.unlink(DATA / "topics" / ONE / FILE)
    elif lost == "the directory":
        node.files.remove_tree(DATA / "topics")
    else:
        del node.files.files[DATA / "topics" / ONE / FILE].cached[-20:]
    await node.die(node.files.lose_process())
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match="is damaged at"):
            await node.store.describe(keeps=True)
    described = await node.store.describe(keeps=False)
    assert all(log.place < node.rest[0] for log in described.values())
    await node.die(node.files.lose_process())
    assert await node.store.describe(keeps=True) == described


async def test_logs_of_which_a_flush_has_failed_are_written_anew(node):
    publish(node, 1, 2, 3)
    await node.copy()
    node.fail("fdatasync")
    with pytest.raises(StorageError, match="cannot flush"):
        await node.flush()
    publish(node, 4)
    with pytest.raises(StorageError, match="must be opened anew"):
        await node.copy()
    await node.store.describe(keeps=True)
    await node.die(node.files.lose_machine())
    described = await node.store.describe(keeps=True)
    assert described[ONE].place == node.rest[0]
    assert not any(name.endswith(".doubtful") for name in node.names)


async def test_a_process_that_ends_behind_a_failed_flush_writes_anew(node):
    publish(node, 1, 2, 3)
    await node.copy()
    node.fail("fdatasync")
    with pytest.raises(StorageError):
        await node.flush()
    await node.die(node.files.lose_process())
    assert any(name.endswith(".doubtful") for name in node.names)
    await node.store.describe(keeps=True)
    await node.die(node.files.lose_machine())
    assert (await node.store.describe(keeps=True))[ONE].place == node.rest[0]


async def test_an_error_while_logs_are_opened_is_told(node):
    publish(node, 1)
    await node.copy()
    await node.flush()
    await node.die(node.files.lose_process())
    node.fail("fdatasync")
    with pytest.raises(StorageError, match="cannot open the replica"):
        await node.store.describe(keeps=True)
    assert (await node.store.describe(keeps=True))[ONE].place == node.rest[0]


async def test_bytes_that_do_not_follow_are_refused(node):
    publish(node, 1, 2)
    await node.copy()
    data = b"\0" * 100
    with pytest.raises(CorruptBatchError):
        node.store.append(ONE, node.rest[0], data)
    with pytest.raises(CorruptBatchError):
        node.store.append("%2F/other~~i1/0", LogPlace(5, 0, 10), data)
    with pytest.raises(CorruptBatchError):
        node.store.copy(ONE, LogPlace(0, 4096, 10), data, is_last=True)
    node.fail("pwrite")
    publish(node, 3)
    with pytest.raises(StorageError, match="cannot write"):
        await node.copy()
    await node.copy()
    await node.flush()
    assert (await node.store.describe(keeps=True))[ONE].place == node.leader.log.place


async def test_a_new_file_of_which_nothing_can_be_taken_back_is_opened_anew(node):
    publish(node, 1, 2)
    node.fail("pwrite")
    node.fail("unlink")
    with pytest.raises(StorageError, match="cannot write"):
        await node.copy()
    assert await node.store.describe(keeps=True) == {}
    await node.copy()
    await node.flush()
    assert await is_whole(node)


async def test_a_gap_that_a_removed_file_has_left_is_no_loss(node):
    publish(node, *range(30))
    await node.copy()
    await node.flush()
    first, second, third, *_ = node.wanted.files
    node.store.remove(ONE, *second)
    await node.flush()
    node.files.sync_directory(DATA / "topics" / ONE)  # the file is gone for good
    node.state = MemoryStateStore()  # a node may know nothing
    await node.die(node.files.lose_machine())
    described = await node.store.describe(keeps=True)
    assert described[ONE].files == (first, third, *node.wanted.files[3:])
    assert described[ONE].place == node.rest[0]


def remove_the_middle(node):
    """Have the log's second and third file settled and removed; return what is left."""
    log = node.leader.log
    log.replicated(log.place, log.end)
    second, third = log.segments[1:3]
    log.settle([(second.base, third.stop)])
    log.write_settlements()
    for _ in range(2):  # what is settled is flushed, then the files go
        node.leader.drain()
        log.replicated(log.place, log.end)
    assert second not in log.segments
    assert third not in log.segments
    return node.wanted


async def end_at_a_gap(node, how):
    """Copy a log whose middle was removed, its first file as a whole or batch by batch."""
    publish(node, *range(30))
    first, second, *_ = remove_the_middle(node).files
    if how == "copied":
        raw = await node.leader.log._reader.fetch_raw(START, 0, 1 << 20)
        node.store.copy(ONE, LogPlace(*first), raw.data, is_last=True)
        await node.flush()
        node.rest = LogPlace(*second), second[0]
    await node.copy()


@pytest.mark.parametrize("how", ["appended", "copied"])
@pytest.mark.parametrize("described", [False, True])
async def test_a_gap_that_has_come_from_the_leader_is_no_loss(node, how, described):
    await end_at_a_gap(node, how)
    if described:
        await node.store.describe(keeps=True)
    else:
        await node.flush()
    node.state = MemoryStateStore()  # nothing is noted yet
    await node.die(node.files.lose_machine())
    found = (await node.store.describe(keeps=True))[ONE]
    assert (found.files, found.place) == (node.wanted.files, node.rest[0])


async def test_a_flush_that_cannot_tell_a_gap_from_a_loss_fails(node, monkeypatch):
    await end_at_a_gap(node, "appended")

    def refuse(*_):
        raise OSError(errno.EIO, "an error of the device")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "sync_index", refuse)
        with pytest.raises(StorageError, match="cannot flush"):
            await node.flush()
    described = await node.store.describe(keeps=True)  # an index file is there, but not for sure
    await node.die(node.files.lose_machine())
    assert await node.store.describe(keeps=True) == described


async def test_an_index_file_of_a_file_that_was_copied_is_durable(node):
    publish(node, *range(12))
    raw = await node.leader.log._reader.fetch_raw(START, 0, 1 << 20)
    node.store.copy(ONE, LogPlace(0, 4096), raw.data, is_last=True)
    await node.flush()
    await node.die(node.files.lose_machine())
    copied = Segment(DATA / "topics" / ONE, 0, 4096, len(raw.data))
    assert copied.read_index(node.files).stop == raw.stop.base


async def test_the_newest_file_can_be_removed(node):
    publish(node, *range(12))
    await node.copy()
    *_, before, newest = node.wanted.files
    await node.flush()
    node.store.remove(ONE, *newest)
    node.store.remove(ONE, *newest)  # somebody says it twice
    await node.flush()
    described = await node.store.describe(keeps=True)
    assert described[ONE].files[-1] == before
    publish(node, *range(12))
    files = node.wanted.files
    following = LogPlace(*files[files.index(newest) + 1])
    raw = await node.leader.log._reader.fetch_raw(following, following.base, 1 << 20)
    node.store.append(ONE, following, raw.data)
    await node.flush()
    node.state = MemoryStateStore()
    await node.die(node.files.lose_machine())
    described = await node.store.describe(keeps=True)
    assert described[ONE].files[-2:] == (before, following.file)


async def test_what_was_not_flushed_is_not_removed(node):
    publish(node, *range(12))
    await node.copy()
    await node.flush()
    files = node.wanted.files
    node.store.remove(ONE, *files[0])
    node.store.drop(ONE)
    assert (await node.store.describe(keeps=True))[ONE].files == files
    await node.flush()
    assert (await node.store.describe(keeps=True))[ONE].files == files


@pytest.mark.parametrize("dies", [False, True])
async def test_a_dropped_log_is_not_missed(node, dies):
    publish(node, 1, 2)
    await node.copy()
    await node.flush()
    await node.store._notes.written()
    node.store.drop(ONE)
    node.store.drop("%2F/never~~seen/0")
    await node.flush()
    if dies:
        await node.die(node.files.lose_process())
    assert await node.store.describe(keeps=True) == {}
    assert await node.store.describe(keeps=True) == {}


@pytest.mark.parametrize("is_flushing", [False, True])
async def test_a_log_that_is_being_dropped_takes_nothing_of_a_new_one(node, is_flushing):
    publish(node, 1, 2)
    await node.copy()
    node.store.drop(ONE)
    end = asyncio.get_running_loop().create_future()
    node.store.flush(end.set_result)
    if is_flushing:
        await asyncio.sleep(0)
    changes = [
        lambda: node.store.append(ONE, START, b""),
        lambda: node.store.copy(ONE, LogPlace(0, 4096), b"", is_last=True),
        lambda: node.store.remove(ONE, 0, 0),
    ]
    for change in changes:
        with pytest.raises(StorageError, match="is being deleted"):
            change()
    assert not end.done()
    assert await end is None
    assert await node.store.describe(keeps=True) == {}
    node.rest = START, 0
    await node.copy()
    await node.flush()
    assert await is_whole(node)


async def test_a_new_log_of_a_name_that_is_not_there_is_not_dropped(node):
    publish(node, 1, 2)
    node.store.drop(ONE)
    await node.copy()
    await node.flush()
    await node.die(node.files.lose_machine())
    assert await is_whole(node)


async def test_a_log_is_cut_durably(node):
    publish(node, 1, 2, 3)
    await node.copy()
    await node.flush()
    place = node.rest[0]
    publish(node, 4, *range(12))
    await node.copy()
    await node.flush()
    await node.store.cut([(ONE, place)])
    await node.die(node.files.lose_machine())
    assert (await node.store.describe(keeps=True))[ONE].place == place
    await node.store.cut([(ONE, START), ("%2F/never~~seen/0", START)])
    await node.die(node.files.lose_machine())
    assert await node.store.describe(keeps=True) == {}
    assert node.files.list_names(DATA / "topics" / "%2F") == []


async def test_the_index_file_of_a_file_that_was_cut_never_comes_back(node):
    publish(node, *range(12))
    await node.copy()
    await node.flush()
    node.files.sync_directory(DATA / "topics" / ONE)
    assert FILE.replace(".log", ".index") in node.names
    raw = await node.leader.log._reader.fetch_raw(LogPlace(), 0, 1)
    await node.store.cut([(ONE, raw.stop)])
    await node.die(node.files.lose_machine())
    assert node.names == [FILE]  # else it would vouch for what is appended there, unflushed


@pytest.mark.parametrize("begins_file", [False, True])
@pytest.mark.parametrize("is_damaged", [False, True])
async def test_damage_in_front_of_a_cut_is_noticed(node, begins_file, is_damaged):
    publish(node, *range(12))
    await node.copy()
    await node.flush()
    first, second, _ = node.wanted.files
    place = LogPlace(*second) if begins_file else node.store._logs[ONE].end.last
    await node.store.cut([(ONE, place)])
    await node.die(node.files.lose_machine())
    left = sorted(name for name in node.names if name.endswith(".log"))
    if is_damaged:
        node.files.unlink(DATA / "topics" / ONE / left[-1])
        with pytest.raises(CorruptBatchError, match="is damaged at"):
            await node.store.describe(keeps=True)
    else:
        found = (await node.store.describe(keeps=True))[ONE]
        assert found.place == place if not begins_file else found.files == (first,)


async def test_a_flush_ends_though_who_waits_for_it_is_cancelled(node):
    publish(node, 1, 2)
    await node.copy()
    node.files.fdatasync = flush = Stalled(node.files.fdatasync)
    told = []
    node.store.flush(told.append)
    await close_during(flush, node, node.store.describe(keeps=True))
    assert told == [None]
    await node.die(node.files.lose_machine())
    assert await is_whole(node)


async def test_a_store_is_closed_when_no_thread_cuts_its_files(node):
    publish(node, 1, 2)
    await node.copy()
    await node.flush()
    node.files.unlink = unlink = Stalled(node.files.unlink)
    await close_during(unlink, node, node.store.cut([(ONE, START)]))
    assert node.files.list_names(DATA / "topics" / "%2F") == []


@pytest.mark.parametrize("fails", [False, True])
async def test_a_store_is_closed_when_no_thread_opens_its_files(node, fails):
    publish(node, 1, 2)
    await node.copy()
    await node.flush()
    await node.die(node.files.lose_machine())
    if fails:
        node.fail("open")
    node.files.open = opening = Stalled(node.files.open)
    await close_during(opening, node, node.store.describe(keeps=True))


async def test_notes_are_written_though_who_waits_for_them_is_cancelled(node):
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    publish(node, 1, 2)
    await node.copy()
    await node.flush()
    node.state.write = write = Stalled(node.state.write)
    await close_during(write, node, node.store.cut([(ONE, START)]))
    assert complaints == []


async def test_what_was_read_of_a_replica_is_as_in_the_leader(node):
    publish(node, *range(30))
    await node.copy(900)
    await node.flush()
    place, offset, copied = START, 0, bytearray()
    while place != node.rest[0]:
        ours = await node.leader.log._reader.fetch_raw(place, offset, 500)
        theirs = await node.store.read(ONE, place, offset, 500)
        assert theirs == ours
        place, offset, copied = theirs.stop, theirs.offset, copied + theirs.data
    assert len(copied) > 3000
    with pytest.raises(PlaceGoneError):
        await node.store.read(ONE, LogPlace(7, 7, 7), 0, 100)
    with pytest.raises(PlaceGoneError):
        await node.store.read("%2F/never~~seen/0", START, 0, 100)


async def test_a_log_to_which_a_node_has_written_alone_is_copied(node):
    for epoch in (7, 0, 8):
        node.leader.epoch = epoch - 1
        node.leader.kill()
        publish(node, epoch)
        while node.leader.log.place.position < 900:  # until its file is full
            publish(node, epoch)
    await node.copy()
    await node.flush()
    assert await is_whole(node)


async def test_what_was_derived_from_logs_is_forgotten_behind_a_reign(node):
    own = [b"run", b"definitions", b"records/audit.db", b"statistics\0x", b"closed/" + ONE.encode()]
    derived = [b"due/1", b"dedup/w/mark", b"schedules\0v", b"\0", b"zz"]
    node.state.write([(key, b"1") for key in (*own, *derived)], durable=True)
    await node.store.describe(keeps=True)
    assert all(map(node.state.get, own))
    assert not any(map(node.state.get, derived))
    node.state.write([(b"due/2", b"1")], durable=True)
    await node.store.describe(keeps=True)  # of the same reign: it is not looked again
    assert node.state.get(b"due/2") is not None
    node.state.write([(b"run", b"2")], durable=True)
    await node.store.describe(keeps=True)
    assert node.state.get(b"due/2") is None


async def test_marks_of_a_reign_become_notes(node):
    publish(node, 1, 2, 3)
    await node.copy()
    await node.flush()
    place = node.rest[0]
    await node.stop()
    node.state = MemoryStateStore()
    mark = LogMark(1, True, *place, 3, 3)
    node.state.write([LogMarks.change(ONE.encode(), mark)], durable=True)
    node.open()
    del node.files.files[DATA / "topics" / ONE / FILE].cached[-20:]
    with pytest.raises(CorruptBatchError):
        await node.store.describe(keeps=True)
    assert node.state.scan(LogMarks.PREFIX) == []


@contextlib.asynccontextmanager
async def reign(node):
    """Have the node lead with its files."""
    await node.store.leave()
    store = make_store(DATA, node.files, node.state, epoch=2)
    try:
        yield store
    finally:
        await store.close()
        await node.die(node.files)


async def test_a_log_that_is_deleted_in_a_reign_is_not_missed(node):
    publish(node, 1, 2)
    await node.copy()
    await node.flush()
    async with reign(node) as store:
        await store.recover([LogName("/", "orders", "i1", 0, Durability.FSYNC)])
        await open_log(store, Durability.FSYNC).delete()
    assert node.files.list_names(DATA / "topics" / TRASH) == []
    assert await node.store.describe(keeps=True) == {}


async def test_a_log_that_was_deleted_right_before_the_end_is_not_missed(node):
    async with reign(node) as store:
        log = open_log(store, Durability.FSYNC)
        put(log, b"one")
        await committed(log, 1)
    assert node.state.get(LogMarks.PREFIX + ONE.encode()) is not None
    trash = DATA / "topics" / TRASH
    node.files.make_directory(trash)
    node.files.rename(DATA / "topics" / ONE, trash / f"{trash_name(ONE.encode())}-1")
    await node.die(node.files.lose_process())
    assert await node.store.describe(keeps=True) == {}
    assert node.state.scan(LogMarks.PREFIX) == []


async def test_what_the_last_run_was_removing_is_removed_once_it_is_not_missed(node):
    async with reign(node) as store:
        log = open_log(store, Durability.FSYNC)
        put(log, b"one")
        await committed(log, 1)
    trash, transient = DATA / "topics" / TRASH, DATA / "transient"
    node.files.make_directory(trash)
    node.files.rename(DATA / "topics" / ONE, trash / f"{trash_name(ONE.encode())}-1")
    node.files.make_directory(transient / ONE)
    await node.die(node.files.lose_process())
    node.state.write = write = Stalled(node.state.write)
    describing = asyncio.get_running_loop().create_task(node.store.describe(keeps=True))
    await eventually(write.has_begun.is_set)
    assert f"{trash_name(ONE.encode())}-1" in node.files.list_names(trash)
    write.may_go_on.set()
    assert await describing == {}
    await node.store.close()
    assert node.files.list_names(trash) == []
    assert not node.files.exists(transient)
    await node.die(node.files.lose_process())
    assert await node.store.describe(keeps=True) == {}


async def test_what_a_replica_was_removing_is_removed_once_it_is_not_missed(node):
    publish(node, 1)
    await node.copy()
    await node.flush()
    await node.store._notes.written()
    node.store._trash._remove = lambda *_: None  # it ends in front of that
    node.store.drop(ONE)
    await node.flush()
    await node.die(node.files.lose_process())
    trash = DATA / "topics" / TRASH
    assert len(node.files.list_names(trash)) == 1
    assert await node.store.describe(keeps=True) == {}
    await node.store.close()
    assert node.files.list_names(trash) == []
    await node.die(node.files.lose_process())
    assert await node.store.describe(keeps=True) == {}


async def test_a_transient_log_that_cannot_be_moved_away_is_told(node):
    node.files.make_directory(DATA / "transient")
    node.fail("rename")
    with pytest.raises(StorageError, match="transient"):
        node.open()
    node.threads.close()
    node.open()


@pytest.mark.parametrize("dies_at", [None, "copied", "half"])
def test_a_compacted_file_takes_the_place_of_another(dies_at):
    compacted = CompactedLog(checks=False)
    loop = compacted.loop

    async def run():
        for number in range(40):
            compacted.put((b"%d" % (number % 3), b"v" * 90))
        compacted.settle_down()
        node = Node(compacted)
        try:
            await node.store.describe(keeps=True)
            await node.copy()
            await node.flush()
            sink = Compactions()
            compacted.log.copy_to(sink)
            compacted.compact()
            for base, revision, by in sink.replaced_files:
                await copy_file(node, LogPlace(base, by), half=dies_at == "half")
                if dies_at is None:
                    node.store.remove(ONE, base, revision)
            if dies_at is None:
                await node.flush()
                node.files.sync_directory(DATA / "topics" / ONE)
                node.state = MemoryStateStore()
            await node.die(node.files.lose_machine())
            described = await node.store.describe(keeps=True)
            files = {file: bytes(each.cached) for file, each in compacted.files.files.items()}
            if dies_at is None:
                assert described[ONE].files == tuple(
                    segment.file for segment in compacted.log.segments
                )
                await check_removed(node, compacted)
            else:
                assert all(revision == 0 for _, revision in described[ONE].files)
                assert not any(".new" in name for name in node.names)
            for path, content in node.files.files.items():
                if path.suffix == ".log" and path in files:
                    assert files[path].startswith(bytes(content.cached).rstrip(b"\0"))
        finally:
            await node.stop()

    try:
        loop.run_until_complete(run())
    finally:
        compacted.close()


async def check_removed(node, compacted):
    """Index files of copies tell what compaction has removed, as those of the leader do."""
    for ours, theirs in zip(
        node.store._logs[ONE].end.segments, compacted.log.segments, strict=True
    ):
        if ours.revision:
            found = ours.read_index(node.files).compacted
            wanted = theirs.read_index(compacted.files).compacted
            assert list(found.removed) == list(wanted.removed)


class Compactions(Copies):
    def __init__(self):
        super().__init__()
        self.replaced_files = []

    def replaced(self, base, revision, by):
        self.replaced_files.append((base, revision, by))


async def copy_file(node, place, *, half):
    offset, is_last = place.base, False
    while not is_last:
        raw = await node.leader.log._reader.fetch_raw(place, offset, 400)
        is_last = raw.stop.file != place.file
        node.store.copy(ONE, place, raw.data, is_last=is_last)
        place, offset = raw.stop, raw.offset
        if half:
            return


async def test_an_index_file_that_a_crash_has_emptied_is_made_before_a_removal(node):
    publish(node, *range(30))
    await node.copy()
    await node.flush()
    first, second, *_ = node.wanted.files
    directory = DATA / "topics" / ONE
    del node.files.files[directory / "00000000000000000000.index"].cached[:]
    node.store.remove(ONE, *second)
    await node.flush()
    node.files.sync_directory(directory)
    node.state = MemoryStateStore()
    await node.die(node.files.lose_machine())
    described = await node.store.describe(keeps=True)
    assert described[ONE].files[0] == first
    assert described[ONE].place == node.rest[0]


async def test_a_file_that_cannot_be_ended_takes_no_other_behind_it(node):
    publish(node, *range(3))
    await node.copy()
    await node.flush()
    node.leader.log._segments.roll(node.leader.log.end)
    publish(node, 4)
    node.fail("truncate")  # of the zeros by which the file has grown
    node.store._logs[ONE]._file_bytes += 1
    with pytest.raises(StorageError, match="cannot truncate"):
        await node.copy()
    await node.copy()
    await node.flush()
    node.state = MemoryStateStore()
    await node.die(node.files.lose_machine())
    assert (await node.store.describe(keeps=True))[ONE].place == node.rest[0]


async def test_who_leaves_files_to_a_reign_has_them_on_the_disk(node):
    publish(node, 1, 2, 3)
    await node.copy()
    node.fail("fdatasync")
    with pytest.raises(StorageError):
        await node.flush()
    await node.die(node.files.lose_process())
    await node.store.leave()
    assert not any(name.endswith(".doubtful") for name in node.names)
    await node.die(node.files.lose_machine())
    assert (await node.store.describe(keeps=True))[ONE].place == node.rest[0]


async def copy_as_compacted(node, files, *, is_last):
    """Copy files as if each had been compacted."""
    for base, revision in files:
        place = LogPlace(base, revision)
        raw = await node.leader.log._reader.fetch_raw(place, base, 1 << 20)
        node.store.copy(ONE, LogPlace(base, 4096), raw.data, is_last=is_last)


@pytest.mark.parametrize(
    ("refused", "appends"), [("fdatasync", True), ("fdatasync", False), ("rename", False)]
)
async def test_files_that_a_flush_does_not_add_leave_nothing(node, refused, appends):
    publish(node, *range(20))
    await node.copy()
    if not appends:
        await node.flush()
    files = node.wanted.files[:3]
    await copy_as_compacted(node, files, is_last=True)
    node.fail(refused)
    with pytest.raises(StorageError):
        await node.flush()
    assert len(node.files.handles) == 1  # of the newest file
    assert not any(name.endswith(".new") for name in node.names)
    assert await is_whole(node)
    await copy_as_compacted(node, files, is_last=True)
    await node.flush()
    described = await node.store.describe(keeps=True)
    assert {(base, 4096) for base, _ in files} <= set(described[ONE].files)


async def test_files_that_are_not_copied_to_their_end_leave_nothing(node):
    publish(node, *range(20))
    await node.copy()
    await node.flush()
    await copy_as_compacted(node, node.wanted.files[:1], is_last=True)
    await copy_as_compacted(node, node.wanted.files[1:2], is_last=False)
    await node.store.describe(keeps=True)
    assert len(node.files.handles) == 1
    assert not any(name.endswith(".new") for name in node.names)


@pytest.fixture
async def frugal_node(node):
    """A node that keeps few files open, and a log of which it copies the bytes to many."""
    frugal = Node(node.leader, open_segments_max=OPEN_MAX)
    await frugal.store.describe(keeps=True)
    yield frugal
    await frugal.stop()


def append_to(node, numbers, raw, place):
    for number in numbers:
        node.store.append(f"%2F/q{number}~~i1/0", place, raw.data)


@pytest.mark.parametrize("at_once", [1, 2 * OPEN_MAX])
async def test_few_files_are_open_of_many_logs(frugal_node, at_once):
    node, place, offset = frugal_node, START, 0
    numbers = range(4 * OPEN_MAX)
    for number in range(3):
        publish(node, number)
        raw = await node.leader.log._reader.fetch_raw(place, offset, 1 << 20)
        for first in numbers[::at_once]:
            append_to(node, numbers[first : first + at_once], raw, place)
            await node.flush()
            assert len(node.files.handles) <= OPEN_MAX
        place, offset = raw.stop, raw.offset
    await node.die(node.files.lose_machine())
    described = await node.store.describe(keeps=True)
    assert {log.place for log in described.values()} == {place}
    assert len(described) == len(numbers)


async def test_a_log_that_is_written_to_all_the_time_keeps_its_file(frugal_node):
    node, place, offset = frugal_node, START, 0
    handles = {}
    for number in range(1, 4 * OPEN_MAX):
        publish(node, number)
        raw = await node.leader.log._reader.fetch_raw(place, offset, 100)
        append_to(node, [0], raw, place)
        place, offset = raw.stop, raw.offset
        if number == 1:
            first = raw
        append_to(node, [number], first, START)
        await node.flush()
        newest = node.store._logs["%2F/q0~~i1/0"].end.segments[-1]
        assert handles.setdefault(newest.path, newest.handle) == newest.handle is not None


async def test_a_file_that_comes_twice_is_there_once(node):
    publish(node, *range(12))
    await node.copy()
    await node.flush()
    place = LogPlace(*node.wanted.files[0])
    raw = await node.leader.log._reader.fetch_raw(place, place.base, 1 << 20)
    for _ in range(2):
        node.store.copy(ONE, place, raw.data, is_last=True)
        await node.flush()
    described = await node.store.describe(keeps=True)
    assert described[ONE].files == node.wanted.files
    node.store.remove(ONE, *place.file)
    await node.flush()
    assert (await node.store.describe(keeps=True))[ONE].files == node.wanted.files[1:]
