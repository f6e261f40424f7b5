"""Staged batches of a node, by virtual host; the topics of one are created with its first part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.features.staged_batches.logs import (
    BATCHES_TOPIC,
    STAGED_TOPIC,
    BatchNotes,
    StagedRecords,
)
from leveret.features.staged_batches.rules import BatchRefusedError
from leveret.features.staged_batches.staged import BatchGate, StagedBatches
from leveret.features.staged_batches.upload_checks import PublishRights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.core.dependencies import CoreServices
    from leveret.core.vhost import Vhost
    from leveret.features.staged_batches.rules import BatchLimits
    from leveret.ports.authentication import Rights

__all__ = ["BatchesOfNode"]


class BatchesOfNode:
    """Staged batches of a node."""

    def __init__(self, core: CoreServices, limits: BatchLimits) -> None:
        self.limits = limits
        self._core = core
        self._gate = BatchGate()
        self._opened: dict[str, StagedBatches] = {}

    def find(self, vhost: str) -> StagedBatches | None:
        """Return the batches of a virtual host; None if there never were any."""
        return self._opened.get(vhost)

    def of(self, vhost: Vhost) -> StagedBatches:
        """Return the batches of a virtual host, opening its topics.

        Raises StorageError, and BatchRefusedError if it was deleted.
        """
        if self._core.vhosts.get(vhost.name) is not vhost:
            raise BatchRefusedError("not_found", "the virtual host was deleted")
        found = self._opened.get(vhost.name)
        if found is None:
            found = self._opened[vhost.name] = self._open(vhost)
        return found

    def _open(self, vhost: Vhost) -> StagedBatches:
        open_log, incarnation = self._core.internal_topics.open, vhost.incarnation
        records = StagedRecords(open_log(vhost.name, STAGED_TOPIC, incarnation), self._core)
        notes = BatchNotes(open_log(vhost.name, BATCHES_TOPIC, incarnation), self._core)
        return StagedBatches(vhost, (records, notes), self._core, self.limits, self._gate)

    def rights(self, vhost: Vhost, rights: Rights) -> PublishRights:
        """Return what a user may publish in batches."""
        return PublishRights(vhost, rights, self._core.publish_interceptors.commands)

    def restore(self, vhosts: Iterable[Vhost]) -> None:
        """Open the topics that an earlier run has left. Raises StorageError."""
        topics = self._core.internal_topics
        for vhost in vhosts:
            # A topic to which nothing was ever written leaves nothing behind.
            names = STAGED_TOPIC, BATCHES_TOPIC
            if any(topics.exists(vhost.name, name, vhost.incarnation) for name in names):
                self.of(vhost)

    @property
    def is_restoring(self) -> bool:
        """Whether state of an earlier run is still being restored: no client may connect."""
        return any(batches.notes.held for batches in self._opened.values())

    def forget_vhost(self, name: str) -> None:
        """Delete the topics of a deleted virtual host."""
        batches = self._opened.pop(name, None)
        if batches is not None:
            batches.close()
            self._core.spawn(batches.records.log.delete())
            self._core.spawn(batches.notes.log.delete())
