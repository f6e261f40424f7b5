"""The SQLite store beyond its contract: damage, versions, failures."""

import asyncio
import logging
import sqlite3
from contextlib import suppress

import pytest

from leveret.errors import DiskFullError, StorageError
from leveret.ports.definitions import (
    Definitions,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.storage.metadata import SqliteMetadataStore
from leveret.storage.schema import MIGRATIONS

PAGE_BYTES = 4096


@pytest.fixture
async def group():
    async with asyncio.TaskGroup() as group:
        yield group


@pytest.fixture
def path(tmp_path):
    return tmp_path / "leveret.db"


@pytest.fixture
async def open_store(path, group):
    """Opens the store; closed whatever becomes of the test, so that no other one is blamed."""
    stores = []

    async def open_it():
        stores.append(await SqliteMetadataStore.open(path, group.create_task))
        return stores[-1]

    yield open_it
    for store in stores:
        with suppress(StorageError):  # the test has failed anyway
            await store.close()


async def test_put_becomes_durable_without_a_flush(path, open_store):
    store = await open_store()
    store.put(UserDefinition("u"))
    await asyncio.wait([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
    assert not store.pending
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM users").fetchall() == [("u",)]
    other.close()
    await store.close()


async def test_every_commit_is_flushed_to_the_disk(path, open_store):
    store = await open_store()
    for pragma, expected in (("synchronous", 2), ("journal_mode", "wal")):
        async with store._database.execute(f"PRAGMA {pragma}") as rows:
            assert await rows.fetchone() == (expected,)
    await store.close()


@pytest.mark.parametrize("damage", ["no database", "torn page"])
async def test_damaged_file_is_kept_aside_and_an_empty_store_takes_its_place(
    path, open_store, caplog, damage
):
    store = await open_store()
    for number in range(500):
        store.put(QueueDefinition("/", f"queue-{number:04}"))
    await store.close()
    content = bytearray(path.read_bytes())
    start = 0 if damage == "no database" else len(content) // 2 // PAGE_BYTES * PAGE_BYTES
    content[start : start + 2000] = b"\xa5" * 2000
    path.write_bytes(content)

    with caplog.at_level(logging.ERROR):
        store = await open_store()
    assert await store.load() == Definitions()
    store.put(UserDefinition("u"))
    await store.close()
    assert path.with_name("leveret.db.damaged-1").read_bytes() == content
    assert "leveret.db.damaged-1" in caplog.text


async def test_second_damage_does_not_overwrite_the_first(path, open_store):
    for number in (1, 2):
        path.write_bytes(b"not a database, number %d" % number * 100)
        store = await open_store()
        await store.close()
    assert path.with_name("leveret.db.damaged-1").read_bytes().startswith(b"not a database, n")
    assert b"number 2" in path.with_name("leveret.db.damaged-2").read_bytes()


async def test_files_are_for_their_owner_alone(path, open_store):
    store = await open_store()
    store.put(UserDefinition("u", "hash"))
    await store.flush()
    files = list(path.parent.iterdir())
    assert {file.name for file in files} > {"leveret.db", "leveret.db-wal"}
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    await store.close()


async def test_newer_schema_is_refused_and_left_alone(path, open_store):
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    other.close()
    with pytest.raises(StorageError, match="newer release"):
        await open_store()
    assert [file.name for file in path.parent.iterdir() if "damaged" in file.name] == []


async def test_database_of_the_first_schema_is_brought_up_to_date(path, open_store):
    with sqlite3.connect(path) as other:
        for statement in MIGRATIONS[0]:
            other.execute(statement)
        other.execute("INSERT INTO vhosts VALUES ('/', 'the first', '[]', 'classic')")
        other.execute("INSERT INTO users VALUES ('guest', 'hash', '[\"administrator\"]')")
        other.execute("PRAGMA user_version = 1")
    other.close()
    store = await open_store()
    assert await store.load() == Definitions(
        vhosts=[VhostDefinition("/", "the first")],
        users=[UserDefinition("guest", "hash", ("administrator",))],
    )
    store.put(VhostDefinition("/", limits={"max-queues": 3}, protected_from_deletion=True))
    assert (await store.load()).vhosts[0].protected_from_deletion


async def test_directory_that_cannot_be_opened_is_a_storage_error(tmp_path, group):
    with pytest.raises(StorageError, match="nowhere"):
        await SqliteMetadataStore.open(tmp_path / "nowhere" / "leveret.db", group.create_task)


async def test_row_of_the_wrong_kind_is_a_storage_error(path, open_store):
    store = await open_store()
    await store._database.execute(
        "INSERT INTO queues VALUES ('/', 'q', 1, 0, 0, '{', '', '', '[]', '', 0, '')"
    )
    with pytest.raises(StorageError, match="bad row in queues"):
        await store.load()
    await store.close()


async def test_full_disk_is_raised_and_the_write_succeeds_later(path, open_store):
    store = await open_store()
    await store._database.execute("PRAGMA max_page_count = 1")
    # Larger than the pages the file has: SQLite answers as it does on a full disk.
    store.put(QueueDefinition("/", "q", arguments={"x": "y" * 100_000}))
    with pytest.raises(DiskFullError):
        await store.flush()
    assert store.pending
    store.put(UserDefinition("u"))
    await store._database.execute("PRAGMA max_page_count = 100000")
    await store.flush()
    definitions = await store.load()
    assert [queue.name for queue in definitions.queues] == ["q"]
    assert [user.name for user in definitions.users] == ["u"]
    await store.close()


async def test_cancelled_flush_loses_nothing(path, open_store, group):
    store = await open_store()
    for attempt in range(20):
        for number in range(50):
            store.put(QueueDefinition("/", f"q{attempt}-{number}"))
        task = group.create_task(store.flush())
        for _ in range(attempt % 5):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert len((await store.load()).queues) == 20 * 50
    await store.close()
