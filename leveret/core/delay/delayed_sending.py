"""Delayed and scheduled messages combined for a broker: storage, schedules and commands.

The broker notifies it of virtual hosts; management shows its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.dedup.exchange_log import key_in
from leveret.core.delay.delayed_delivery import DelayedDelivery
from leveret.core.delay.delayed_messages import DelayServices
from leveret.core.delay.eta_hold import EtaHold
from leveret.core.delay.schedule_commands import SCHEDULE_EXCHANGE, ScheduleCommands
from leveret.core.delay.schedules import Schedules
from leveret.core.queues.queue import Queue

if TYPE_CHECKING:
    from leveret.core.broker import Broker
    from leveret.core.dependencies import Environment
    from leveret.core.routing.message import Message
    from leveret.ports import StateStore

__all__ = ["DelayedSending"]


class DelayedSending:
    """Adds its interceptor and commands to the broker's intake."""

    def __init__(self, broker: Broker, environment: Environment, state: StateStore) -> None:
        turn, timers = environment.turn, environment.timers
        spawn, report = environment.spawn, environment.report
        self._broker = broker
        self.delivery = DelayedDelivery(
            DelayServices(
                broker.delayed_stores, state, turn, timers, spawn, report, self._forget_key
            )
        )
        self.schedules = Schedules(
            self.delivery, self._eta_hold, broker.events.emit, timers.wall_ms
        )
        broker.publish_interceptors.interceptors.append(self.delivery)
        broker.publish_interceptors.commands[SCHEDULE_EXCHANGE] = ScheduleCommands(
            self.schedules,
            self.delivery,
            broker.command_replies,
            wall_ms=timers.wall_ms,
            spawn=spawn,
            report=report,
        )

    def _eta_hold(self, vhost: str, queue: str) -> EtaHold | None:
        vhosts = self._broker.vhosts
        found = vhosts[vhost].queues.get(queue) if vhost in vhosts else None
        return found.extension(EtaHold) if isinstance(found, Queue) else None

    def _forget_key(self, vhost: str, message: Message) -> None:
        """Forget the de-duplication key of an unroutable due message, which may come again."""
        self._broker.idempotency.interceptor.forget_key(vhost, key_in(message.exchange, message))
