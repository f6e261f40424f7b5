"""Definitions that are gone, damaged or older than their logs: no node begins with them."""

import asyncio
import logging
import shutil

import pytest

from leveret.errors import StorageError
from leveret.ports.definitions import QueueDefinition, UserDefinition, VhostDefinition
from leveret.ports.losses import LossKind
from leveret.storage.files import RealFileSystem
from leveret.storage.lineage import (
    DefinitionsLostError,
    check_lineage,
    older_data,
    open_definitions,
)
from leveret.storage.losses import LossLedger
from leveret.storage.state import MemoryStateStore


class Directory:
    """A data directory that a node has used."""

    def __init__(self, data):
        self.data = data
        self.path = data / "leveret.db"
        self.state = MemoryStateStore()

    @property
    def losses(self):
        return LossLedger(RealFileSystem(), self.data, lambda: 1, logging.error)

    async def start(self, *, accept=False, then=None):
        """Open, compare, perhaps change, close. Returns the names of users and of vhosts."""
        try:
            async with asyncio.TaskGroup() as group:
                losses = self.losses
                before = losses.has(LossKind.DEFINITIONS)
                store = await open_definitions(self.data, group.create_task, losses, accept=accept)
                try:
                    is_accepted = losses.has(LossKind.DEFINITIONS) is not before
                    check_lineage(
                        store, self.state, self.path, losses, accept=accept, is_accepted=is_accepted
                    )
                    if await store.is_new():
                        then = [VhostDefinition("/"), UserDefinition("guest"), *(then or ())]
                    for definition in then or ():
                        store.put(definition)
                    await store.flush()
                    found = await store.load()
                    check_lineage(store, self.state, self.path, losses)
                finally:
                    await store.close()
        except* StorageError as group:
            raise group.exceptions[0] from None
        return [user.name for user in found.users], [vhost.name for vhost in found.vhosts]

    def use(self):
        log = self.data / "topics/%2F/q~~i/0"
        log.mkdir(parents=True)
        (log / f"{0:020}.log").write_bytes(b"messages")
        (self.data / "audit.db").write_bytes(b"records")


@pytest.fixture
async def directory(tmp_path):
    directory = Directory(tmp_path)
    assert older_data(tmp_path) == []
    assert await directory.start(then=[UserDefinition("admin")]) == (["admin", "guest"], ["/"])
    directory.use()
    return directory


async def test_sound_definitions_go_on(directory):
    assert await directory.start() == (["admin", "guest"], ["/"])
    assert directory.losses.unacknowledged == []


def remove(directory):
    directory.path.unlink()


def empty(directory):
    directory.path.write_bytes(b"")


def damage(directory):
    directory.path.write_bytes(b"garbage" * 3000)


@pytest.mark.parametrize("harm", [remove, empty, damage])
async def test_lost_definitions_are_refused_until_that_is_accepted(directory, harm):
    harm(directory)
    before = directory.path.read_bytes() if directory.path.exists() else None
    for _ in range(2):
        with pytest.raises(DefinitionsLostError, match="--accept-loss definitions"):
            await directory.start()
        assert (directory.path.read_bytes() if directory.path.exists() else None) == before
    assert await directory.start(accept=True) == ([], ["/"])  # nobody, and no guest
    (loss,) = directory.losses.unacknowledged
    assert loss.kind is LossKind.DEFINITIONS
    kept = directory.path.with_name("leveret.db.damaged-1")
    assert (kept.read_bytes() if kept.exists() else None) == before
    assert await directory.start() == ([], ["/"])

    harm(directory)
    with pytest.raises(DefinitionsLostError, match="works once"):
        await directory.start(accept=True)
    directory.losses.acknowledge(None)
    assert await directory.start(accept=True) == ([], ["/"])


async def test_an_older_copy_is_refused_until_that_is_accepted(directory):
    shutil.copy(directory.path, directory.path.with_name("backup"))
    await directory.start(then=[QueueDefinition("/", "later")])
    shutil.copy(directory.path.with_name("backup"), directory.path)
    with pytest.raises(DefinitionsLostError, match="not the file that the last stop has left"):
        await directory.start()
    directory.path.with_name("leveret.db.checksum").unlink()  # as after a crash
    with pytest.raises(DefinitionsLostError, match=r"older than the logs .* its last 1 changes"):
        await directory.start()
    assert await directory.start(accept=True) == (["admin", "guest"], ["/"])
    assert await directory.start() == (["admin", "guest"], ["/"])
    assert not list(directory.data.glob("*.damaged-*"))


async def test_definitions_of_another_directory_are_refused(directory, tmp_path_factory):
    other = Directory(tmp_path_factory.mktemp("other"))
    await other.start(then=[UserDefinition(f"user-{number}") for number in range(9)])
    shutil.copy(other.path, directory.path)
    shutil.copy(
        other.path.with_name("leveret.db.checksum"),
        directory.path.with_name("leveret.db.checksum"),
    )
    with pytest.raises(DefinitionsLostError, match="not the file that belongs to the logs"):
        await directory.start()


async def test_an_empty_database_beside_logs_is_refused(directory):
    directory.path.unlink()
    directory.path.with_name("leveret.db.checksum").unlink()
    fresh = Directory(directory.data / "fresh")
    fresh.data.mkdir()
    async with asyncio.TaskGroup() as group:
        store = await open_definitions(fresh.data, group.create_task, fresh.losses)
        await store.close()
    shutil.copy(fresh.path, directory.path)
    with pytest.raises(DefinitionsLostError, match=r"holds no definitions, but audit\.db, topics/"):
        await directory.start()
    assert await directory.start(accept=True) == ([], ["/"])


async def test_a_first_start_that_was_killed_is_a_first_start_again(tmp_path):
    directory = Directory(tmp_path)
    directory.path.touch()
    assert await directory.start() == (["guest"], ["/"])
    directory.path.unlink()
    directory.path.with_name("leveret.db.checksum").unlink()
    directory.state = MemoryStateStore()
    async with asyncio.TaskGroup() as group:
        store = await open_definitions(tmp_path, group.create_task, directory.losses)
        await store.close()
    (tmp_path / "state.lmdb").mkdir()
    (tmp_path / "topics/%/leveret.transactions~~node/0").mkdir(parents=True)
    assert await directory.start() == (["guest"], ["/"])


async def test_state_that_begins_anew_is_mentioned(directory, caplog):
    directory.state = MemoryStateStore()
    assert await directory.start() == (["admin", "guest"], ["/"])
    assert "the state store beside" in caplog.text


async def test_in_a_cluster_the_coordinator_has_the_definitions(tmp_path):
    directory = Directory(tmp_path)
    for _ in range(2):
        async with asyncio.TaskGroup() as group:
            losses = directory.losses
            opened = open_definitions(tmp_path, group.create_task, losses, in_cluster=True)
            await (await opened).close()
        (tmp_path / "audit.db").write_bytes(b"records of an earlier run")
    (tmp_path / "audit.db").unlink()
    await directory.start()
    async with asyncio.TaskGroup() as group:
        opened = open_definitions(tmp_path, group.create_task, directory.losses, in_cluster=True)
        with pytest.raises(StorageError, match="a node by itself"):
            await opened
