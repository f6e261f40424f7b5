"""Sending once: what a broker has of windows of exchanges, numbering publishers and half messages.

Put together here for the broker, which tells it what comes and goes, and for those who show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from leveret.core.dedup.interceptor import DedupInterceptor, IdempotentPublishLimits
from leveret.core.dedup.prepared import PreparedServices
from leveret.core.dedup.prepared_interceptor import (
    PREPARE_EXCHANGE,
    PreparedCommands,
    PreparedInterceptor,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.broker import Broker
    from leveret.core.dedup.window import DedupServices
    from leveret.core.vhost import Vhost

__all__ = ["IdempotencyLimits", "IdempotentPublish"]


@dataclass(frozen=True, slots=True)
class IdempotencyLimits:
    """See Configuration, where each has its reason."""

    producers_max: int = 100_000
    producer_idle_ms: int = 604_800_000
    prepared_messages_max: int = 100_000
    prepared_checks_max: int = 15


class IdempotentPublish:
    """Adds its interceptors and commands to the broker's, in front of those that are there."""

    def __init__(self, broker: Broker, dedup: DedupServices, limits: IdempotencyLimits) -> None:
        self.interceptor = DedupInterceptor(
            broker, dedup, IdempotentPublishLimits(limits.producers_max, limits.producer_idle_ms)
        )
        services = PreparedServices(
            broker.atomic,
            broker.publisher,
            broker.turn,
            broker.timers,
            dedup.spawn,
            broker.report,
            self.interceptor.forget_key,
            limits.prepared_checks_max,
        )
        self.prepared = PreparedInterceptor(
            broker.internal_topics, services, limits.prepared_messages_max
        )
        broker.publish_interceptors.interceptors[:0] = [self.interceptor, self.prepared]
        broker.publish_interceptors.commands[PREPARE_EXCHANGE] = PreparedCommands(
            self.prepared, broker.command_replies
        )

    def restore(self, vhosts: Iterable[Vhost]) -> None:
        """Go on with what an earlier run has left. Raises StorageError."""
        found = list(vhosts)
        self.interceptor.restore(found)
        self.prepared.restore(found)

    @property
    def is_learning(self) -> bool:
        """Whether something of an earlier run is not known yet: no client is to be let in."""
        return any(
            writer.producers.held or writer.seen.held
            for writer in self.interceptor.writers.values()
        ) or any(messages.held for messages in self.prepared.kept.values())

    def forget_vhost(self, name: str) -> None:
        """A virtual host is deleted."""
        self.interceptor.forget_vhost(name)
        self.prepared.forget_vhost(name)
