"""The log of definitions, beyond the contract of all stores of definitions."""

import asyncio
import json
import sqlite3

import pytest

from leveret.cluster.definition_log import KEY_HEADER, share_definitions
from leveret.errors import DiskFullError, StorageError
from leveret.ports.contents import encode_properties
from leveret.ports.definitions import QueueDefinition, UserDefinition, VhostDefinition
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


async def test_a_change_is_in_the_database_once_it_is_committed(tmp_path, databases):
    first = await databases(1)
    async with definition_log(tmp_path) as log:
        await share_definitions(first, log)
        log._log.copy_to(Copies())
        first.put(QUEUE)
        flush = asyncio.get_running_loop().create_task(first.flush())
        await eventually(lambda: log._log.end == 1)
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
        assert len(await log.rows()) == 1


class Refusing:
    """A log that refuses what is appended."""

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
        await eventually(lambda: log._log.end == 2)
        assert "definitions are not durable yet: a disk" in caplog.text
        log._log.replicated(log._log.place, log._log.end)
        await flush
        assert not first.pending
        assert len(await log.rows()) == 1


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
        ):
            log._log.builder.add(1, 0, b"", b"", header, body)
        log._log.append()
        await eventually(lambda: log._log.committed == 2)
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
