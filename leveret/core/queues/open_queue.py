"""Base class of all kinds of queue with one log: a definition, and what publishers append to.

Publishing is the same for all (see LogWriter); committed records are handled by the subclasses:
`Queue` delivers each once, `Stream` keeps them for any number of readers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from leveret.core.logs.log_writer import LogWriter
from leveret.core.queues.declared_queue import DeclaredQueue
from leveret.core.queues.extensions import Demand, QueueExtension
from leveret.core.settings.policies import NO_POLICY
from leveret.ports.counters import (
    BYTES_OUT,
    DELIVER,
    DELIVER_NO_ACK,
    GET,
    GET_NO_ACK,
    Counters,
)
from leveret.ports.records import RecordFlag
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.core.queues.extensions import ExtensionKind
    from leveret.core.queues.queue_logs import QueueLogs
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.discard_reasons import Reason
    from leveret.core.settings.policies import EffectivePolicy
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.ranges import RangeSet
    from leveret.ports.records import Batch, BatchBuilder

# Records delivered by one queue in a turn, so that a long backlog does not delay other queues and
# sockets.
PUMP_RECORDS_MAX = 20_000

# Records of a partition that a busy publisher makes are flushed after so many bytes or turns, a
# turn being some 0.3 ms then.
GATHERED_BYTES = 64 * 1024
TURNS_MAX = 2

# Memory of an idle, empty queue with its log (measured with 20,000).
QUEUE_BYTES = 8_000

# Attributes of an OpenQueue, which are slots of each kind of it: with slots of its own it could not
# stand beside a compiled base. Without any, CPython would keep so many attributes in a dictionary
# of each instance, and the lookups of each turn would need hashing.
OPEN_QUEUE_SLOTS = (
    "_demanding",
    "_extended",
    "_spawn",
    "_turns_gathered",
    "counters",
    "definition",
    "gone",
    "logs",
    "opened_ms",
    "owner",
    "part_of",
    "policy",
    "rates",
    "services",
    "settings",
)

NOTHING_MORE = Demand()
NO_EXTENSIONS: Mapping[ExtensionKind, QueueExtension] = {}
HANDED_OUT = (DELIVER, DELIVER_NO_ACK, GET, GET_NO_ACK)
Extension = TypeVar("Extension", bound=QueueExtension)


class PartOf(NamedTuple):
    """Place of a partition: the queue that it belongs to, and its number there."""

    whole: DeclaredQueue
    number: int


class OpenQueue(LogWriter, DeclaredQueue):
    """An open queue of a virtual host, of any kind, or one of a queue's partitions."""

    definition: QueueDefinition
    policy: EffectivePolicy
    lacks_copies = DeclaredQueue.lacks_copies  # also before it has its log

    __slots__ = ()

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        log: TopicLog | None,
        services: QueueServices,
        *,
        part_of: PartOf | None = None,
    ) -> None:
        super().__init__(log, services.turn, services.report)
        self.logs: QueueLogs | None = None  # where it has its log, unless that was given
        self.part_of = part_of
        self.may_gather = part_of is not None
        self._turns_gathered = 0
        self.definition = definition
        self.settings = settings
        self.services = services
        self.opened_ms = services.timers.wall_ms()  # the start of its counters
        self.counters = Counters() if part_of is None else part_of.whole.counters
        self.builder.counters = self.counters
        self.policy = NO_POLICY  # the policy that the settings were resolved with
        self.owner = owner
        self.gone = False  # no route leads here any more
        self.rates: Any = None  # its QueueRates, if the settings have any (features.rates)
        self._spawn = services.spawn
        # By kind, and the same as a tuple, which is faster to go through.
        self._extended: Mapping[ExtensionKind, QueueExtension] = NO_EXTENSIONS
        self._extensions: tuple[QueueExtension, ...] = ()
        self._demanding = RecordFlag(0)  # flags of records that need another extension

    # -- opening

    async def delete_log(self) -> None:
        """Delete its log, after `mark_deleted`. Raises StorageError."""
        await self.log.delete()

    # -- partitions: most queues have one, themselves

    @property
    def number(self) -> int:
        """Number of this partition; 0 of a queue that is its own."""
        return 0 if self.part_of is None else self.part_of.number

    @property
    def whole(self) -> DeclaredQueue:
        """Queue that clients know by the name, of which this is a partition or a subscription."""
        return self if self.part_of is None else self.part_of.whole

    @property
    def partitions(self) -> Sequence[OpenQueue]:
        """Partitions of the queue: itself."""
        return (self,)

    def in_turn(self) -> Sequence[OpenQueue]:
        """Return itself."""
        return (self,)

    @property
    def unreadable(self) -> list[RangeSet]:
        """Sets of offsets below `committed` that nobody can read any more.

        Those of a stream are settled by nobody but retention, compaction, damage and aborted
        transactions.
        """
        log = self.log
        return [log.settled] if self.settings.is_stream else [log.removed, log.undone, log.erased]

    # -- order

    @property
    def can_reorder(self) -> bool:
        """Whether the order of messages can change: it cannot, where nothing else is said."""
        return False

    def reorder(self, settings: QueueSettings) -> None:
        """Apply settings, which change no order here."""
        self.reconfigure(settings)

    # -- extensions

    def _extension_kinds(self) -> Sequence[ExtensionKind]:
        """Return the kinds of extension that the queue may have, in order."""
        return self.services.extensions

    def _extend(self, demand: Demand = NOTHING_MORE) -> None:
        """Have the extensions that the settings and `demand` ask for."""
        present, kinds = self._extended, self._extension_kinds()
        followed = ((kind, kind.follow(self, present.get(kind), demand)) for kind in kinds)
        self._extended = {kind: found for kind, found in followed if found is not None}
        self._extensions = tuple(self._extended.values())
        for kind, extension in present.items():
            if self._extended.get(kind) is not extension:
                extension.close()
        self._demanding = RecordFlag(0)
        for kind in kinds:
            if kind not in self._extended:
                self._demanding |= kind.demanded_by

    def extension(self, kind: type[Extension]) -> Extension | None:
        """Return the queue's extension of a class, or None."""
        for extension in self._extensions:
            if isinstance(extension, kind):
                return extension
        return None

    def adopt(self, kind: ExtensionKind, extension: QueueExtension) -> None:
        """Have an extension that was made outside of `ExtensionKind.follow`."""
        self._extended = {**self._extended, kind: extension}
        self._extend()

    async def recover_extensions(self) -> int | None:
        """Let extensions read what they need besides the queue's log.

        Returns the offset from which `scanned` must be given all of the log; None: nothing.
        """
        recovering = [extension for extension in self._extensions if extension.recovers]
        for extension in recovering:
            await extension.recover()
        firsts = (extension.scans_from for extension in recovering)
        return min((first for first in firsts if first is not None), default=None)

    def scanned(self, batch: Batch) -> None:
        """Give a batch of the log to the extensions that must see all records."""
        for extension in self._extensions:
            if extension.scans_from is not None and extension.scans_from < batch.stop_offset:
                extension.scanned(batch)

    def log_scanned(self) -> None:
        """Tell the extensions that must see all records that they have."""
        for extension in self._extensions:
            if extension.scans_from is not None:
                extension.recovered()

    def _close_extensions(self, *, keep_lasting: bool = False) -> None:
        """Close all extensions, or those that do not outlive a change of the queue's order."""
        kept: dict[ExtensionKind, QueueExtension] = {}
        for kind, extension in self._extended.items():
            if keep_lasting and extension.outlives_reordering:
                kept[kind] = extension
            else:
                extension.close()
        self._extended, self._extensions = kept, tuple(kept.values())

    def _note_pump(self, *, delivered: bool, held_up: bool) -> None:
        """Note since which pump consumers lacked shared capacity (see turn.TouchedQueue)."""
        if delivered or not held_up:
            self.passed_over_in = 0
        elif not self.passed_over_in:
            self.passed_over_in = self._turn.pump_number

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, after a policy change."""
        self.settings = settings
        if not self.deleted:
            self.log.retention = settings.retention
            self.log.require_copies(settings.copies_min, waits=settings.waits_for_copies)
            self._turn.touch(self)

    def release(self) -> None:
        """Resume appending: what it was `held` for is restored."""
        self._release()
        if not self.deleted:
            self._turn.touch(self)

    # -- contents

    died_count: int = 0  # streams discard nothing

    @property
    def holds_messages(self) -> bool:
        """Whether it has messages in any state, those that its extensions hold included."""
        own = self.message_count or self.leased_count or self.delayed_count
        return bool(own) or any(extension.holds_messages for extension in self._extensions)

    @property
    def position(self) -> int:
        """Number of records ever published to it, those gathered in this turn included."""
        return self.log.end + self.builder.count

    def total_usage(self) -> Usage:
        """Return the queue's usage since it was opened."""
        value = self.counters.value
        return Usage(
            self.appended_count,
            self.log.appended_bytes,
            sum(value(mode) for mode in HANDED_OUT),
            value(BYTES_OUT),
        )

    @property
    def held_bytes(self) -> int:
        """Estimated memory in bytes, from sizes that are known without reading messages.

        Consumers count for their connections, the page cache not at all.
        """
        log, series = self.log, self.counters.series
        history: int = 0 if series is None else series.held_bytes
        known = log.settled.held_bytes + log.undone.held_bytes + log.returns.held_bytes
        known += log.erased.held_bytes
        known += sum(extension.held_bytes for extension in self._extensions)
        return QUEUE_BYTES + history + log.held_bytes + known

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that are delayed."""
        return 0

    @property
    def dead_letters_waiting(self) -> int:
        """Number of dead letters waiting for a target to accept them; they are leased."""
        return 0

    # -- publishing

    def gathers(self) -> bool:
        """Whether it waits for the next turn, since a publisher has more to send."""
        builder = self.builder
        self._turns_gathered += 1
        if builder.count and builder.size < GATHERED_BYTES and self._turns_gathered < TURNS_MAX:
            return True
        self._turns_gathered = 0
        return False

    @property
    def outlived_by_whole(self) -> bool:
        """Whether it was a partition that was removed, and its queue is still there."""
        return self.part_of is not None and not self.whole.deleted

    @property
    def limited_with(self) -> OpenQueue:
        """First opened partition of the whole queue, or the first one."""
        parts = self.whole.partitions or (self,)
        return next((part for part in parts if part.is_opened), parts[0])

    def _prepare(self) -> None:
        self.take_in(self.builder)

    def take_in(self, records: BatchBuilder) -> None:
        """Prepare records for being appended: drop duplicates."""
        for extension in self._extensions:
            extension.drop_duplicates(records)

    def undo(self, transaction: int, first: int, stop: int) -> None:
        """Undo an atomic write.

        Fail the confirms that may have waited for its records as originals.
        """
        if first < stop:
            refused = [extension.undone(first, stop) for extension in self._extensions]
            if any(refused):
                self._refuse_waiting(stop)
        super().undo(transaction, first, stop)

    def _forget_uncommitted(self) -> None:
        for extension in self._extensions:
            extension.truncated(self.log.end)

    def _close_publishing(self) -> None:
        super()._close_publishing()
        for extension in self._extensions:
            extension.delete()

    # -- settling

    @abstractmethod
    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Settle records."""

    @abstractmethod
    def return_(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        failed: bool = True,
        cause: Reason | None = None,
    ) -> None:
        """Requeue records; `failed`: their consumer failed to process them.

        `cause` is the reason for which the queue may retry them by its retry policy.
        """

    @abstractmethod
    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Discard records that consumers rejected."""
