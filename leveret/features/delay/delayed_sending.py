"""Delayed and scheduled messages combined for a broker: storage, schedules and commands.

The broker notifies it of virtual hosts; management shows its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.queue import Queue
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.dedup.exchange_log import key_in
from leveret.features.delay.delayed_delivery import DelayedDelivery
from leveret.features.delay.schedule_commands import SCHEDULE_EXCHANGE, ScheduleCommands
from leveret.features.delay.schedules import Schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.dependencies import CoreServices
    from leveret.core.routing.message import Message
    from leveret.features.delay.store.store import DelayedMessageStores

__all__ = ["DelayedSending"]


class DelayedSending:
    """Adds its interceptor and commands to the broker's intake."""

    def __init__(
        self,
        core: CoreServices,
        stores: DelayedMessageStores,
        forget_key: Callable[[str, bytes | None], None],
    ) -> None:
        self._vhosts = core.vhosts
        self._forget = forget_key
        wall_ms = core.timers.wall_ms
        self.delivery = DelayedDelivery(core, stores, self._forget_key)
        self.schedules = Schedules(self.delivery, self._eta_hold, core.events.emit, wall_ms)
        core.publish_interceptors.interceptors.append(self.delivery)
        core.publish_interceptors.commands[SCHEDULE_EXCHANGE] = ScheduleCommands(
            self.schedules,
            self.delivery,
            core.command_replies,
            wall_ms=wall_ms,
            spawn=core.spawn,
            report=core.report,
        )

    def _eta_hold(self, vhost: str, queue: str) -> EtaHold | None:
        vhosts = self._vhosts
        found = vhosts[vhost].queues.get(queue) if vhost in vhosts else None
        return found.extension(EtaHold) if isinstance(found, Queue) else None

    def _forget_key(self, vhost: str, message: Message) -> None:
        """Forget the de-duplication key of an unroutable due message, which may come again."""
        self._forget(vhost, key_in(message.exchange, message))
