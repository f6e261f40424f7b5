"""Changes of the partitions of queues in use: more of them, fewer, and the end of retired ones.

A change is stored before anything is published to a new partition, and before the files of an old
one are deleted: a crash leaves the partitions as they were, or as they will be, with all that was
confirmed. Files of a partition that is no longer there are deleted when its queue is opened.

A retired partition takes no publishes. It is removed once nothing is left to be read: no message of
a queue, no record that retention keeps, nothing that a group has not settled. It goes from memory
first: what somebody wrote to it while its removal is stored would be deleted with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.core.definitions.validation import AdministrationError
from leveret.core.settings.partitioning import PARTITIONS, PARTITIONS_MAX, layout_of
from leveret.errors import StorageError
from leveret.features.topics.layout import resized, without

if TYPE_CHECKING:
    from leveret.core.dependencies import CoreServices
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.partitioned_queue import PartitionedQueue
    from leveret.features.groups.groups import ConsumerGroups
    from leveret.ports import MetadataStore, TopicStore
    from leveret.ports.definitions import PartitionLayout

__all__ = ["PartitionChanges"]

LOOK_MS = 1000  # interval of checks whether a retired partition has been read


class PartitionChanges:
    """Changes of the partitions of a node's queues."""

    def __init__(
        self,
        core: CoreServices,
        metadata: MetadataStore,
        topics: TopicStore,
        groups: ConsumerGroups,
    ) -> None:
        self._core = core
        self._groups = groups
        self._metadata = metadata
        self._topics = topics
        self._retiring: dict[PartitionedQueue, None] = {}
        self._removed: dict[PartitionedQueue, list[OpenQueue]] = {}  # logs to be deleted
        self._timer = core.timers.timer(self._look)
        self._looks = False

    def opened(self, queue: PartitionedQueue) -> None:
        """Take note of a queue that was opened: some of its partitions may be retired, or gone."""
        self._watch(queue)
        definition, present = queue.definition, queue.layout.present
        if definition.layout is None:
            return
        gone = [number for number in range(definition.layout.made) if number not in present]
        for number in gone:
            log = definition.vhost, definition.topic, definition.incarnation, number
            if self._topics.exists(*log):
                self._core.spawn(self._topics.delete(*log))
            self._groups.delete_left(definition, number)

    # -- as commands ask for

    def planned(self, queue: DeclaredQueue, count: int) -> PartitionLayout:
        """Return the layout of a queue that publishes to `count` partitions.

        Raises AdministrationError.
        """
        if PARTITIONS not in queue.definition.arguments:
            raise AdministrationError(
                "invalid",
                f"queue '{queue.name}' has one log: only queues declared with '{PARTITIONS}' have "
                "partitions that can be changed",
            )
        if not 1 <= count <= PARTITIONS_MAX:
            raise AdministrationError("invalid", f"a queue has 1 to {PARTITIONS_MAX} partitions")
        layout = resized(layout_of(queue.definition), count)
        if len(layout.present) > PARTITIONS_MAX:
            raise AdministrationError(
                "limit",
                f"queue '{queue.name}' would have {len(layout.present)} partitions, those that are "
                f"being retired included, and {PARTITIONS_MAX} at most are allowed",
            )
        return layout

    async def apply(self, queue: PartitionedQueue, layout: PartitionLayout) -> None:
        """Have another layout. Raises StorageError; partitions that could be opened are used."""
        queue.definition = replace(queue.definition, layout=layout)
        if queue.definition.durable:
            self._metadata.put(queue.definition)
            await self._metadata.flush()
        # Otherwise another change came in between, which will follow when it is stored.
        if queue.layout == layout and not queue.deleted:
            queue.follow_layout()
            self._watch(queue)
            told = {
                "name": queue.name,
                "vhost": queue.definition.vhost,
                "partitions": len(layout.active),
                "retired": len(layout.retired),
            }
            self._core.events.emit("queue.partitions.changed", told)

    # -- the end of retired partitions

    def _watch(self, queue: PartitionedQueue) -> None:
        if queue.layout.retired:
            self._retiring[queue] = None
            if self._timer.due_ms is None:
                self._timer.set(self._core.timers.wall_ms() + LOOK_MS)

    def _look(self) -> None:
        """Remove the retired partitions that have been read."""
        if not self._looks:
            self._looks = True
            self._core.spawn(self._remove_read())

    async def _remove_read(self) -> None:
        try:
            for queue in list(self._retiring):
                await self._remove_read_of(queue)
        finally:
            self._looks = False
        if self._retiring:
            self._timer.set(self._core.timers.wall_ms() + LOOK_MS)

    async def _remove_read_of(self, queue: PartitionedQueue) -> None:
        layout = queue.layout
        vhost = self._core.vhosts.get(queue.definition.vhost)
        # Queues of a deleted virtual host are deleted some at a time; their definitions are gone.
        is_there = vhost is not None and vhost.find_queue(queue.name) is queue
        if not is_there:
            self._delete_logs(queue)
        if not is_there or not (layout.retired or queue in self._removed):
            self._retiring.pop(queue, None)
            return
        parts = {part.number: part for part in queue.partitions}
        published_to = queue.builder.builders  # also those that a change not stored has retired
        read = [
            number
            for number in layout.retired
            if number in parts
            and parts[number].builder not in published_to
            and is_read(parts[number])
        ]
        if read:
            queue.definition = replace(queue.definition, layout=without(layout, read))
            self._removed.setdefault(queue, []).extend(queue.drop(read))
        if queue not in self._removed:
            return
        try:
            await self.apply(queue, queue.layout)
        except StorageError as error:
            self._core.report(queue, error)  # it is tried again
        else:
            self._delete_logs(queue)

    def _delete_logs(self, queue: PartitionedQueue) -> None:
        """Delete the logs of a queue's removed partitions, which nothing stored names any more."""
        for part in self._removed.pop(queue, ()):
            self._core.spawn(part.delete_log())


def is_read(part: OpenQueue) -> bool:
    """Whether nothing is left to be read in a partition, now or later."""
    if not part.is_opened:  # it holds nothing but what was published since
        return not part.builder.count
    if part.held or not part.is_caught_up or part.holds_messages:
        return False
    # What a retention keeps can be read again.
    return part.settings.retention is None or part.log.first == part.log.end
