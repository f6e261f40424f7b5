"""The usage store keeps what it was given, across restarts and beside damage."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from leveret.errors import StorageError
from leveret.ports.usage import Account, CountedLog, CountedLogs, Subject, Usage
from leveret.storage.usage import SqliteUsageStore

if TYPE_CHECKING:
    from pathlib import Path

QUEUE = Account(Subject.QUEUE, "/", "q")
USER = Account(Subject.USER, "/", "u")


async def test_hours_add_up_and_survive(tmp_path: Path) -> None:
    store = SqliteUsageStore(tmp_path / "usage.db")
    await store.add(3600, {QUEUE: Usage(1, 10, 2, 20)})
    await store.add(3600, {QUEUE: Usage(1, 10, 0, 0), USER: Usage(5, 5, 5, 5)})
    await store.add(7200, {QUEUE: Usage(7, 7, 7, 7)})
    await store.close()
    store = SqliteUsageStore(tmp_path / "usage.db")
    assert await store.read(0, 7200) == [
        (3600, QUEUE, Usage(2, 20, 2, 20)),
        (3600, USER, Usage(5, 5, 5, 5)),
    ]
    assert await store.unpublished(7200) == [3600]
    await store.mark_published(3600)
    assert await store.unpublished(10_000) == [7200]
    await store.forget(7200)
    assert [hour for hour, *_ in await store.read(0, 10_000)] == [7200]
    await store.close()


async def test_how_far_logs_were_counted_is_kept_with_the_usage(tmp_path: Path) -> None:
    log, other = CountedLog("/", "q", "a", 0), CountedLog("/", "q", "a", 1)
    store = SqliteUsageStore(tmp_path / "usage.db")
    assert await store.counted() == CountedLogs({}, None)
    await store.add(3600, {QUEUE: Usage(5, 50)}, CountedLogs({log: 5}, 1000))
    await store.add(3600, {QUEUE: Usage(2, 20)}, CountedLogs({log: 6, other: 1}, 2000))
    await store.add(3600, {QUEUE: Usage(1, 10)}, CountedLogs({other: 2}))
    await store.close()
    store = SqliteUsageStore(tmp_path / "usage.db")
    assert await store.counted() == CountedLogs({log: 6, other: 2}, 2000)
    await store.forget_logs([log])
    assert await store.counted() == CountedLogs({other: 2}, 2000)
    await store.forget_counted()
    assert await store.counted() == CountedLogs({}, None)
    assert await store.read(3600, 3601) == [(3600, QUEUE, Usage(8, 80))]
    await store.close()


async def test_a_file_of_the_first_release_gets_the_new_tables(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    store = SqliteUsageStore(path)
    await store.add(3600, {QUEUE: Usage(1, 10, 0, 0)})
    await store.close()
    with closing(sqlite3.connect(path)) as database:
        for table in ("counted", "counting"):
            database.execute(f"DROP TABLE {table}")
        database.execute("PRAGMA user_version = 1")
    again = SqliteUsageStore(path)
    assert await again.counted() == CountedLogs({}, None)
    assert len(await again.read(0, 7200)) == 1
    await again.close()
    with closing(sqlite3.connect(path)) as database:  # an older release is to refuse it
        assert database.execute("PRAGMA user_version").fetchone() == (2,)


async def test_many_at_once_wait_for_each_other(tmp_path: Path) -> None:
    store = SqliteUsageStore(tmp_path / "usage.db")
    await asyncio.gather(*(store.add(0, {QUEUE: Usage(1, 1, 1, 1)}) for _ in range(20)))
    assert await store.read(0, 1) == [(0, QUEUE, Usage(20, 20, 20, 20))]
    await store.close()


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "usage.db").mkdir()
    store = SqliteUsageStore(tmp_path / "usage.db")
    with pytest.raises(StorageError, match=r"usage\.db"):
        await store.add(0, {QUEUE: Usage(1, 1, 1, 1)})
    await store.close()


def modes(directory: Path) -> set[int]:
    return {file.stat().st_mode & 0o777 for file in directory.iterdir()}


async def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    store = SqliteUsageStore(path)
    await store.add(3600, {QUEUE: Usage(1, 1, 1, 1)})
    assert modes(tmp_path) == {0o600}
    open_to_all(tmp_path)  # as older versions left them
    again = SqliteUsageStore(path)
    assert len(await again.read(0, 7200)) == 1
    assert modes(tmp_path) == {0o600}
    await again.close()
    await store.close()


def open_to_all(directory: Path) -> None:
    for file in directory.iterdir():
        file.chmod(0o644)
