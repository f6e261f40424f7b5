"""Queue as its clients know it, by its name: what every kind of queue offers to them.

Most queues have one log and are their own only partition (`OpenQueue`); a `PartitionedQueue` has
several. What needs a log, or the state of deliveries, goes through `partitions`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from leveret.errors import ChannelError
from leveret.ports.log_text import quoted
from leveret.ports.usage import Account, Subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.consumer import QueueConsumer
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.policies import EffectivePolicy
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.core.turn import Turn
    from leveret.ports.counters import Counters
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.partitioner import RecordTarget
    from leveret.ports.usage import Usage

__all__ = ["DeclaredQueue", "check_keeps_messages"]


class DeclaredQueue(ABC):
    """A queue of a virtual host, of any kind."""

    __slots__ = ()

    settings: QueueSettings
    services: QueueServices
    owner: object | None  # the connection that an exclusive queue belongs to
    gone: bool  # no route leads here any more
    deleted: bool
    counters: Counters
    opened_ms: int  # the start of its counters
    rates: Any  # its QueueRates, if the settings have any (features.rates)

    def __str__(self) -> str:
        return f"queue {quoted(self.definition.name)} in vhost {quoted(self.definition.vhost)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.definition.vhost!r}, {self.definition.name!r})"

    @property
    @abstractmethod
    def definition(self) -> QueueDefinition:
        """Definition of the queue."""

    @definition.setter
    @abstractmethod
    def definition(self, definition: QueueDefinition) -> None:
        """Replace the definition."""

    @property
    @abstractmethod
    def policy(self) -> EffectivePolicy:
        """Policy that the settings were resolved with."""

    @policy.setter
    @abstractmethod
    def policy(self, policy: EffectivePolicy) -> None:
        """Note the policy of new settings."""

    @property
    def name(self) -> str:
        """The queue's name within its virtual host."""
        return self.definition.name

    @property
    @abstractmethod
    def turn(self) -> Turn:
        """Turn that flushes and pumps it."""

    @property
    @abstractmethod
    def builder(self) -> RecordTarget:
        """Builder of its records, or what chooses one for each."""

    # -- opening

    @property
    def is_opened(self) -> bool:
        """Whether it has its log and its state; without, it holds nothing but gathered records."""
        return True

    def open(self) -> bool:
        """Open it where no log must be recovered; return whether it is opened, or deleted.

        Raises StorageError.
        """
        return True

    async def opened(self) -> None:  # noqa: B027  # streams are never unopened
        """Wait until it is opened, and open it if nobody does. Raises StorageError.

        A queue that is deleted meanwhile stays unopened.
        """

    # -- partitions

    @property
    def whole(self) -> DeclaredQueue:
        """Queue that clients know by the name, of which this is a partition or a subscription."""
        return self

    @property
    @abstractmethod
    def partitions(self) -> Sequence[OpenQueue]:
        """Partitions of the queue, those that are being retired included."""

    @abstractmethod
    def in_turn(self) -> Sequence[OpenQueue]:
        """Return the partitions, beginning with another one each time, to get messages from."""

    # -- settings

    @abstractmethod
    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, after a policy change."""

    @property
    @abstractmethod
    def can_reorder(self) -> bool:
        """Whether `reorder` may be called: nothing is leased, everything is read and committed."""

    @abstractmethod
    def reorder(self, settings: QueueSettings) -> None:
        """Apply settings that change the order of messages."""

    # -- contents

    @property
    @abstractmethod
    def message_count(self) -> int:
        """Number of ready messages, those gathered in this turn included."""

    @property
    @abstractmethod
    def leased_count(self) -> int:
        """Number of messages delivered and neither settled nor returned."""

    @property
    @abstractmethod
    def delayed_count(self) -> int:
        """Number of returned messages that are delayed."""

    @property
    @abstractmethod
    def dead_letters_waiting(self) -> int:
        """Number of dead letters waiting for a target to accept them; they are leased."""

    @property
    @abstractmethod
    def died_count(self) -> int:
        """Number of messages discarded since it was opened, for any reason."""

    @property
    @abstractmethod
    def consumer_count(self) -> int:
        """Number of consumers, with or without capacity."""

    @property
    @abstractmethod
    def held_bytes(self) -> int:
        """Estimated memory in bytes, from sizes that are known without reading messages."""

    @property
    @abstractmethod
    def position(self) -> int:
        """Number of records ever published to it, those gathered in this turn included."""

    def accounts(self) -> Sequence[Account]:
        """Return the accounts that the queue's usage is charged to."""
        return (Account(Subject.QUEUE, self.definition.vhost, self.name),)

    @abstractmethod
    def total_usage(self) -> Usage:
        """Return the queue's usage since it was opened."""

    # -- publishing

    @abstractmethod
    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything published so far is committed, possibly at once."""

    @abstractmethod
    def has_room(self, count: int, body_bytes: int) -> bool:
        """Whether the limits allow so many more records, with so many bytes in their bodies."""

    @property
    def lacks_copies(self) -> bool:
        """Whether nothing can be published to it, since too few nodes are in sync."""
        copies = self.services.in_sync_count()
        return copies is not None and self.settings.copies_min > copies

    @property
    @abstractmethod
    def is_caught_up(self) -> bool:
        """Whether everything published so far is committed."""

    # -- consuming

    @abstractmethod
    def admits(self, *, exclusive: bool) -> bool:
        """Whether `add_consumer` may be called now for such a consumer."""

    @abstractmethod
    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:
        """Add `consumer`, from the next turn on. Call `admits` first."""

    @abstractmethod
    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Remove `consumer`; nothing more is delivered to it."""

    @abstractmethod
    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """Note that this consumer, or any, may have more capacity."""

    def used(self) -> None:  # noqa: B027  # most kinds ignore it
        """Note a use of the queue: a declaration, basic.get, or a consumer's end."""

    # -- the end

    @abstractmethod
    def mark_deleted(self) -> None:
        """Stop the queue: confirm waiting publishers, and notify its consumers."""

    def delete_logs(self, spawn: Callable[[Any], object]) -> None:
        """Delete its files, after `mark_deleted`; `spawn` runs a coroutine."""
        for part in self.partitions:
            spawn(part.delete_log())


def check_keeps_messages(queue: DeclaredQueue, described: str, purpose: str) -> None:
    """Raise ChannelError 406 unless a queue keeps messages that others have settled."""
    if queue.settings.retention is None:
        raise ChannelError(
            406,
            f"{described} keeps no messages {purpose}: declare it with x-retention, or as a stream",
        )
