"""Files of a newer release are refused and left as they are, never taken for damage."""

import sqlite3
import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from leveret.errors import NewerFormatError
from leveret.ports import Durability
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch
from leveret.storage.audit import SqliteAuditStore
from leveret.storage.marks import LogMark
from leveret.storage.state import LmdbStateStore, MemoryStateStore
from tests.storage.harness import bodies, open_log, put, store_at

LIMITS = {"segment_bytes_max": 800}


async def write(data: Path) -> MemoryStateStore:
    state = MemoryStateStore()
    async with store_at(data, state=state, **LIMITS) as store:
        log = open_log(store)
        for number in range(20):
            put(log, b"%03d" % number * 50)
    return state


def segments(data: Path) -> list[Path]:
    return sorted(data.glob("topics/%2F/*/0/*.log"))


def rewrite_version(path: Path, position: int, version: bytes, *, content: bytes = b"") -> bytes:
    """Have a batch begin with another version; with other content it is no batch of ours."""
    raw = bytearray(path.read_bytes())
    raw[position + 3 : position + 4] = version
    raw[position + 30 : position + 30 + len(content)] = content
    path.write_bytes(raw)
    return bytes(raw)


async def test_a_log_of_a_newer_release_is_not_opened(tmp_path):
    await write(tmp_path)
    path = segments(tmp_path)[-1]
    raw = rewrite_version(path, 0, b"2", content=b"other")
    path.write_bytes(raw + b"LVB2" + b"more of it" * 20)
    before = path.read_bytes()
    async with store_at(tmp_path, **LIMITS) as store:
        with pytest.raises(NewerFormatError, match="newer release"):
            open_log(store)
    assert path.read_bytes() == before
    assert not list(tmp_path.rglob("*.damaged-*"))


async def test_a_batch_of_a_newer_release_is_not_given_up_when_it_is_read(tmp_path):
    state = await write(tmp_path)
    path = segments(tmp_path)[1]
    second = Batch.parse(path.read_bytes()).size  # behind the checkpoint
    raw = rewrite_version(path, second, b"7", content=b"other")
    first = int(path.name[:20])
    async with store_at(tmp_path, state=state, **LIMITS) as store:
        log = open_log(store)
        assert await bodies(log, 0, first)
        with pytest.raises(NewerFormatError):
            await bodies(log, first, first + 1)
        with pytest.raises(NewerFormatError):
            await log.set_aside(first)
        assert store.losses.unacknowledged == []
    assert path.read_bytes() == raw


async def test_a_magic_that_the_disk_has_changed_is_damage(tmp_path):
    state = await write(tmp_path)
    path = segments(tmp_path)[1]
    second = Batch.parse(path.read_bytes()).size
    rewrite_version(path, second, b"3")  # one bit
    first = int(path.name[:20])
    async with store_at(tmp_path, state=state, **LIMITS) as store:
        log = open_log(store)
        damage = await log.set_aside(first)
        assert list(damage.lost) == [(first, first + 1)]
        assert [loss.count for loss in store.losses.unacknowledged] == [1]


def test_a_mark_of_a_newer_release_is_refused_and_a_damaged_one_ignored():
    mark = LogMark(3, True, 100, 2, 4000, 130, 120, 7, b"\x02")
    value = mark.to_bytes()
    assert LogMark.from_bytes(value) == mark
    for position in range(len(value)):
        flipped = bytearray(value)
        flipped[position] ^= 1
        if position == 0:  # the version, which the checksum does not cover
            with pytest.raises(NewerFormatError):
                LogMark.from_bytes(bytes(flipped))
        else:
            assert LogMark.from_bytes(bytes(flipped)) is None
    body = value[5:] + b"more"
    with pytest.raises(NewerFormatError, match="newer release"):
        LogMark.from_bytes(struct.pack("<BI", 5, crc32c(body)) + body)
    assert LogMark.from_bytes(b"") is None


async def test_marks_of_an_earlier_release_are_believed_once(tmp_path):
    state = await write(tmp_path)
    (key, value), *_ = state.scan(b"log/")
    mark = LogMark.from_bytes(value)
    numbers = (mark.base, mark.revision, mark.segment_bytes, mark.committed, 5)
    earlier = struct.pack("<BQIQQQ", 2, *numbers) + RangeSet([(0, 2)]).to_bytes()
    older = MemoryStateStore()
    older.write([(b"closed/" + key.removeprefix(b"log/"), earlier)], durable=True)
    async with store_at(tmp_path, state=older, **LIMITS) as store:
        log = open_log(store, Durability.OS)
        assert (log.unclean, log.end, list(log.settled)) == (False, 20, [(0, 2)])
        assert log.redelivered_stop == 5
    assert not older.scan(b"closed/")


def test_state_of_a_newer_release(tmp_path):
    path = tmp_path / "state.lmdb"
    LmdbStateStore(path, print).close()
    raw = bytearray((path / "data.mdb").read_bytes())
    for page in (0, 4096):
        struct.pack_into("=I", raw, page + 20, 2)
    (path / "data.mdb").write_bytes(raw)
    with pytest.raises(NewerFormatError, match="newer release"):
        LmdbStateStore(path, print)
    assert (path / "data.mdb").read_bytes() == raw


async def test_records_of_a_newer_release(tmp_path):
    path = tmp_path / "audit.db"
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version = 2")
    other.close()
    raw = path.read_bytes()
    audit = SqliteAuditStore(path)
    with pytest.raises(NewerFormatError, match="newer release"):
        await audit.file.check(0)
    await audit.close()
    assert path.read_bytes() == raw
