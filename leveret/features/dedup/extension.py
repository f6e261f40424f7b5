"""De-duplication window of a queue, as its extension.

The window itself (leveret.features.dedup.window) is that of exchanges, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.extensions import Demand, ExtensionKind, QueueExtension
from leveret.features.dedup.window import DedupWindow

if TYPE_CHECKING:
    from leveret.core.dependencies import CoreServices
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports import SharedLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch, BatchBuilder

__all__ = ["QueueWindow", "QueueWindows", "queue_window_id", "window_of", "windows_of"]

READER = "de-duplication"  # of the log, which keeps the records of the window for it
KEY_BYTES = 72  # memory of a key, which takes 48 to 96


class QueueWindows(ExtensionKind):
    """De-duplication windows of a node's queues."""

    for_streams = True

    def __init__(self, services: CoreServices, keys_max: int) -> None:
        self._services = services
        self._keys_max = keys_max

    def follow(
        self, queue: OpenQueue, present: QueueWindow | None, demand: Demand
    ) -> QueueWindow | None:
        """See ExtensionKind. A queue that had a window keeps it, as long as it is open."""
        if present is None and queue.settings.dedup_window_ms is not None:
            present = QueueWindow(queue, self._services, self._keys_max)
            if demand.opening:
                present.window.open()
            else:
                present.window.begin()
        return present

    def acts_alone(
        self, _definition: QueueDefinition, settings: QueueSettings, _partition: int
    ) -> bool:
        """Whether the queue has a window: it is restored, and then forgets what is too old."""
        return settings.dedup_window_ms is not None


class QueueWindow(QueueExtension):
    """De-duplication of one queue, while its settings enable it."""

    outlives_reordering = True

    def __init__(self, queue: OpenQueue, services: CoreServices, keys_max: int) -> None:
        self._queue = queue
        self.is_on = True
        keeps = queue.definition.durable and not queue.definition.exclusive
        self.window = DedupWindow(self, services, keys_max, keeps=keeps)

    def __str__(self) -> str:
        return str(self._queue)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Enable or disable de-duplication."""
        is_on = settings.dedup_window_ms is not None
        if is_on == self.is_on:
            return
        self.is_on = is_on
        if is_on:
            self.window.begin()
        else:
            self.window.end()
            self.log.keep_from(READER, None)

    # -- as the owner of a window (see Windowed)

    @property
    def log(self) -> SharedLog:
        """Log of the queue."""
        return self._queue.log

    @property
    def deleted(self) -> bool:
        """Whether the queue was deleted."""
        return self._queue.deleted

    @property
    def held(self) -> bool:
        """Whether the queue appends nothing until the window is restored."""
        return self._queue.held

    @held.setter
    def held(self, held: bool) -> None:
        self._queue.held = held

    @property
    def window_ms(self) -> int:
        """Length of the window in ms; 0 while it is disabled."""
        return self._queue.settings.dedup_window_ms or 0

    @property
    def window_id(self) -> bytes:
        """Id of the window in the state store."""
        return queue_window_id(self._queue.definition.incarnation, self._queue.number)

    def keep_from(self, offset: int) -> None:
        """Keep records from `offset` on in the log, settled or not, for the window."""
        self.log.keep_from(READER, offset)

    def resume(self) -> None:
        """Resume appending: the window is restored."""
        self._queue.release()

    # -- as an extension

    @property
    def recovers(self) -> bool:  # type: ignore[override]
        """Whether the log holds keys that the window lacks."""
        return self.window.is_incomplete

    @property
    def scans_from(self) -> int | None:  # type: ignore[override]
        """Offset of the first record whose key the window lacks; None if it lacks none."""
        return self.window.complete if self.window.is_incomplete else None

    async def recover(self) -> None:
        """Find the first record of the window."""
        await self.window.find_first()

    def scanned(self, batch: Batch) -> None:
        """Add the keys of a batch."""
        self.window.restore(batch)

    def recovered(self) -> None:
        """Let publishers go on."""
        self.window.restored()

    @property
    def held_bytes(self) -> int:  # type: ignore[override]
        """Estimated memory of the keys."""
        return self.window.key_count * KEY_BYTES if self.is_on else 0

    def drop_duplicates(self, records: BatchBuilder) -> None:
        """Drop duplicates from the records to be appended, and add the keys of the others."""
        if self.is_on:
            self.window.admit(records)

    def undone(self, first: int, stop: int) -> bool:
        """Remove the keys of undone records. Publishers of duplicates may wait for them."""
        if self.is_on:
            self.window.forget(first, stop)
        return self.is_on

    def truncated(self, offset: int) -> None:  # noqa: ARG002  # it is the log's end
        """Remove the keys of records that were lost before their commit."""
        if self.is_on:
            self.window.truncate()

    def close(self) -> None:
        """Leave no cycle: the queue was deleted."""
        self.window.close()

    def delete(self) -> None:
        """Remove all keys: the queue was deleted."""
        if self.is_on:
            self.window.end()


def queue_window_id(incarnation: str, partition: int) -> bytes:
    """Return the id of a partition's window in the state store."""
    return (f"{incarnation}.{partition}" if partition else incarnation).encode()


def windows_of(queue: DeclaredQueue) -> list[DedupWindow]:
    """Return the windows of a queue's partitions; none while de-duplication is disabled."""
    found = map(window_of, queue.partitions)
    return [window for window in found if window is not None]


def window_of(queue: OpenQueue) -> DedupWindow | None:
    """Return the window of a queue; None while de-duplication is disabled."""
    extension = queue.extension(QueueWindow)
    return extension.window if extension is not None and extension.is_on else None
