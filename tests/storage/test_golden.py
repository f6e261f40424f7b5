"""Files written by any version of the format are read for ever."""

import shutil
from pathlib import Path

from leveret.ports import Compaction, Retention
from leveret.ports.records import BatchBuilder
from leveret.storage.files import RealFileSystem
from leveret.storage.keyring import Keyring
from leveret.storage.recovery import recover
from tests.storage.harness import (
    PERSISTENT,
    abandon,
    bodies,
    keyed,
    make_store,
    open_log,
    put,
    store_at,
)
from tests.storage.keys import encrypted_keyring, make_keyring
from tests.support.waiting import eventually

GOLDEN = Path(__file__).parent.parent / "golden" / "log-v1"
GOLDEN_2 = GOLDEN.with_name("log-v2")  # records came back
GOLDEN_4 = GOLDEN.with_name("log-v4")  # with parts of transactions
GOLDEN_5 = GOLDEN.with_name("log-v5")  # compacted
GOLDEN_6 = GOLDEN.with_name("log-v6")  # with erased records
GOLDEN_7 = GOLDEN.with_name("log-v7")  # compacted, with the first offset that retention keeps
SEALED = GOLDEN.with_name("log-v3")  # encrypted: a keyring beside the log


def test_a_log_of_version_1_is_recovered(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / "log")
    found = recover(RealFileSystem(), tmp_path / "log", None)
    assert (found.end, found.findings) == (12, [])
    assert list(found.settled) == [(0, 2), (4, 5), (9, 10)]
    assert [segment.base for segment in found.segments] == [0, 6, 12]


def test_a_log_of_version_2_is_recovered(tmp_path):
    shutil.copytree(GOLDEN_2, tmp_path / "log")
    found = recover(RealFileSystem(), tmp_path / "log", None)
    assert (found.end, found.findings) == (12, [])
    assert list(found.settled) == [(0, 2), (4, 5), (9, 10)]
    assert list(found.returns.runs()) == [(2, 4, 1, 0), (6, 7, 3, 2), (11, 12, 1, 1)]


def test_a_log_of_version_4_is_recovered(tmp_path):
    shutil.copytree(GOLDEN_4, tmp_path / "log")
    found = recover(RealFileSystem(), tmp_path / "log", None)
    assert (found.end, found.findings) == (10, [])
    assert list(found.settled) == [(0, 1), (3, 4)]
    assert list(found.told.undone) == [(3, 4)]
    parts = {each: (p.first, p.stop, list(p.settles)) for each, p in found.unresolved.items()}
    assert parts == {3: (4, 6, [(1, 2)]), 4: (0, 0, [(2, 3)]), 5: (9, 10, [])}


async def test_a_log_of_version_5_is_recovered_and_read(tmp_path):
    shutil.copytree(GOLDEN_5, tmp_path / "log")
    found = recover(RealFileSystem(), tmp_path / "log", None)
    assert (found.end, found.findings, found.losses) == (10, [], [])
    assert list(found.settled) == []
    assert list(found.compacted) == [(0, 2), (3, 4)]
    assert [segment.due_ms for segment in found.segments] == [1_700_086_400_000, 0, 0]
    async with store_at(tmp_path) as store:
        directory = open_log(store).directory
    shutil.copytree(GOLDEN_5, directory)
    async with store_at(tmp_path) as store:
        log = open_log(store)
        assert list(log.settled) == [(0, 2), (3, 4)]
        assert await bodies(log, 2, 3) == {2: b""}
        left = await bodies(log, 4)
        assert left == {4: b"body 4", **dict.fromkeys(range(5, 10), b"new")}


def test_a_log_of_version_6_is_recovered(tmp_path):
    shutil.copytree(GOLDEN_6, tmp_path / "log")
    found = recover(RealFileSystem(), tmp_path / "log", None)
    assert (found.end, found.findings) == (7, [])
    assert list(found.settled) == [(0, 2), (5, 6)]
    assert list(found.told.erased) == [(0, 2), (5, 6)]
    parts = {each: (list(p.settles), p.erases) for each, p in found.unresolved.items()}
    assert parts == {3: ([(2, 3)], True), 4: ([(3, 4)], False)}


def test_a_log_of_version_7_is_recovered(tmp_path):
    shutil.copytree(GOLDEN_7, tmp_path / "log")
    found = recover(RealFileSystem(), tmp_path / "log", None)
    assert (found.end, found.findings, found.told.retained_from) == (10, [], 0)
    assert list(found.compacted) == [(0, 2), (3, 4)]


async def test_a_log_of_version_1_is_read_and_written_to(tmp_path):
    async with store_at(tmp_path) as store:
        directory = open_log(store).directory
    shutil.copytree(GOLDEN, directory)
    async with store_at(tmp_path) as store:
        log = open_log(store)
        assert await bodies(log) == {i: b"body %d" % i for i in range(12)}
        (first, *_) = log.read(6, 1)[0].records()
        assert first == (6, 1, 1_700_000_000_000, b"x", b"key", b"header", b"body 6")


async def test_the_same_calls_still_write_the_same_bytes(tmp_path):
    for golden in (GOLDEN, GOLDEN_2, GOLDEN_4, GOLDEN_6, GOLDEN_7):
        if golden is GOLDEN_4:
            directory = await write_parts(tmp_path / golden.name)
        elif golden is GOLDEN_6:
            directory = await write_erased(tmp_path / golden.name)
        elif golden is GOLDEN_7:
            directory = await write_compacted(tmp_path / golden.name)
        else:
            directory = await write_golden(tmp_path / golden.name, returns=golden is GOLDEN_2)
        written = {path.name: path.read_bytes() for path in directory.glob("0*.*")}
        assert written == {path.name: path.read_bytes() for path in golden.iterdir()}


async def test_an_encrypted_log_is_read(tmp_path):
    async with store_at(tmp_path) as store:
        directory = open_log(store).directory
    shutil.copytree(SEALED / "log", directory)
    shutil.copy(SEALED / "keyring.json", tmp_path)
    keyring = make_keyring(RealFileSystem(), tmp_path)
    async with store_at(tmp_path, keyring=keyring) as store:
        log = open_log(store)
        assert await bodies(log) == {i: b"body %d" % i for i in range(12)}
        (first, *_) = log.read(6, 1)[0].records()
        assert first == (6, 1, 1_700_000_000_000, b"x", b"key", b"header", b"body 6")


async def test_the_same_calls_still_write_the_same_encrypted_bytes(tmp_path):
    files = RealFileSystem()
    keyring = encrypted_keyring(files, tmp_path)
    directory = await write_golden(tmp_path, returns=False, keyring=keyring)
    written = {path.name: path.read_bytes() for path in directory.glob("0*.*")}
    assert written == {path.name: path.read_bytes() for path in (SEALED / "log").iterdir()}
    assert (tmp_path / "keyring.json").read_bytes() == (SEALED / "keyring.json").read_bytes()


async def write_golden(data: Path, *, returns: bool, keyring: Keyring | None = None) -> Path:
    """How the golden files came about; a change of the format keeps them and adds others."""
    async with store_at(data, keyring=keyring, segment_bytes_max=400) as store:
        log = open_log(store)
        for i in range(0, 6, 2):
            put(log, b"body %d" % i, b"body %d" % (i + 1))
        log.settle([(0, 2), (4, 5)])
        if returns:
            come_back(log, 2, 4, 1, 0)
        log.write_settlements()
        put(log, *(b"body %d" % i for i in range(6, 12)))
        log.settle([(9, 10)])
        if returns:
            come_back(log, 6, 7, 3, 2)
            come_back(log, 11, 12, 1, 1)
        log.write_settlements()
        return log.directory


async def write_parts(data: Path) -> Path:
    """Write a log with transactions: one commits, one aborts, three are undecided."""
    store = make_store(data, segment_bytes_max=600)
    log = open_log(store)
    put(log, b"consumed 0", b"consumed 1", b"consumed 2")
    log.prepare(1, BatchBuilder(), [(0, 1)], ignore)
    log.resolve(1, committed=True)
    prepare(log, 2, b"undone")
    log.resolve(2, committed=False)
    log.write_settlements()
    prepare(log, 3, b"moved 1", b"moved 1 again", settles=[(1, 2)])
    log.prepare(4, BatchBuilder(), [(2, 3)], ignore)
    put(log, b"x" * 100, b"by itself", b"by itself")
    prepare(log, 5, b"last")
    abandon(store)
    return log.directory


async def write_erased(data: Path) -> Path:
    """Write a log with erased records, and with a transaction that will erase one."""
    store = make_store(data, segment_bytes_max=600)
    log = open_log(store)
    put(log, b"consumed", b"ready", b"moved", b"acked")
    log.settle([(0, 1)])
    log.erase([(0, 2)])
    log.write_settlements()
    log.prepare(3, BatchBuilder(), [(2, 3)], ignore, erases=True)
    log.prepare(4, BatchBuilder(), [(3, 4)], ignore)
    put(log, b"x" * 100, b"deleted later")
    put(log, b"x" * 300)
    log.erase([(5, 6)])
    log.write_settlements()
    abandon(store)
    return log.directory


async def write_compacted(data: Path) -> Path:
    """Write a log that is compacted: a tombstone is left, a value, and what has no key."""
    compaction = Retention(compaction=Compaction(24 * 3_600_000))
    async with store_at(data, segment_bytes_max=400) as store:
        store.compactor.check = lambda _log: None
        log = open_log(store, retention=compaction)
        for key, body in [
            (b"a", b"old"),
            (b"b", b"old"),
            (b"a", b""),
            (b"b", b"old"),
            (b"b", b"body 4"),
        ]:
            log.builder.add(PERSISTENT, 1_700_000_000_000, b"x", b"key", keyed(key), body)
        log.append()
        for _ in range(5):
            log.builder.add(PERSISTENT, 1_700_000_000_000, b"x", b"key", keyed(None), b"new")
            log.append()
        log.write_settlements()
        await eventually(lambda: not (log._segments.sealed_dirty or log.is_flushing))
        store.compactor.compact(log)
        await eventually(lambda: store.compactor.figures.passes)
        return log.directory


def prepare(log, transaction, *bodies, settles=()):
    records = BatchBuilder()
    for body in bodies:
        records.add(PERSISTENT, 1_700_000_000_000, b"x", b"key", b"header", body)
    log.prepare(transaction, records, settles, ignore)


def ignore(_error):
    """Call back never: no one waits."""


def come_back(log, first, stop, acquired, failures):
    log.returns.put(first, stop, acquired, failures)
    log.note_returns([(first, stop)])
