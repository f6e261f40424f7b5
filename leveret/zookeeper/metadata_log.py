"""Sequence of changes in ZooKeeper: read from where this node is, and written at its end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from leveret.cluster.metadata.changes import ChangeBatch, decode_batch, encode_batch
from leveret.cluster.metadata.encoding import MalformedError
from leveret.cluster.metadata.head import MetadataHead, decode_head, encode_head
from leveret.cluster.metadata.snapshots import SnapshotAssembly
from leveret.cluster.metadata.state import MetadataState
from leveret.errors import LeveretError
from leveret.ports.callbacks import call_each
from leveret.ports.coordination import (
    CoordinatorUnavailableError,
    CorruptZnodeError,
    KeyChange,
    OutcomeUnknownError,
)
from leveret.zookeeper.connection import (
    ConnectionInterruptedError,
    CreateZnode,
    SetZnode,
    ZnodeCheck,
    ZnodeOperation,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.cluster.metadata.head import SnapshotReference
    from leveret.cluster.metadata.state import StateImage
    from leveret.ports.coordination import ChangesCallback
    from leveret.zookeeper.connection import Znode, ZooKeeperConnection
    from leveret.zookeeper.layout import ZnodeLayout

__all__ = [
    "MetadataLog",
    "RefusedOperationError",
    "StaleHeadError",
    "corrupt_error",
    "log_fault",
    "naming",
]

log = logging.getLogger(__name__)


READS_MAX = 64  # changes asked for at a time: 16 MiB at most; a round trip is shared by as many
CHUNK_READS_MAX = 8  # chunks asked for at a time: 2 MiB
COMPARED_KEYS = 2000  # compared with a new snapshot in one go: a millisecond
# A batch that is under way when the connection breaks is sent again, on the same condition. After
# so many times a small one is sent in its place, which settles what has become of it.
TRIES_MAX = 5


class StaleHeadError(Exception):
    """Another node has written: nothing was, and the state has to catch up first."""


class RefusedOperationError(Exception):
    """ZooKeeper refused one of the operations that go with a batch; nothing was written."""

    def __init__(self, index: int, reason: Exception) -> None:
        """`index` is the operation's among those that the caller gave."""
        super().__init__(index, reason)
        self.index = index
        self.reason = reason


def corrupt_error(path: str, reason: str) -> CorruptZnodeError:
    """Return the error for a znode of the sequence that is malformed or missing."""
    return CorruptZnodeError(
        f"the znode {path} is not what Leveret has written: {reason}. Nodes that run have the "
        "right state in memory: keep them running, for the controller's next snapshot replaces the "
        "changes that cannot be read; else restore ZooKeeper's data from a backup"
    )


def log_fault(_callback: object, error: Exception) -> None:
    """Log that a follower has failed: all others, and this one later, are told what comes.

    Changes are not logged: they may have hashes of passwords.
    """
    log.error(
        "what follows the cluster's state has failed, which is a fault of Leveret: restart the "
        "node, and report it with what follows",
        exc_info=error,
    )


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Raise the error that names `path` for what turns out malformed."""
    try:
        yield
    except MalformedError as error:
        raise corrupt_error(path, str(error)) from None


class MetadataLog:
    """State of this node, and what leads it on. Whoever advances it or writes holds `lock`."""

    def __init__(self, connection: ZooKeeperConnection, layout: ZnodeLayout) -> None:
        self.state = MetadataState()
        self.lock = asyncio.Lock()
        self.writer = secrets.randbits(62) + 1
        self.head: MetadataHead  # as of the state
        self._counter = 0
        self._head_version = -1
        self._connection = connection
        self._layout = layout
        self._followers: list[ChangesCallback] = []

    def follow(self, callback: ChangesCallback) -> None:
        """Call `callback(sequence, changes)` whenever the state has advanced."""
        self._followers.append(callback)

    async def create(self) -> None:
        """Create the layout if it is not there; another node may be about to, too."""
        connection, layout = self._connection, self._layout
        parents = layout.root.split("/")[1:]
        for depth in range(1, len(parents) + 1):
            path = "/" + "/".join(parents[:depth])
            if not await connection.exists(path):
                await self._create_missing([CreateZnode(path, b"")])
        if not await connection.exists(layout.head):
            head = encode_head(MetadataHead(secrets.token_bytes(16)))
            below = (layout.changes, layout.snapshots, layout.nodes)
            await self._create_missing(
                [CreateZnode(layout.head, head), *(CreateZnode(path, b"") for path in below)]
            )

    async def _create_missing(self, operations: list[CreateZnode]) -> None:
        refused = await self._connection.commit(operations)
        if refused is not None and not isinstance(refused[1], NodeExistsError):
            raise refused[1]

    async def load(self) -> None:
        """Read the head, the snapshot and the changes behind it."""
        async with self.lock:
            await self._connection.sync(self._layout.head)
            self.head, self._head_version = await self._read_head()
            if self.head.snapshot.chunks:
                await self._load_snapshot(self.head.snapshot)
            await self.advance()

    async def look(self, watch: Callable[[], None]) -> None:
        """Advance if the head has; `watch()` is called once it does so again."""
        head, _ = await self._read_head(watch)
        if (head.cluster_id, head.sequence) != (self.head.cluster_id, self.state.sequence):
            async with self.lock:
                await self.advance()

    @property
    def unchanged(self) -> ZnodeCheck:
        """Condition that the state is the latest still."""
        return ZnodeCheck(self._layout.head, self._head_version)

    async def catch_up(self) -> None:
        """Advance to what all nodes had written before this call."""
        async with self.lock:
            await self.synchronize()

    async def synchronize(self) -> None:
        """Advance as `catch_up` does, with the lock held."""
        await self._connection.sync(self._layout.head)
        await self.advance()

    async def advance(self) -> None:
        """Read and apply what the head has beyond the state, with the lock held."""
        while True:
            head, version = await self._read_head()
            if head.cluster_id != self.head.cluster_id or head.sequence < self.state.sequence:
                raise CorruptZnodeError(
                    f"the znode {self._layout.head} is of another cluster, or older than what this "
                    f"node has seen ({head.sequence} after {self.state.sequence}): if ZooKeeper's "
                    "data was restored from a backup, start all nodes anew"
                )
            missing = await self._read_batches(head.sequence)
            if missing is None:
                self.head, self._head_version = head, version
                return
            if head.snapshot.sequence >= missing:
                await self._load_snapshot(head.snapshot)
                continue
            again, _ = await self._read_head()
            if again.snapshot.sequence < missing:
                raise corrupt_error(self._layout.batch(missing), "it is missing")

    async def _read_head(self, watch: Callable[[], None] | None = None) -> tuple[MetadataHead, int]:
        path = self._layout.head
        try:
            znode = await self._connection.get(path, watch)
        except NoNodeError:
            raise corrupt_error(path, "it is missing") from None
        with naming(path):
            return decode_head(znode.data, path), znode.version

    async def _read_batches(self, last: int) -> int | None:
        """Apply the batches up to `last`; return the number of the first one that is not there."""
        while self.state.sequence < last:
            first = self.state.sequence + 1
            numbers = range(first, min(last + 1, first + READS_MAX))
            reads = [self._connection.get(self._layout.batch(number)) for number in numbers]
            for number, found in zip(numbers, await _gather(reads), strict=True):
                if isinstance(found, NoNodeError):
                    return number
                if isinstance(found, BaseException):
                    raise found
                path = self._layout.batch(number)
                with naming(path):
                    self._apply(decode_batch(found.data, number, path))
        return None

    def _apply(self, batch: ChangeBatch) -> None:
        self.state.apply(batch)
        self._report(batch.changes)

    def _report(self, changes: Sequence[KeyChange]) -> None:
        sequence = self.state.sequence
        call_each([partial(each, sequence, changes) for each in self._followers], log_fault)

    async def _load_snapshot(self, reference: SnapshotReference) -> None:
        """Become the snapshot; nothing happens if it was replaced by another meanwhile."""
        image = await self._read_snapshot(reference)
        if image is None:
            head, _ = await self._read_head()
            if head.snapshot == reference:
                directory = self._layout.snapshot(reference.sequence, reference.token)
                raise corrupt_error(directory, "chunks of it are missing")
            return
        changes = await self._compare(image)
        self.state.restore(image, changes)
        self._report(changes)

    async def _compare(self, image: StateImage) -> list[KeyChange]:
        """Return the changes that lead to the image, which nobody needs at the start."""
        changes: list[KeyChange] = []
        if len(self.state) == 0:
            return changes
        gone = [key for key in self.state if key not in image.entries]
        for keys in (gone, list(image.entries)):
            for first in range(0, len(keys), COMPARED_KEYS):
                changes += self.state.difference(image, keys[first : first + COMPARED_KEYS])
                await asyncio.sleep(0)
        return changes

    async def _read_snapshot(self, reference: SnapshotReference) -> StateImage | None:
        directory = self._layout.snapshot(reference.sequence, reference.token)
        assembly = SnapshotAssembly(reference)
        for first in range(0, reference.chunks, CHUNK_READS_MAX):
            indexes = range(first, min(first + CHUNK_READS_MAX, reference.chunks))
            reads = [self._connection.get(f"{directory}/{index}") for index in indexes]
            for index, found in zip(indexes, await _gather(reads), strict=True):
                if isinstance(found, NoNodeError):
                    return None
                if isinstance(found, BaseException):
                    raise found
                path = f"{directory}/{index}"
                with naming(path):
                    await asyncio.to_thread(assembly.add, found.data, path)  # some milliseconds
        return assembly.image()

    async def commit(
        self, changes: Iterable[KeyChange], operations: Sequence[ZnodeOperation] = ()
    ) -> int:
        """Write a batch at the end, together with `operations`, and apply it; return its number.

        With the lock held, and for a state in which all its expectations hold. Raises
        StaleHeadError if another node has written in the meantime, ConnectionInterruptedError if
        even what it has written could not be read, and RefusedOperationError. It returns or raises
        these only once it is certain; until then it waits for a connection.
        """
        batch, version = self._next_batch(changes), self._head_version
        for tries in range(TRIES_MAX):
            number = await self._try(batch, operations, version, is_first=not tries)
            if number is not None:
                return number
        return await self._fence(batch, version)

    async def replace_snapshot(self, reference: SnapshotReference, changes_size: int) -> None:
        """Put a snapshot into the head, with the lock held.

        `changes_size` was the head's when the snapshot was begun. Raises StaleHeadError if that has
        not been done: another node has written, or the connection was lost.
        """
        size = max(0, self.head.changes_size - changes_size)
        head = self.head._replace(snapshot=reference, changes_size=size)
        version = self._head_version
        try:
            refused = await self._connection.commit(
                [SetZnode(self._layout.head, encode_head(head), version)]
            )
        except ConnectionInterruptedError:
            await self._connection.connected()
            await self.synchronize()
            raise StaleHeadError from None
        if refused is not None:
            await self.advance()
            raise StaleHeadError
        self.head, self._head_version = head, _version_after(version)

    def _next_batch(self, changes: Iterable[KeyChange]) -> ChangeBatch:
        self._counter += 1
        return ChangeBatch(self.writer, self._counter, self.state.sequence + 1, tuple(changes))

    async def _fence(self, batch: ChangeBatch, version: int) -> int:
        """Write an empty batch in place of one whose outcome cannot be found out."""
        fence = self._next_batch(())
        while True:
            try:
                number = await self._try(fence, (), version, is_first=False)
            except StaleHeadError:
                number = self.state.applied(batch.writer, batch.counter)
                if number is None:
                    raise
                return number
            if number is not None:
                raise CoordinatorUnavailableError(
                    f"ZooKeeper did not take {len(batch.changes)} changes in {TRIES_MAX} tries, "
                    "and they are given up: its jute.maxbuffer must be 1 MiB at least, as it is by "
                    "default, and its quotas must leave room"
                )

    async def _try(
        self,
        batch: ChangeBatch,
        operations: Sequence[ZnodeOperation],
        version: int,
        *,
        is_first: bool,
    ) -> int | None:
        """Send a batch once; return its number, None if it has to be sent again."""
        data = encode_batch(batch)
        head = self.head.after(batch.sequence, len(data))
        write = [
            SetZnode(self._layout.head, encode_head(head), version),
            CreateZnode(self._layout.batch(batch.sequence), data),
            *operations,
        ]
        try:
            refused = await self._connection.commit(write)
        except ConnectionInterruptedError:
            return await self._resolve(batch, version)
        if refused is None:
            self.head, self._head_version = head, _version_after(version)
            self._apply(batch)
            return batch.sequence
        index, reason = refused
        if index == 0 and isinstance(reason, BadVersionError):
            if not is_first:
                return await self._resolve(batch, version)
            await self.advance()
            raise StaleHeadError
        if index > 1:
            raise RefusedOperationError(index - 2, reason)
        raise corrupt_error(write[index].path, f"a write meets {type(reason).__name__}")

    async def _resolve(self, batch: ChangeBatch, version: int) -> int | None:
        """Return the number of a batch that was written, None if it has to be sent again.

        It has been, if it is in the state; it never will be, if the head has gone on without it.
        Otherwise it may still be on its way. Then it is sent once more, on the same condition, so
        that only one of the two can be taken. Raises StaleHeadError.
        """
        while True:
            await self._connection.connected()
            try:
                await self.synchronize()
                break
            except ConnectionInterruptedError:
                continue
            except LeveretError as error:
                raise OutcomeUnknownError(
                    f"what became of a write cannot be found out: {error}"
                ) from error
        number = self.state.applied(batch.writer, batch.counter)
        if number is None and self._head_version != version:
            raise StaleHeadError
        return number


def _version_after(version: int) -> int:
    """Return the next version of a znode, which is a number of 32 bits with a sign."""
    return (version + 1 + (1 << 31)) % (1 << 32) - (1 << 31)


async def _gather(reads: list[Coroutine[Any, Any, Znode]]) -> list[Znode | BaseException]:
    return await asyncio.gather(*reads, return_exceptions=True)
