"""De-duplication of exchanges, idempotent producers and prepared messages, combined for a broker.

The broker notifies it of virtual hosts; management shows its state.
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
    """Limits, each explained in the configuration."""

    producers_max: int = 100_000
    producer_idle_ms: int = 604_800_000
    prepared_messages_max: int = 100_000
    prepared_checks_max: int = 15


class IdempotentPublish:
    """Adds its interceptors and commands to the broker's intake, in front of the existing ones."""

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
        """Restore the state of an earlier run. Raises StorageError."""
        found = list(vhosts)
        self.interceptor.restore(found)
        self.prepared.restore(found)

    @property
    def is_learning(self) -> bool:
        """Whether state of an earlier run is still being restored: no client may connect."""
        return any(
            writer.producers.held or writer.seen.held
            for writer in self.interceptor.writers.values()
        ) or any(messages.held for messages in self.prepared.kept.values())

    def forget_vhost(self, name: str) -> None:
        """Delete the state of a deleted virtual host."""
        self.interceptor.forget_vhost(name)
        self.prepared.forget_vhost(name)
