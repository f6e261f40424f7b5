"""Delayed messages that a node has kept by itself, moved to where its cluster keeps them.

The first node of a cluster has them from the time when it was alone. Each is settled here when the
leader of the virtual host's queue `leveret.delayed` has it: a crash in between may repeat it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from leveret.core.logs.log_scan import LogScan
from leveret.errors import ChannelError, StorageError
from leveret.features.delay.delayed_messages import DELAYED_TOPIC
from leveret.features.delay.due_list import record_of
from leveret.features.delay.scheduled import Draft
from leveret.ports.after_all import AfterAll
from leveret.ports.ranges import RangeSet
from leveret.ports.waiting import ended

if TYPE_CHECKING:
    from leveret.core.dependencies import CoreServices
    from leveret.core.vhost import Vhost
    from leveret.features.delay.delayed_queue import DelayedQueues
    from leveret.features.delay.store import DelayedMessageStores
    from leveret.ports import TopicLog
    from leveret.ports.records import Batch

__all__ = ["LocalTopicMove"]

SENT_AT_ONCE = 500  # messages, before their commits are waited for
RETRY_MS = 1000


class LocalTopicMove:
    """Move of one virtual host's messages."""

    def __init__(
        self, core: CoreServices, stores: DelayedMessageStores, queues: DelayedQueues, vhost: Vhost
    ) -> None:
        self._core = core
        self._stores = stores
        self._queues = queues
        self._vhost = vhost
        self._is_told = False  # that something has failed

    async def run(self) -> None:
        """Move all messages, and delete the topic; what fails is tried again."""
        try:
            log = self._core.internal_topics.open(self._vhost.name, DELAYED_TOPIC)
        except StorageError as error:
            self._core.report(self._vhost, error)
            return
        scan = LogScan(log, partial(self._core.report, self._vhost), first=log.first)
        while not (scan.is_over or self._is_deleted):
            try:
                for batch in await scan.read():
                    await self._move(log, batch)
            except StorageError as error:
                await self._wait(error)
        await log.close()
        if not self._is_deleted:
            self._stores.delete(self._vhost.name, DELAYED_TOPIC)

    @property
    def _is_deleted(self) -> bool:
        return self._core.vhosts.get(self._vhost.name) is not self._vhost

    async def _move(self, log: TopicLog, batch: Batch) -> None:
        """Move what a batch has: again, until all of it is settled."""
        unsettled = log.settled.gaps(batch.base_offset, batch.stop_offset)
        while unsettled and not self._is_deleted:
            offsets = [offset for first, stop in unsettled for offset in range(first, stop)]
            try:
                moved = await self._sent(batch, offsets[:SENT_AT_ONCE])
            except ChannelError as error:
                await self._wait(error)
                continue
            log.settle(moved)
            for first, stop in moved:
                unsettled.remove(first, stop)

    async def _sent(self, batch: Batch, offsets: list[int]) -> list[tuple[int, int]]:
        """Send messages to the leader; return the ranges that it has. Raises ChannelError."""
        moved = RangeSet()
        tells: list[AfterAll] = []
        for offset in offsets:
            due_ms, _, flags, exchange, routing_key, header, body = record_of(batch, offset)
            draft = Draft(due_ms, flags, exchange, routing_key, header, body, None)
            (committing,) = self._queues.put(self._vhost, draft)
            told = AfterAll(1, partial(_note, moved, offset))
            tells.append(told)
            committing.await_commit(told)
        for told in tells:
            await told
        return list(moved)

    async def _wait(self, error: Exception) -> None:
        """Tell once that the move fails, and wait before it is tried again."""
        if not self._is_told:
            self._core.report(self._vhost, error)
        self._is_told = True
        await ended(
            lambda waiter: self._core.timers.after(RETRY_MS, partial(waiter.done, failed=False))
        )


def _note(moved: RangeSet, offset: int, *, failed: bool) -> None:
    if not failed:
        moved.add(offset, offset + 1)
