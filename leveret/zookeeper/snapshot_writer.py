"""Snapshots of the state, made by the controller, and removal of what they replace."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError

from leveret.cluster.metadata.head import SnapshotReference
from leveret.cluster.metadata.snapshots import encode_snapshot, is_snapshot_due
from leveret.errors import LeveretError
from leveret.zookeeper.connection import ConnectionInterruptedError, DeleteZnode
from leveret.zookeeper.metadata_log import StaleHeadError

if TYPE_CHECKING:
    from leveret.cluster.metadata.state import StateImage
    from leveret.zookeeper.connection import ZooKeeperConnection
    from leveret.zookeeper.election import ControllerElection
    from leveret.zookeeper.layout import ZnodeLayout
    from leveret.zookeeper.metadata_log import MetadataLog

__all__ = ["SnapshotWriter"]

log = logging.getLogger(__name__)

CHANGES_KEPT = 1000  # behind a snapshot: a node that lags a little need not read all of it
DELETES_MAX = 500  # in a transaction: 50 kB
RETRY_SECONDS = 10.0

# A write to a snapshot directory that another controller has removed, or that is there already.
_OVERTAKEN = (NoNodeError, NodeExistsError, NotEmptyError, BadVersionError)


class SnapshotWriter:
    """Makes a snapshot when one is due, while this node is the controller."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        metadata: MetadataLog,
        layout: ZnodeLayout,
        election: ControllerElection,
    ) -> None:
        self._connection = connection
        self._metadata = metadata
        self._layout = layout
        self._election = election
        self._due = asyncio.Event()

    def check(self) -> None:
        """Begin with a snapshot if one is due; to be called whenever the state has advanced."""
        if self._election.is_controller and is_snapshot_due(self._metadata.head):
            self._due.set()

    async def run(self) -> None:
        """Make snapshots for ever."""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                await self.write()
            except (ConnectionInterruptedError, *_OVERTAKEN):
                await asyncio.sleep(RETRY_SECONDS)
                self.check()
            except LeveretError as error:
                log.error("no snapshot of the cluster's metadata was made: %s", error)  # noqa: TRY400
                await asyncio.sleep(RETRY_SECONDS)

    async def write(self) -> None:
        """Write a snapshot, put it into the head, and remove what it replaces."""
        changes_size = self._metadata.head.changes_size
        reference = await self._write_chunks(self._metadata.state.image())
        while True:
            try:
                async with self._metadata.lock:
                    if self._metadata.head.snapshot.sequence < reference.sequence:
                        await self._metadata.replace_snapshot(reference, changes_size)
                break
            except StaleHeadError:
                continue
        # A snapshot is only replaced by a later one. So what is older than one that was in the head
        # is needed by nobody, whoever has replaced that since.
        last = self._metadata.head.snapshot
        await self._remove_batches(last.sequence - CHANGES_KEPT)
        await self._remove_snapshots(self._layout.snapshot(last.sequence, last.token))

    async def _write_chunks(self, image: StateImage) -> SnapshotReference:
        token = secrets.randbits(63)
        directory = self._layout.snapshot(image.sequence, token)
        await self._connection.create(directory)
        chunks = encode_snapshot(image)
        size = count = 0
        # In a thread, as each takes ten milliseconds; nobody changes the image.
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            await self._connection.create(f"{directory}/{count}", chunk)
            count, size = count + 1, size + len(chunk)
        return SnapshotReference(image.sequence, token, count, size)

    async def _remove_batches(self, last: int) -> None:
        names = await self._connection.children(self._layout.changes)
        old = [name for name in names if name.isdecimal() and int(name) <= last]
        await self._remove([f"{self._layout.changes}/{name}" for name in sorted(old)])

    async def _remove_snapshots(self, kept: str) -> None:
        """Remove the snapshots older than this one, those that were never finished included."""
        for name in await self._connection.children(self._layout.snapshots):
            directory = f"{self._layout.snapshots}/{name}"
            if directory != kept and directory.partition("-")[0] <= kept.partition("-")[0]:
                chunks = await self._connection.children(directory)
                await self._remove([f"{directory}/{chunk}" for chunk in chunks])
                await self._remove([directory])

    async def _remove(self, paths: list[str]) -> None:
        for first in range(0, len(paths), DELETES_MAX):
            refused = await self._connection.commit(
                [DeleteZnode(path) for path in paths[first : first + DELETES_MAX]]
            )
            if refused is not None:
                raise refused[1]
