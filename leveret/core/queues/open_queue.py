"""What every kind of queue is: a definition and an open log that publishers append to.

Publishing is the same for all (see LogWriter). What becomes of committed records is the business of
the kinds: `Queue` hands each out once, `Stream` keeps them for any number of readers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol

from leveret.core.dedup.window import DedupWindow
from leveret.core.definitions.policies import NO_POLICY
from leveret.core.logs.log_writer import LogWriter
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

    from leveret.core.access.rates import QueueRates
    from leveret.core.dead_letters.worker import Reason
    from leveret.core.dedup.window import DedupServices
    from leveret.core.queues.queue import QueueServices
    from leveret.core.queues.sending import Runs
    from leveret.core.queues.settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.definitions import Arguments, QueueDefinition
    from leveret.ports.records import Batch, BatchBuilder

# One queue's share of a turn, so that a long backlog does not keep other queues and sockets
# waiting.
PUMP_RECORDS_MAX = 20_000

# What a queue takes that is empty and rests, with its log (measured with 20,000), and a key of a
# window of duplicates, which takes 48 to 96.
QUEUE_BYTES = 8_000
KEY_BYTES = 72

HANDED_OUT = (DELIVER, DELIVER_NO_ACK, GET, GET_NO_ACK)


class QueueConsumer(Protocol):
    """What a queue needs of a consumer beyond what its machine does."""

    priority: int
    no_ack: bool
    arguments: Arguments  # what the client asked for, checked

    in_flight: int

    def capacity(self) -> int:
        """How many more it may take now; negative where it waits for what others take, too."""
        ...

    def credit(self) -> int:
        """How many it may take as soon as its connection has sent what it has."""
        ...

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Write deliveries of the records [first, stop). Returns the offset behind the last."""
        ...

    def send_runs(self, batches: list[Batch], runs: Runs, *, redelivered: bool) -> int:
        """The same of several runs, which the batches hold. Returns the offset behind the last."""
        ...

    def queue_gone(self) -> None:
        """The queue was deleted: tell the client."""
        ...


class OpenQueue(LogWriter):
    """One queue of a virtual host, open, whatever its kind."""

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
        self.opened_ms = services.timers.wall_ms()  # since when it counts
        self.counters = self.builder.counters = Counters()
        self.policy = NO_POLICY  # what the settings were resolved with beside the arguments
        self.owner = owner
        self.gone = False  # no way leads here any more
        self.rates: QueueRates | None = None  # where the settings ask for any
        self._spawn = services.spawn
        self._dedup_services = services.dedup
        self._dedup: DedupWindow | None = None
        self.dedup: DedupWindow | None = None  # the same, while the settings ask for it
        if services.dedup is not None and settings.dedup_window_ms is not None:
            self._dedup = self.dedup = self._make_window(services.dedup)
            self.dedup.restore()

    def _note_pump(self, *, delivered: bool, held_up: bool) -> None:
        """Remember since when nobody could take what is ready (see turn.TouchedQueue)."""
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
        """Behave by other settings from now on: a policy has changed."""
        self.settings = settings
        if not self.deleted:
            self._follow_window()
            self._turn.touch(self)

    def _follow_window(self) -> None:
        """What counts as a duplicate may have changed."""
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
        """See Windowed."""
        return self.settings.dedup_window_ms or 0

    @property
    def window_id(self) -> bytes:
        """See Windowed."""
        return self.definition.incarnation.encode()

    def keep_from(self, offset: int, seen_from: int) -> None:  # noqa: ARG002  # all of it is kept
        """See Windowed."""
        self.log.keep_from = offset

    def resume(self) -> None:
        """What had to be known to append is known."""
        self._release()
        if not self.deleted:
            self._turn.touch(self)

    # -- what it holds

    @property
    def name(self) -> str:
        """The queue's name within its virtual host."""
        return self.definition.name

    @property
    @abstractmethod
    def message_count(self) -> int:
        """Messages ready for delivery, those gathered in this turn included."""

    @property
    @abstractmethod
    def leased_count(self) -> int:
        """Messages delivered and neither settled nor returned."""

    def accounts(self) -> Sequence[Account]:
        """See Metered."""
        return (Account(Subject.QUEUE, self.definition.vhost, self.name),)

    def total_usage(self) -> Usage:
        """See Metered."""
        value = self.counters.value
        return Usage(
            self.appended_count,
            self.log.appended_bytes,
            sum(value(mode) for mode in HANDED_OUT),
            value(BYTES_OUT),
        )

    @property
    def held_bytes(self) -> int:
        """Memory that it takes: an estimate, from sizes that are known without looking at messages.

        Consumers count for their connections. What the page cache holds is the kernel's.
        """
        log, series = self.log, self.counters.series
        keys = 0 if self.dedup is None else self.dedup.key_count
        history: int = 0 if series is None else series.held_bytes
        known = log.settled.held_bytes + log.undone.held_bytes + log.returns.held_bytes
        return QUEUE_BYTES + history + log.held_bytes + known + keys * KEY_BYTES

    @property
    def delayed_count(self) -> int:
        """Messages that came back and will be ready later."""
        return 0

    @property
    def dead_letters_waiting(self) -> int:
        """Messages that it gave up, and that nobody has room for yet; they are leased."""
        return 0

    @property
    @abstractmethod
    def consumer_count(self) -> int:
        """Consumers, whether or not they can take anything now."""

    # -- publishing

    def _prepare(self) -> None:
        self.take_in(self.builder)

    def take_in(self, records: BatchBuilder) -> None:
        """See LogWriter."""
        if self.dedup is not None:
            self.dedup.admit(records)

    def undo(self, transaction: int, first: int, stop: int) -> None:
        """See LogWriter. A publish to a deleted queue is confirmed."""
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
        """Let `consumer` take part from the next turn on. Ask `admits` first."""

    @abstractmethod
    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Deliver nothing more to `consumer`."""

    @abstractmethod
    def pump(self) -> bool:
        """Deliver what can be delivered. Returns whether another turn could do more."""

    @abstractmethod
    def wake(self, consumer: QueueConsumer | None = None) -> None:
        """A consumer can take more: this one, or any."""

    def used(self) -> None:  # most kinds do not mind
        """Somebody declared it, got from it or stopped consuming from it."""

    # -- settling

    @abstractmethod
    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The records are done with."""

    @abstractmethod
    def return_(
        self,
        ranges: Sequence[tuple[int, int]],
        *,
        failed: bool = True,
        cause: Reason | None = None,
    ) -> None:
        """Consumers gave the records back; `failed`: because they could not cope with them.

        `cause` is why, where a queue may retry them by a retry_policy for that.
        """

    @abstractmethod
    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Consumers gave the records up."""

    # -- the end

    @abstractmethod
    def mark_deleted(self) -> None:
        """Nothing more happens here: publishers hear yes, consumers that the queue is gone."""
