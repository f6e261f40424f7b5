"""The SQLite store beyond its contract: damage, versions, failures."""

import asyncio
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
from leveret.storage.metadata import (
    ChangedDefinitionsError,
    DamagedDefinitionsError,
    SqliteMetadataStore,
)
from leveret.storage.schema import MIGRATIONS
from leveret.storage.sqlite_file import set_aside_database

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
@pytest.mark.parametrize("stop", ["clean", "killed"])
async def test_a_damaged_file_is_refused_and_left_as_it_is(path, open_store, damage, stop):
    store = await open_store()
    for number in range(500):
        store.put(QueueDefinition("/", f"queue-{number:04}"))
    await store.close()
    if stop == "killed":
        path.with_name("leveret.db.checksum").unlink()
    content = bytearray(path.read_bytes())
    start = 0 if damage == "no database" else len(content) // 2 // PAGE_BYTES * PAGE_BYTES
    content[start : start + 2000] = b"\xa5" * 2000
    path.write_bytes(content)
    with pytest.raises((DamagedDefinitionsError, ChangedDefinitionsError)):
        await open_store()
    with pytest.raises(DamagedDefinitionsError):
        await SqliteMetadataStore.open(path, None, as_it_is=True)
    assert path.read_bytes() == content
    assert not list(path.parent.glob("*damaged*"))


async def test_a_row_that_the_disk_has_changed_is_noticed(path, open_store):
    store = await open_store()
    store.put(QueueDefinition("/", "queue-0001"))
    await store.close()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"queue-0001", b"queue-0003"))
    with pytest.raises(ChangedDefinitionsError, match="not the file that the last stop has left"):
        await open_store()
    path.write_bytes(content)
    store = await open_store()
    assert [queue.name for queue in (await store.load()).queues] == ["queue-0001"]


async def test_changes_are_counted_and_the_identity_stays(path, open_store):
    store = await open_store()
    assert (store.changes, await store.is_new()) == (0, True)
    store.put(VhostDefinition("/"))
    await store.flush()
    assert (store.changes, await store.is_new()) == (1, False)
    store.remove(VhostDefinition("/"))
    await store.close()
    again = await open_store()
    assert (again.changes, again.identity) == (2, store.identity)
    assert not await again.is_new()  # somebody has emptied it


def test_set_aside_does_not_overwrite_what_was_set_aside_before(path):
    for number in (1, 2):
        path.write_bytes(b"number %d" % number)
        path.with_name("leveret.db-wal").write_bytes(b"journal %d" % number)
        assert set_aside_database(path).name == f"leveret.db.damaged-{number}"
    assert path.with_name("leveret.db.damaged-1").read_bytes() == b"number 1"
    assert path.with_name("leveret.db.damaged-2-wal").read_bytes() == b"journal 2"
    assert not path.exists()


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
        "INSERT INTO queues VALUES ('/', 'q', 1, 0, 0, '{', '', '', '[]', '', 0, '', NULL)"
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


async def test_a_virtual_host_that_goes_while_the_disk_is_full_does_not_come_back(path, open_store):
    store = await open_store()
    for name in ("old", "new"):
        store.put(QueueDefinition("v", name))
        await store.flush()
    await store._database.execute("PRAGMA max_page_count = 1")
    store.put(QueueDefinition("v", "q", arguments={"x": "y" * 100_000}))
    with pytest.raises(DiskFullError):
        await store.flush()
    store.remove_vhost("v")
    store.put(QueueDefinition("v", "large", arguments={"x": "y" * 100_000}))
    with pytest.raises(DiskFullError):
        await store.flush()
    store.put(QueueDefinition("v", "new"))
    await store._database.execute("PRAGMA max_page_count = 100000")
    await store.flush()
    assert [queue.name for queue in (await store.load()).queues] == ["large", "new"]
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
