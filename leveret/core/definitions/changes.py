"""Port by which clients change exchanges, queues and bindings.

A single node changes them at once (leveret.broker.changes); in a cluster the controller does
(leveret.clustering.definitions).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.ports.definition_changes import ChangeOutcome, DefinitionChange
    from leveret.ports.definitions import Home, QueueDefinition

__all__ = ["DefinitionChanges", "NoHomes", "QueueHomes"]


class DefinitionChanges(Protocol):
    """Makes changes of exchanges, queues and bindings."""

    @property
    def writes_first(self) -> bool:
        """Whether a change is written before `then` is called; else the caller sees to it."""
        ...

    def make(
        self,
        change: DefinitionChange,
        owner: object | None,
        then: Callable[[ChangeOutcome], Awaitable[None] | None],
    ) -> Awaitable[None] | None:
        """Make a change that the connection `owner` asks for, and call `then` with the outcome.

        At once, unless others must be asked: then all of that is done when the awaitable is. Raises
        ChannelError and ConnectionClosingError, StorageError where a queue cannot be opened.
        """
        ...

    def remove_queue(self, vhost: Vhost, queue: DeclaredQueue) -> Awaitable[None] | None:
        """Have a queue deleted that nobody needs any more: at once, or as soon as it can be.

        Then it is deleted when the awaitable is done.
        """
        ...


class QueueHomes(Protocol):
    """Where queues live: on which node, and whose connection exclusive ones belong to."""

    def home_of(self, owner: object | None) -> Home | None:
        """Return the home of a queue that is declared here, by its owner if it is exclusive."""
        ...

    def owner_of(self, definition: QueueDefinition) -> object | None:
        """Return the owner of an exclusive queue by its definition, None for other queues."""
        ...

    def leads(self, definition: QueueDefinition, partition: int) -> bool:
        """Whether the messages of a partition, and its consumers, are on this node."""
        ...


class NoHomes:
    """Homes of the queues of a single node: all live there."""

    def home_of(self, owner: object | None) -> Home | None:  # noqa: ARG002  # see QueueHomes
        """Return None."""
        return None

    def owner_of(self, definition: QueueDefinition) -> object | None:  # noqa: ARG002
        """Return None: exclusive queues do not outlive the process."""
        return None

    def leads(self, definition: QueueDefinition, partition: int) -> bool:  # noqa: ARG002
        """Return True."""
        return True
