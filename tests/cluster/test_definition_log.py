"""The log of definitions, beyond the contract of all stores of definitions."""

import asyncio
import json
import sqlite3
from contextlib import suppress

import pytest

from leveret.cluster.definition_log import share_definitions, take_definitions
from leveret.errors import DiskFullError, StorageError
from leveret.ports.contents import encode_properties
from leveret.ports.definitions import (
    BindingDefinition,
    Definitions,
    PermissionDefinition,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.ports.partitioner import KEY_HEADER
from leveret.storage.lineage import DefinitionsLostError
from leveret.storage.metadata import SqliteMetadataStore
from tests.cluster.definitions import definition_log, definitions_shared
from tests.storage.test_replica_machine import Copies
from tests.support.waiting import eventually

QUEUE = QueueDefinition("/", "orders", incarnation="1")


@pytest.fixture
async def databases(tmp_path):
    """Opens the database of a node, by its number."""
    async with asyncio.TaskGroup() as group:
        opened = []

        async def open_one(number):
            store = await SqliteMetadataStore.open(tmp_path / f"{number}.db", group.create_task)
            opened.append(store)
            return store

        yield open_one
        for store in opened:
            store.write_ahead = None
            await store.close()


async def test_definitions_of_the_first_node_are_those_of_the_cluster(tmp_path, databases):
    first, second = await databases(1), await databases(2)
    first.put(VhostDefinition("/"))
    first.put(QUEUE)
    second.put(UserDefinition("of a node that was alone"))
    async with definitions_shared(tmp_path, first):
        pass
    async with definitions_shared(tmp_path, second):
        assert await second.load() == await first.load()


@pytest.fixture
def small_batches(monkeypatch):
    """Has each definition written as a batch of its own."""
    monkeypatch.setattr("leveret.cluster.definition_log.BATCH_BYTES_MAX", 0)


async def _defined(store):
    """Define four virtual hosts, and return them."""
    for number in range(4):
        store.put(VhostDefinition(f"v{number}"))
    await store.flush()
    return await store.load()


async def _share_until_it_fails(path, store, batches):
    """Share definitions, with a disk that has room for so many batches only."""
    async with definition_log(path) as log:
        _limit(log, batches)
        with pytest.raises(DiskFullError):
            await share_definitions(store, log)
    assert store.write_ahead is None


def _limit(log, batches):
    """Have a log of definitions refuse what comes after so many batches."""
    append = log._log.append

    def append_or_fail():
        nonlocal batches
        if not batches:
            raise DiskFullError("no room")
        batches -= 1
        append()

    log._log = Refusing(log._log, append_or_fail)


# Four of them are definitions, and then only the record is missing that says that these are all.
@pytest.mark.parametrize("batches", [0, 1, 3, 4])
@pytest.mark.usefixtures("small_batches")
async def test_a_first_start_that_was_interrupted_loses_nothing(tmp_path, databases, batches):
    first, second = await databases(1), await databases(2)
    wanted = await _defined(first)
    await _share_until_it_fails(tmp_path, first, batches)
    for store in (first, second):
        async with definitions_shared(tmp_path, store):
            assert await store.load() == wanted


@pytest.mark.usefixtures("small_batches")
async def test_what_an_interrupted_first_start_has_written_may_be_gone_since(tmp_path, databases):
    first, second = await databases(1), await databases(2)
    await _defined(first)
    await _share_until_it_fails(tmp_path, first, 2)
    first.remove_vhost("v0")
    await first.flush()
    wanted = await first.load()
    assert len(wanted.vhosts) == 3
    for store in (first, second):
        async with definitions_shared(tmp_path, store):
            assert await store.load() == wanted


@pytest.mark.usefixtures("small_batches")
async def test_a_node_that_leaves_takes_all_definitions_or_keeps_its_own(tmp_path, databases):
    first, second = await databases(1), await databases(2)
    wanted = await _defined(first)
    await _share_until_it_fails(tmp_path, first, 2)
    async with definition_log(tmp_path) as log:
        await take_definitions(first, log)
    assert await first.load() == wanted
    async with definitions_shared(tmp_path, first):
        pass
    async with definition_log(tmp_path) as log:
        await take_definitions(second, log)
    assert await second.load() == wanted


@pytest.mark.parametrize("use", [share_definitions, take_definitions])
@pytest.mark.usefixtures("small_batches")
async def test_some_of_the_definitions_are_not_taken_for_all(tmp_path, databases, use):
    first, lost = await databases(1), await databases(2)
    await _defined(first)
    await _share_until_it_fails(tmp_path, first, 2)
    async with definition_log(tmp_path) as log:
        with pytest.raises(DefinitionsLostError, match="only some of the definitions"):
            await use(lost, log)
    assert await lost.is_new()


async def test_other_tasks_run_between_rows(tmp_path, databases, monkeypatch):
    monkeypatch.setattr("leveret.cluster.definition_log.ROWS_AT_ONCE", 1)
    first = await databases(1)
    await _defined(first)
    rows, turns = await first.rows(), 0
    loop = asyncio.get_running_loop()

    def turn():
        nonlocal turns
        turns += 1
        other[0] = loop.call_soon(turn)

    async with definition_log(tmp_path) as log:
        other = [loop.call_soon(turn)]
        await log.append(rows)
        assert turns >= len(rows)
        turns = 0
        assert (await log.read()).rows == rows
        assert turns >= len(rows)
        other[0].cancel()


async def test_nothing_of_cancelled_changes_is_written(tmp_path, databases, monkeypatch):
    monkeypatch.setattr("leveret.cluster.definition_log.ROWS_AT_ONCE", 1)
    first = await databases(1)
    await _defined(first)
    rows = await first.rows()
    async with definition_log(tmp_path) as log:
        append = asyncio.get_running_loop().create_task(log.append(rows))
        await asyncio.sleep(0)
        assert log._log.builder.count
        append.cancel()
        await asyncio.wait([append])
        await log.append(dict([rows.popitem()]))
        assert len((await log.read()).rows) == 1


async def _large_vhost(store):
    """Define a virtual host whose deletion needs more than a mebibyte."""
    store.put(VhostDefinition("/"))
    store.put(VhostDefinition("t"))
    store.put(PermissionDefinition("t", "somebody", ".*", ".*", ".*"))
    for number in range(12):
        arguments = {"x": "y" * 100_000}
        store.put(BindingDefinition("t", "amq.headers", f"q{number}", "queue", "", arguments))
    await store.flush()
    return await store.load()


@pytest.mark.parametrize("batches", [0, 1])
async def test_a_virtual_host_is_deleted_as_a_whole_or_not_at_all(tmp_path, databases, batches):
    first, second = await databases(1), await databases(2)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        before = await _large_vhost(first)
        _limit(log, batches)
        first.remove_vhost("t")
        with suppress(DiskFullError):
            await first.flush()
        first.write_ahead = None
    async with definitions_shared(tmp_path, second):
        found = await second.load()
    assert found == (Definitions(vhosts=[VhostDefinition("/")]) if batches else before)


@pytest.mark.parametrize("batches", [1, 13])
@pytest.mark.usefixtures("small_batches")
async def test_a_deletion_of_several_batches_can_be_repeated(tmp_path, databases, batches):
    first, second = await databases(1), await databases(2)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        await _large_vhost(first)
        _limit(log, batches)
        first.remove_vhost("t")
        with pytest.raises(DiskFullError):
            await first.flush()
        first.write_ahead = None
    async with definitions_shared(tmp_path, second) as log:
        assert [vhost.name for vhost in (await second.load()).vhosts] == ["/", "t"]
        second.remove_vhost("t")
        await _is_as_the_log_says(second, log)
        assert await second.load() == Definitions(vhosts=[VhostDefinition("/")])


async def test_a_change_is_in_the_database_once_it_is_committed(tmp_path, databases):
    first = await databases(1)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        log._log.copy_to(Copies())
        first.put(QUEUE)
        flush = asyncio.get_running_loop().create_task(first.flush())
        await eventually(lambda: log._log.end == 2)
        await asyncio.sleep(0.05)
        assert not flush.done()
        assert (await _rows(tmp_path / "1.db")) == 0
        log._log.replicated(log._log.place, log._log.end)
        await flush
        assert (await _rows(tmp_path / "1.db")) == 1


async def _rows(path):
    with sqlite3.connect(path) as database:
        count = database.execute("SELECT COUNT(*) FROM queues").fetchone()[0]
    database.close()
    return count


async def test_what_the_log_has_no_room_for_is_tried_again(tmp_path, databases):
    first = await databases(1)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        append = log._log.append

        def full():
            log._log.append = append
            raise DiskFullError("no room")

        log._log = Refusing(log._log, full)
        first.put(QUEUE)
        with pytest.raises(DiskFullError):
            await first.flush()
        assert first.pending
        log._log = log._log.log
        await first.flush()
        assert [queue.name for queue in (await first.load()).queues] == ["orders"]
        assert len((await log.read()).rows) == 1


class Refusing:
    """A log that has an `append` of its own."""

    def __init__(self, log, refuse):
        self.log, self.append = log, refuse

    def __getattr__(self, name):
        return getattr(self.log, name)


async def test_what_a_log_fails_to_store_is_written_again(tmp_path, databases, caplog):
    first = await databases(1)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        log._log.copy_to(Copies())
        first.put(QUEUE)
        flush = asyncio.get_running_loop().create_task(first.flush())
        await eventually(lambda: log._waiting)
        log._failed(StorageError("a disk"))
        await eventually(lambda: log._log.end == 3)
        assert "definitions are not durable yet: a disk" in caplog.text
        log._log.replicated(log._log.place, log._log.end)
        await flush
        assert not first.pending
        assert len((await log.read()).rows) == 1


async def _vhost(store):
    """Define a virtual host that will be deleted; return what is put into it before."""
    store.put(VhostDefinition("/"))
    store.put(VhostDefinition("t", incarnation="internal-1"))
    await store.flush()
    large = QueueDefinition("t", "q", arguments={"x": "y" * 100_000})
    return [PermissionDefinition("t", "somebody", ".*", ".*", ".*"), large]


async def _put_into_the_log_only(store, definitions):
    """Have the database, whose disk is full from now on, refuse what the log has taken."""
    await store._database.execute("PRAGMA max_page_count = 1")
    for definition in definitions:
        store.put(definition)
    for _ in range(2):  # the second one waits for what was begun in the background
        with pytest.raises(DiskFullError):
            await store.flush()


async def _is_as_the_log_says(store, log):
    await store.flush()
    assert (await log.read()).rows == await store.rows()


@pytest.mark.parametrize("made_anew", [False, True])
async def test_what_only_the_log_has_goes_with_its_virtual_host(tmp_path, databases, made_anew):
    first = await databases(1)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        contents = await _vhost(first)
        await _put_into_the_log_only(first, contents)
        assert len((await log.read()).rows) == 4
        first.remove_vhost("t")
        if made_anew:
            first.put(VhostDefinition("t", incarnation="internal-2"))
        await first._database.execute("PRAGMA max_page_count = 100000")
        await _is_as_the_log_says(first, log)
        assert len(await first.rows()) == (2 if made_anew else 1)


async def test_what_is_being_written_goes_with_its_virtual_host(tmp_path, databases):
    first = await databases(1)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        contents = await _vhost(first)
        log._log.copy_to(Copies())
        for definition in contents:
            first.put(definition)
        flush = asyncio.get_running_loop().create_task(first.flush())
        await eventually(lambda: log._waiting)
        first.remove_vhost("t")
        log._failed(StorageError("a disk"))
        await eventually(lambda: log._waiting)
        log._log.replicated(log._log.place, log._log.end)
        await asyncio.wait([flush])
        await _is_as_the_log_says(first, log)
        assert (await first.load()).vhosts == [VhostDefinition("/")]


@pytest.mark.parametrize("change", ["removed", "replaced"])
async def test_what_only_the_log_has_can_be_changed(tmp_path, databases, change):
    first = await databases(1)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        contents = await _vhost(first)
        await _put_into_the_log_only(first, contents)
        for definition in contents:
            if change == "removed":
                first.remove(definition)
            else:
                first.put(PermissionDefinition("t", "somebody"))
        await first._database.execute("PRAGMA max_page_count = 100000")
        await _is_as_the_log_says(first, log)


@pytest.mark.parametrize("removed", [False, True])
async def test_compaction_changes_nothing(tmp_path, databases, removed):
    first, second = await databases(1), await databases(2)
    async with definition_log(tmp_path, segment_bytes_max=4096) as log:
        await share_definitions(first, log)
        first.put(VhostDefinition("/"))
        first.put(VhostDefinition("other"))
        for number in range(60):
            first.put(QueueDefinition("/", f"q{number % 4}", incarnation=str(number)))
            first.put(QueueDefinition("other", f"q{number}"))
            await first.flush()
        if removed:
            first.remove_vhost("other")
            await first.flush()
        log._log._services.may_compact(log._log.directory)
        await eventually(lambda: log._log.compacted.rewritten)
        wanted = await first.load()
    async with definitions_shared(tmp_path, second):
        assert await second.load() == wanted
    assert len(wanted.queues) == (4 if removed else 64)


def record(name, key, body):
    headers = {KEY_HEADER: json.dumps([name, *key])}
    return encode_properties({"headers": headers}, len(body)), body


async def test_rows_of_other_releases(tmp_path, databases):
    later = json.dumps({"name": "later", "tags": "[]", "colour": "blue"}).encode()
    async with definition_log(tmp_path) as log:
        for header, body in (
            record("users", ["later"], later),
            record("leases", ["x"], b'{"name": "x"}'),
            record("complete", [], b"{}"),
        ):
            log._log.builder.add(1, 0, b"", b"", header, body)
        log._log.append()
        await eventually(lambda: log._log.committed == 3)
    first = await databases(1)
    async with definitions_shared(tmp_path, first):
        assert (await first.load()).users == [UserDefinition("later")]


@pytest.mark.parametrize(
    "made",
    [
        (encode_properties({}, 2), b"{}"),
        (encode_properties({"headers": {KEY_HEADER: "["}}, 2), b"{}"),
        record("users", ["x"], b"no JSON"),
        record("users", ["x"], b'{"tags": "[]"}'),
    ],
)
async def test_records_that_nobody_understands_are_refused(tmp_path, databases, made):
    async with definition_log(tmp_path) as log:
        log._log.builder.add(1, 0, b"", b"", *made)
        log._log.append()
        await eventually(lambda: log._log.committed == 1)
        with pytest.raises(StorageError, match="this release cannot read"):
            await share_definitions(await databases(1), log)
