"""De-duplication of exchanges, idempotent producers and prepared messages, combined for a broker.

The broker notifies it of virtual hosts; management shows its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.features.dedup.interceptor import DedupInterceptor
from leveret.features.transactions.prepared_interceptor import (
    PREPARE_EXCHANGE,
    PreparedCommands,
    PreparedInterceptor,
)
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.dependencies import CoreServices
    from leveret.core.vhost import Vhost
    from leveret.features.dedup.interceptor import IdempotencyLimits

__all__ = ["IdempotentPublish"]


class IdempotentPublish:
    """Adds its interceptors and commands to the broker's, in front of the existing ones."""

    def __init__(self, core: CoreServices, limits: IdempotencyLimits, keys_max: int) -> None:
        self.interceptor = DedupInterceptor(core, limits, keys_max)
        self.prepared = PreparedInterceptor(
            core,
            self.interceptor.forget_key,
            pending_max=limits.prepared_messages_max,
            checks_max=limits.prepared_checks_max,
        )
        core.publish_interceptors.interceptors[:0] = [
            (RecordFlag.WANTS_ORDER, self.interceptor),
            (RecordFlag.WANTS_PREPARE, self.prepared),
        ]
        core.publish_interceptors.commands[PREPARE_EXCHANGE] = PreparedCommands(
            self.prepared, core.command_replies, core.report
        )

    def restore(self, vhosts: Iterable[Vhost]) -> None:
        """Restore the state of an earlier run. Raises StorageError."""
        found = list(vhosts)
        self.interceptor.restore(found)
        self.prepared.restore(found)

    @property
    def is_restoring(self) -> bool:
        """Whether state of an earlier run is still being restored: no client may connect."""
        return any(
            writer.producers.held or writer.seen.held
            for writer in self.interceptor.writers.values()
        ) or any(messages.held for messages in self.prepared.kept.values())

    def forget_vhost(self, name: str) -> None:
        """Delete the state of a deleted virtual host."""
        self.interceptor.forget_vhost(name)
        self.prepared.forget_vhost(name)
