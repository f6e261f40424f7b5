"""Usage records: stored every minute, published to the stream `leveret.usage` every hour.

Called by the node's clock and by readers of the figures. A crash loses at most the last minute's
counts; an hour not yet published is published after the next start.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leveret.core.routing.message import MadeMessage
from leveret.core.settings.arguments import QUEUE_TYPE
from leveret.errors import LeveretError
from leveret.ports.usage import HOUR_SECONDS, Account, Usage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from leveret.broker.broker import Broker
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.ports.usage import UsageStore

__all__ = ["USAGE_STREAM", "UsageKeeper"]

USAGE_STREAM = "leveret.usage"
USAGE_VHOST = "/"
DAY_SECONDS = 24 * HOUR_SECONDS


class UsageKeeper:
    """Stores the usage gathered by a broker's meter.

    `committed(queues)` waits until all that was published to them is committed, and returns whether
    it is. Usage is kept for `days_max` days. Without `publishes` nothing is published: hours that
    end meanwhile count as published.
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
    ) -> None:
        self._broker = broker
        self._store = store
        self._wall_ms = wall_ms
        self._committed = committed
        self._days_max = days_max
        self._publishes = publishes
        self._hour = self._now_hour()  # the hour that gathered usage is charged to

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
            await self._store.add(hour, used)
        except LeveretError:
            meter.give_back(used)
            raise

    async def _tell(self, hour: int) -> bool:
        """Publish an hour's records. Returns whether the stream has committed them.

        An hour may be published twice if the node stops in between; its records name the hour.
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
        stream = self._broker.find_queue(vhost, declared.definition.name, None)
        for _, account, usage in await self._store.read(hour, hour + 1):
            record = {"hour": hour, **account._asdict(), **usage._asdict()}
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
