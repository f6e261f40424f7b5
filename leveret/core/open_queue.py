"""What every kind of queue is: a definition and an open log that publishers append to.

Publishing is the same for all: records gather in the log's builder, a turn appends them as one
batch, and whoever waits is told when the log has committed them. What becomes of committed records
is the business of the kinds: `Queue` hands each out once, `Stream` keeps them for any number of
readers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Protocol

from leveret.core.policies import NO_POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.core.queue import QueueServices
    from leveret.core.settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.definitions import Arguments, QueueDefinition
    from leveret.ports.records import Batch, BatchBuilder

# One queue's share of a turn, so that a long backlog does not keep other queues and sockets
# waiting.
PUMP_RECORDS_MAX = 20_000


class QueueConsumer(Protocol):
    """What a queue needs of a consumer beyond what its machine does."""

    priority: int
    no_ack: bool
    arguments: Arguments  # what the client asked for, checked

    in_flight: int

    def capacity(self) -> int:
        """How many more deliveries it may take now."""
        ...

    def credit(self) -> int:
        """How many it may take as soon as its connection has sent what it has."""
        ...

    def send(self, batches: list[Batch], first: int, stop: int, *, redelivered: bool) -> int:
        """Write deliveries of the records [first, stop). Returns the offset behind the last."""
        ...

    def queue_gone(self) -> None:
        """The queue was deleted: tell the client."""
        ...


class Waiter(Protocol):
    """Whoever waits until records are committed: a publisher's confirm, a barrier."""

    def done(self, *, failed: bool) -> None:
        """Called once."""
        ...


class OpenQueue(ABC):
    """One queue of a virtual host, open, whatever its kind."""

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        log: TopicLog,
        services: QueueServices,
    ) -> None:
        self.definition = definition
        self.settings = settings
        self.policy = NO_POLICY  # what the settings were resolved with beside the arguments
        self.owner = owner
        self.log = log
        self.builder: BatchBuilder = log.builder
        self.builder.owner = self
        self.touched = False
        self.deleted = False
        self._turn = services.turn
        self._spawn = services.spawn
        self._report = services.report
        self._waiting: list[Waiter] = []  # for records that are still in the builder
        self._uncommitted: deque[tuple[int, list[Waiter]]] = deque()  # (stop offset, whose waiters)
        log.on_commit(self._committed)
        log.on_failure(self._failed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.definition.vhost!r}, {self.definition.name!r})"

    def reconfigure(self, settings: QueueSettings) -> None:
        """Behave by other settings from now on: a policy has changed."""
        self.settings = settings
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

    @property
    def delayed_count(self) -> int:
        """Messages that came back and will be ready later."""
        return 0

    @property
    @abstractmethod
    def consumer_count(self) -> int:
        """Consumers, whether or not they can take anything now."""

    # -- publishing

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything published so far is committed, perhaps at once."""
        if self.deleted:
            waiter.done(failed=False)
        elif self.builder.count:
            self._waiting.append(waiter)
            self._turn.touch(self)
        elif self.log.committed < self.log.end:
            self._uncommitted.append((self.log.end, [waiter]))
        else:
            waiter.done(failed=False)

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published so far is committed."""
        return not self.builder.count and self.log.committed == self.log.end

    def flush(self) -> None:
        """Write what has gathered as one batch, and confirm what that commits."""
        if not self.builder.count or self.deleted:
            return
        self._prepare()
        waiting, self._waiting = self._waiting, []
        if not self.builder.count:  # all of it was refused, and those concerned have heard of it
            for waiter in waiting:
                waiter.done(failed=False)
            return
        try:
            self.log.append()
        except Exception as error:  # noqa: BLE001  # whatever it is, publishers must hear no
            self._forget_uncommitted()
            self._report(self, error)
            for waiter in waiting:
                waiter.done(failed=True)
            return
        if self.log.committed == self.log.end:
            self._show_committed()
            for waiter in waiting:
                waiter.done(failed=False)
        elif waiting:
            self._uncommitted.append((self.log.end, waiting))

    def _prepare(self) -> None:  # noqa: B027  # most kinds have nothing to prepare
        """The builder's records are about to be appended; some may be refused."""

    def _forget_uncommitted(self) -> None:  # noqa: B027
        """Records from the log's end on, of which `_prepare` knew, are lost."""

    @abstractmethod
    def _show_committed(self) -> None:
        """The log's committed offset has moved: its records may be delivered."""

    def _committed(self) -> None:
        """The log's committed offset has moved later than during `append`."""
        if self.deleted:
            return
        committed = self.log.committed
        self._show_committed()
        while self._uncommitted and self._uncommitted[0][0] <= committed:
            for waiter in self._uncommitted.popleft()[1]:
                waiter.done(failed=False)
        self._turn.touch(self)

    def _failed(self, error: Exception) -> None:
        """Records that were written could not be flushed: whoever waits for them hears no."""
        self._forget_uncommitted()
        self._report(self, error)
        uncommitted, self._uncommitted = self._uncommitted, deque()
        for _, waiters in uncommitted:
            for waiter in waiters:
                waiter.done(failed=True)

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

    def used(self) -> None:  # noqa: B027  # most kinds do not mind
        """Somebody declared it, got from it or stopped consuming from it."""

    # -- settling

    @abstractmethod
    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The records are done with."""

    @abstractmethod
    def return_(self, ranges: Sequence[tuple[int, int]], *, failed: bool = True) -> None:
        """Consumers gave the records back; `failed`: because they could not cope with them."""

    @abstractmethod
    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Consumers gave the records up."""

    # -- the end

    @abstractmethod
    def mark_deleted(self) -> None:
        """Nothing more happens here: publishers hear yes, consumers that the queue is gone."""

    def _let_publishers_go(self) -> None:
        """The queue is deleted: whoever waits for a commit hears yes."""
        self.deleted = True
        self.builder.clear()
        waiters = self._waiting
        for _, more in self._uncommitted:
            waiters += more
        self._waiting, self._uncommitted = [], deque()
        for waiter in waiters:
            waiter.done(failed=False)
