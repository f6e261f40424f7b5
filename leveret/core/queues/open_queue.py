"""Base class of all kinds of queue: a definition and an open log that publishers append to.

Publishing is the same for all (see LogWriter); committed records are handled by the subclasses:
`Queue` delivers each once, `Stream` keeps them for any number of readers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

from leveret.core.definitions.policies import NO_POLICY
from leveret.core.logs.log_writer import LogWriter
from leveret.features.dedup.window import DedupWindow
from leveret.ports.counters import (
    BYTES_OUT,
    DELIVER,
    DELIVER_NO_ACK,
    GET,
    GET_NO_ACK,
    Counters,
)
from leveret.ports.log_text import quoted
from leveret.ports.usage import Account, Subject, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queues.queue import QueueServices
    from leveret.core.queues.sending import Runs
    from leveret.core.queues.settings import QueueSettings
    from leveret.features.dead_letter.worker import Reason
    from leveret.features.dedup.window import DedupServices
    from leveret.features.rates.rates import QueueRates
    from leveret.ports import TopicLog
    from leveret.ports.definitions import Arguments, QueueDefinition
    from leveret.ports.records import Batch, BatchBuilder

# Records delivered by one queue in a turn, so that a long backlog does not delay other queues and
# sockets.
PUMP_RECORDS_MAX = 20_000

# Memory of an idle, empty queue with its log (measured with 20,000), and of a de-duplication key,
# which takes 48 to 96.
QUEUE_BYTES = 8_000
KEY_BYTES = 72

HANDED_OUT = (DELIVER, DELIVER_NO_ACK, GET, GET_NO_ACK)


class QueueConsumer(Protocol):
    """Consumer as a queue sees it, in addition to the state's interface."""

    priority: int
    no_ack: bool
    arguments: Arguments  # validated arguments of basic.consume

    in_flight: int

    def capacity(self) -> int:
        """Return how many more deliveries it may take now; negative: waits for shared capacity."""
        ...

    def credit(self) -> int:
        """Return its capacity once its connection has sent its pending output."""
        ...

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Write deliveries of the records [first, stop).

        Returns the offset behind the last one sent.
        """
        ...

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """Write deliveries of several runs, which the batches contain.

        Returns the offset reached.
        """
        ...

    def queue_gone(self) -> None:
        """Notify the client that the queue was deleted."""
        ...


class OpenQueue(LogWriter):
    """An open queue of a virtual host, of any kind."""

    __slots__ = (
        "_dedup",
        "_dedup_services",
        "_spawn",
        "counters",
        "dedup",
        "definition",
        "gone",
        "opened_ms",
        "owner",
        "policy",
        "rates",
        "settings",
    )

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        log: TopicLog,
        services: QueueServices,
    ) -> None:
        super().__init__(log, services.turn, services.report)
        self.definition = definition
        self.settings = settings
        self.opened_ms = services.timers.wall_ms()  # the start of its counters
        self.counters = self.builder.counters = Counters()
        self.policy = NO_POLICY  # the policy that the settings were resolved with
        self.owner = owner
        self.gone = False  # no route leads here any more
        self.rates: QueueRates | None = None  # if the settings have any
        self._spawn = services.spawn
        self._dedup_services = services.dedup
        self._dedup: DedupWindow | None = None
        self.dedup: DedupWindow | None = None  # the same, while the settings enable it
        if services.dedup is not None and settings.dedup_window_ms is not None:
            self._dedup = self.dedup = self._make_window(services.dedup)
            self.dedup.restore()

    def _note_pump(self, *, delivered: bool, held_up: bool) -> None:
        """Note since which pump consumers lacked shared capacity (see turn.TouchedQueue)."""
        if delivered or not held_up:
            self.passed_over_in = 0
        elif not self.passed_over_in:
            self.passed_over_in = self._turn.pump_number

    def _make_window(self, services: DedupServices) -> DedupWindow:
        keeps = self.definition.durable and not self.definition.exclusive
        return DedupWindow(self, services, keeps=keeps)

    def __str__(self) -> str:
        return f"queue {quoted(self.definition.name)} in vhost {quoted(self.definition.vhost)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.definition.vhost!r}, {self.definition.name!r})"

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings from now on, after a policy change."""
        self.settings = settings
        if not self.deleted:
            self._follow_window()
            self._turn.touch(self)

    def _follow_window(self) -> None:
        """Enable or disable de-duplication according to the settings."""
        if self.settings.dedup_window_ms is None:
            if self.dedup is not None:
                self.dedup.end()
                self.dedup = self.log.keep_from = None
        elif self.dedup is None and self._dedup_services is not None:
            if self._dedup is None:
                self._dedup = self._make_window(self._dedup_services)
            self.dedup = self._dedup
            self.dedup.begin()

    @property
    def window_ms(self) -> int:
        """Length of the de-duplication window in ms; 0 while it is disabled."""
        return self.settings.dedup_window_ms or 0

    @property
    def window_id(self) -> bytes:
        """Id of the window in the state store: the queue's incarnation."""
        return self.definition.incarnation.encode()

    def keep_from(self, offset: int, seen_from: int) -> None:  # noqa: ARG002  # all of it is kept
        """Keep records from `offset` on in the log, settled or not, for the window."""
        self.log.keep_from = offset

    def resume(self) -> None:
        """Resume appending: the de-duplication window is restored."""
        self._release()
        if not self.deleted:
            self._turn.touch(self)

    # -- contents

    @property
    def name(self) -> str:
        """The queue's name within its virtual host."""
        return self.definition.name

    @property
    @abstractmethod
    def message_count(self) -> int:
        """Number of ready messages, those gathered in this turn included."""

    @property
    @abstractmethod
    def leased_count(self) -> int:
        """Number of messages delivered and neither settled nor returned."""

    def accounts(self) -> Sequence[Account]:
        """Return the accounts that the queue's usage is charged to."""
        return (Account(Subject.QUEUE, self.definition.vhost, self.name),)

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
        keys = 0 if self.dedup is None else self.dedup.key_count
        history: int = 0 if series is None else series.held_bytes
        known = log.settled.held_bytes + log.undone.held_bytes + log.returns.held_bytes
        return QUEUE_BYTES + history + log.held_bytes + known + keys * KEY_BYTES

    @property
    def delayed_count(self) -> int:
        """Number of returned messages that are delayed."""
        return 0

    @property
    def dead_letters_waiting(self) -> int:
        """Number of dead letters waiting for a target to accept them; they are leased."""
        return 0

    @property
    @abstractmethod
    def consumer_count(self) -> int:
        """Number of consumers, with or without capacity."""

    # -- publishing

    def _prepare(self) -> None:
        self.take_in(self.builder)

    def take_in(self, records: BatchBuilder) -> None:
        """Prepare records for being appended: drop duplicates."""
        if self.dedup is not None:
            self.dedup.admit(records)

    def undo(self, transaction: int, first: int, stop: int) -> None:
        """Undo an atomic write.

        Fail the confirms that may have waited for its records as originals.
        """
        if self.dedup is not None and first < stop:
            self.dedup.forget(first, stop)
            self._refuse_waiting(stop)
        super().undo(transaction, first, stop)

    def _forget_uncommitted(self) -> None:
        if self.dedup is not None:
            self.dedup.cut()

    def _let_publishers_go(self) -> None:
        super()._let_publishers_go()
        if self.dedup is not None:
            self.dedup.end()

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
    def pump(self) -> bool:
        """Deliver what can be delivered. Returns whether another turn could do more."""

    @abstractmethod
    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """Note that this consumer, or any, may have more capacity."""

    def used(self) -> None:  # most kinds ignore it
        """Note a use of the queue: a declaration, basic.get, or a consumer's end."""

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

    # -- the end

    @abstractmethod
    def mark_deleted(self) -> None:
        """Stop the queue: confirm waiting publishers, and notify its consumers."""
