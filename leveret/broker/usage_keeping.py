"""Usage records: stored every minute, published to the stream `leveret.usage` every hour.

Called by the node's clock and by readers of the figures. After a crash, what queues have stored and
was not counted is counted at the start (usage_catch_up), so that messages in of queues are exact;
of users, of virtual hosts, and of messages out, at most the last minute's counts are lost. A member
of a cluster loses as much of messages in of queues: others may have led since, and what was stored
then is in their usage. An hour not yet published is published after the next start.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leveret.broker.usage_catch_up import first_uncounted, uncounted
from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.core.routing.message import MadeMessage
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.errors import LeveretError
from leveret.ports.usage import (
    HOUR_SECONDS,
    NOTHING_COUNTED,
    Account,
    CountedLog,
    CountedLogs,
    Subject,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence

    from leveret.broker.broker import Broker
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.ports.usage import UsageStore

__all__ = ["USAGE_STREAM", "UsageKeeper"]

USAGE_STREAM = "leveret.usage"
USAGE_VHOST = "/"
DAY_SECONDS = 24 * HOUR_SECONDS


class UsageKeeper:
    """Stores the usage gathered by a broker's meter.

    `committed(queues)` waits until all that was published to them is committed, and returns whether
    it is. Usage is kept for `days_max` days. Without `publishes` nothing is published: hours that
    end meanwhile count as published. In a cluster, `node_id` is the node's number.
    """

    def __init__(
        self,
        broker: Broker,
        store: UsageStore,
        wall_ms: Callable[[], int],
        committed: Callable[[Collection[DeclaredQueue]], Awaitable[bool]],
        days_max: int,
        *,
        publishes: bool = True,
        node_id: int | None = None,
    ) -> None:
        self._broker = broker
        self._store = store
        self._wall_ms = wall_ms
        self._committed = committed
        self._days_max = days_max
        self._publishes = publishes
        self._node_id = node_id
        self._hour = self._now_hour()  # the hour that gathered usage is charged to

    async def catch_up(self) -> None:
        """Count what queues have stored and an earlier run has not counted. Raises StorageError.

        Called once, before clients come. In a cluster nothing is read: all that others have stored
        while they led would be, and clients wait.
        """
        if self._node_id is not None:
            await self._store.forget_counted()  # or a node that leaves the cluster would read it
            return
        known = await self._store.counted()
        logs = {_log(part): (queue, part) for queue, part in self._opened_parts()}
        if known.at_ms is None:  # nothing was noted so far: later runs count from here on
            ends = {log: part.log.end for log, (_, part) in logs.items()}
            await self._store.add(self._hour, {}, CountedLogs(ends, self._wall_ms()))
            return
        present = {
            (name, queue.definition.topic, queue.definition.incarnation)
            for name, vhost in self._broker.vhosts.items()
            for queue in vhost.queues.values()
        }
        if gone := [log for log in known.ends if log[:3] not in present]:
            await self._store.forget_logs(gone)
        for log, (queue, part) in logs.items():
            first = known.ends.get(log)
            if first is None:
                first = await first_uncounted(part, known.at_ms)
            stop = part.log.end - part.appended_count
            async for counted in uncounted(part, first, stop, self._wall_ms()):
                used = dict.fromkeys(queue.accounts(), counted.usage)
                await self._store.add(counted.hour, used, CountedLogs({log: counted.stop}))

    def _opened_parts(self) -> Iterator[tuple[DeclaredQueue, OpenQueue]]:
        """Yield all opened queues that a restart would restore, with their opened partitions."""
        for source in self._broker.metered():
            if isinstance(source, DeclaredQueue):
                yield from ((source, part) for part in _restorable_parts(source))

    def _counted_now(self, used: Iterable[Account]) -> CountedLogs:
        """Return the present ends of the logs of queues that have been used.

        In a cluster none are noted: this node's usage says nothing of what others will store.
        """
        if self._node_id is not None:
            return NOTHING_COUNTED
        ends: dict[CountedLog, int] = {}
        for account in used:
            vhost = self._broker.vhosts.get(account.vhost)
            if account.subject is Subject.QUEUE and vhost is not None:
                queue = vhost.queues.get(account.name)
                if isinstance(queue, DeclaredQueue):
                    ends |= {_log(part): part.log.end for part in _restorable_parts(queue)}
        return CountedLogs(ends, self._wall_ms())

    async def read(self, since: int, until: int) -> Sequence[tuple[int, Account, Usage]]:
        """Return the usage of the hours in [since, until), up to now. Raises StorageError."""
        await self._write_down()
        return await self._store.read(since, until)

    async def keep(self) -> None:
        """Store new usage, and publish the hours that are over. Raises StorageError."""
        await self._write_down()
        await self._store.forget(self._hour - self._days_max * DAY_SECONDS)
        for hour in await self._store.unpublished(self._hour):
            if self._publishes and not await self._tell(hour):
                break
            await self._store.mark_published(hour)

    async def _write_down(self) -> None:
        """Store the usage since the last time, charged to the hour of that time."""
        meter = self._broker.usage
        meter.look(self._broker.metered())
        hour, self._hour = self._hour, self._now_hour()
        used = meter.take()
        if not used:
            return
        try:
            await self._store.add(hour, used, self._counted_now(used))
        except LeveretError:
            meter.give_back(used)
            raise

    async def _tell(self, hour: int) -> bool:
        """Publish an hour's records. Returns whether the stream has committed them.

        An hour may be published twice if the node stops in between; its records name the hour. In a
        cluster several nodes may have led in an hour, and one of them may publish its part when it
        leads again, much later: records name the node, too.
        """
        vhost = self._broker.vhosts.get(USAGE_VHOST)
        if vhost is None:
            return False
        declared = vhost.declare_queue(
            USAGE_STREAM,
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments={QUEUE_TYPE: "stream"},
            owner=None,
        )
        source = {"hour": hour} | ({} if self._node_id is None else {"node": self._node_id})
        stream = self._broker.find_queue(vhost, declared.definition.name, None)
        for _, account, usage in await self._store.read(hour, hour + 1):
            record = {**source, **account._asdict(), **usage._asdict()}
            message = MadeMessage(
                b"",
                USAGE_STREAM.encode(),
                {"subject": account.subject.value, "vhost": account.vhost, "name": account.name},
                json.dumps(record).encode(),
                persistent=True,
                timestamp_seconds=hour,
                content_type="application/json",
            )
            self._broker.publisher.deposit([stream], message)
        return await self._committed([stream])

    def _now_hour(self) -> int:
        now = self._wall_ms() // 1000
        return now - now % HOUR_SECONDS


def _restorable_parts(queue: DeclaredQueue) -> Iterator[OpenQueue]:
    """Yield the opened partitions of a queue, none if a restart would not restore it."""
    if queue.definition.durable and not queue.definition.exclusive:
        yield from (part for part in queue.partitions if part.is_opened)


def _log(part: OpenQueue) -> CountedLog:
    definition = part.definition
    return CountedLog(definition.vhost, definition.topic, definition.incarnation, part.number)
