"""Delayed and scheduled messages combined for a broker: storage, schedules and commands.

The broker notifies it of virtual hosts; management shows its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.queues.queue import Queue
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.dedup.exchange_log import key_in
from leveret.features.delay.delayed_delivery import DelayedDelivery
from leveret.features.delay.delayed_messages import DelayServices
from leveret.features.delay.schedule_commands import SCHEDULE_EXCHANGE, ScheduleCommands
from leveret.features.delay.schedules import Schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.dependencies import CoreServices
    from leveret.core.routing.message import Message
    from leveret.features.delay.store.stores import DelayedMessageStores
    from leveret.ports import StateStore

__all__ = ["DelayedSending"]


class DelayedSending:
    """Adds its interceptor and commands to the broker's intake."""

    def __init__(
        self,
        core: CoreServices,
        stores: DelayedMessageStores,
        state: StateStore,
        forget_key: Callable[[str, bytes | None], None],
    ) -> None:
        environment = core.environment
        turn, timers = environment.turn, environment.timers
        spawn, report = environment.spawn, environment.report
        self._vhosts = core.vhosts
        self._forget = forget_key
        self.delivery = DelayedDelivery(
            DelayServices(stores, state, turn, timers, spawn, report, self._forget_key)
        )
        self.schedules = Schedules(self.delivery, self._eta_hold, core.events.emit, timers.wall_ms)
        core.publish_interceptors.interceptors.append(self.delivery)
        core.publish_interceptors.commands[SCHEDULE_EXCHANGE] = ScheduleCommands(
            self.schedules,
            self.delivery,
            core.command_replies,
            wall_ms=timers.wall_ms,
            spawn=spawn,
            report=report,
        )

    def _eta_hold(self, vhost: str, queue: str) -> EtaHold | None:
        vhosts = self._vhosts
        found = vhosts[vhost].queues.get(queue) if vhost in vhosts else None
        return found.extension(EtaHold) if isinstance(found, Queue) else None

    def _forget_key(self, vhost: str, message: Message) -> None:
        """Forget the de-duplication key of an unroutable due message, which may come again."""
        self._forget(vhost, key_in(message.exchange, message))
