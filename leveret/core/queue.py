"""A queue: its definition, its log, its machine and its consumers, tied together.

Called by the channels (declare, get, settle), by the turn (flush, pump) and by the log when a flush
to disk has moved the committed offset. It decides nothing about order or turns: that is the
machine's; it touches no file: that is the log's; and what it has in common with streams is
`OpenQueue`'s.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret.core.loss import loss_error
from leveret.core.machine import QueueMachine
from leveret.core.open_queue import PUMP_RECORDS_MAX, READ_BYTES_MAX, OpenQueue
from leveret.errors import CorruptBatchError, StorageError
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from leveret.core.machine import Deliver
    from leveret.core.open_queue import QueueConsumer
    from leveret.core.settings import QueueSettings
    from leveret.core.turn import Turn
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition
    from leveret.ports.records import Batch


class Reason(StrEnum):
    """Why a queue gives a message up."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAX_LENGTH = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class Window(NamedTuple):
    """The records [first, stop) of a batch."""

    batch: Batch
    first: int
    stop: int


class DeadLetter(Protocol):
    """Where a queue sends what it gives up, if its settings name an exchange."""

    def __call__(
        self, queue: Queue, windows: Sequence[Window], reason: Reason
    ) -> Collection[Queue]:
        """Deposit the records, in their order, with the queues they are for; returns those.

        The caller settles the records afterwards: at once, or with the strategy at-least-once when
        all of these queues have committed what was deposited.
        """
        ...


def drop(queue: Queue, windows: Sequence[Window], reason: Reason) -> Collection[Queue]:  # noqa: ARG001
    """Let dead letters vanish."""
    return ()


@dataclass(frozen=True, slots=True)
class QueueServices:
    """What the queues of a broker share.

    `spawn` runs reads that must wait for a device; `report` is told of storage errors.
    """

    turn: Turn
    spawn: Callable[[Coroutine[object, object, None]], object]
    report: Callable[[OpenQueue, Exception], None]
    dead_letter: DeadLetter = drop


class Queue(OpenQueue):
    """One queue of a virtual host, open."""

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        owner: object | None,
        log: TopicLog,
        services: QueueServices,
    ) -> None:
        super().__init__(definition, settings, owner, log, services)
        self.machine = QueueMachine(log.first, log.committed, log.settled, log.redelivered_stop)
        self._window: list[Batch] = []  # what was read last; deliveries go on from there
        self._fetching = False
        self._complaint = ""  # what was reported of reading, until it works again

    # -- what it holds

    @property
    def message_count(self) -> int:
        """Messages ready for delivery, those gathered in this turn included."""
        return self.machine.ready_count + self.builder.count + self.log.end - self.log.committed

    @property
    def leased_count(self) -> int:
        """Messages delivered and neither settled nor returned."""
        return self.machine.leased_count

    @property
    def consumer_count(self) -> int:
        """Consumers, whether or not they can take anything now."""
        return self.machine.consumer_count

    def _show_committed(self) -> None:
        self.machine.committed(self.log.committed)

    # -- consuming

    def admits(self, *, exclusive: bool) -> bool:
        """Whether nobody consumes who wants to be alone, or else would have to be."""
        return self.machine.admits(exclusive=exclusive)

    def add_consumer(self, consumer: QueueConsumer, *, exclusive: bool = False) -> None:
        """Let `consumer` take part from the next turn on. Ask `admits` first."""
        self.machine.add_consumer(consumer, exclusive=exclusive)
        self._turn.touch(self)

    def remove_consumer(self, consumer: QueueConsumer) -> None:
        """Deliver nothing more to `consumer`; what it holds stays leased."""
        self.machine.remove_consumer(consumer)
        self._turn.touch(self)

    def pump(self) -> bool:
        """Deliver what is ready to who can take it. Returns whether another turn could do more."""
        delivered = 0
        while delivered < PUMP_RECORDS_MAX:
            offer = self.machine.offer()
            if offer is None:
                if not self.machine.ready_count:
                    self._window = []
                return False
            batches = self._read(offer.first)
            if batches is None:
                return False
            delivered += self._deliver(offer, batches)
        return True

    def _deliver(self, offer: Deliver, batches: list[Batch]) -> int:
        """Send one offer. Returns how many records of it were sent (at least one)."""
        consumer: QueueConsumer = offer.consumer  # type: ignore[assignment]  # by add_consumer
        stop = consumer.send(batches, offer.first, offer.stop, redelivered=offer.redelivered)
        self.machine.deliver(offer, stop)
        if consumer.no_ack:
            self.settle([(offer.first, stop)])
        return stop - offer.first

    def get(self) -> tuple[int, bool] | None:
        """Lease the oldest ready message for basic.get: (offset, redelivered)."""
        return None if self.deleted else self.machine.get()

    async def record_batch(self, offset: int) -> Batch | None:
        """The batch that holds a leased record, from memory or from the device.

        None where it cannot be read any more: the record is lost, and settled.
        """
        batch = self.batch_at_hand(offset)
        if batch is None and await self._fill_window(offset, leased=True):
            batch = _batch_of(self._window, offset)
        return batch

    def batch_at_hand(self, offset: int) -> Batch | None:
        """The batch that holds `offset` if it can be had without waiting."""
        try:
            batches = self._read_window(offset)
        except CorruptBatchError:
            return None  # dealing with damage takes waiting
        return None if batches is None else _batch_of(batches, offset)

    def _read(self, offset: int) -> list[Batch] | None:
        """Batches from `offset`'s on; None after asking for them where they are not at hand."""
        if self._fetching:
            return None
        try:
            batches = self._read_window(offset)
        except StorageError:
            batches = None  # whoever fetches meets it again, and deals with it
        if batches is None:
            self._fetching = True
            self._spawn(self._fetch(offset))
        return batches

    def _read_window(self, offset: int) -> list[Batch] | None:
        window = self._window
        if window and window[0].base_offset <= offset < window[-1].stop_offset:
            return window
        batches = self.log.read(offset, READ_BYTES_MAX)
        if batches is not None:
            self._hold(batches, offset)
        return batches

    def _hold(self, batches: list[Batch], offset: int) -> None:
        """Keep what was read for `offset`, which must be in it: it is ready or leased."""
        if not batches or not batches[0].base_offset <= offset < batches[-1].stop_offset:
            raise CorruptBatchError(f"offset {offset} is missing from the log of {self!r}")
        self._window = batches

    async def _fetch(self, offset: int) -> None:
        try:
            await self._fill_window(offset)
        except StorageError as error:
            if not self.deleted:
                self._complain(error)
            return
        finally:
            self._fetching = False
        self._turn.touch(self)

    async def _fill_window(self, offset: int, *, leased: bool = False) -> bool:
        """Read from `offset` on; False where it is lost: nobody shall ask for it any more."""
        try:
            self._hold(await self.log.fetch(offset, READ_BYTES_MAX), offset)
        except CorruptBatchError:
            if await self._set_aside(offset, leased=leased):
                return False
            self._hold(await self.log.fetch(offset, READ_BYTES_MAX), offset)
        self._complaint = ""
        return True

    async def _set_aside(self, offset: int, *, leased: bool) -> bool:
        """Give up what can be read no more, and say so. Returns whether `offset` is gone by that.

        What others hold leases on stays theirs: it was delivered.
        """
        damage = await self.log.set_aside(offset)
        if self.deleted:
            return True
        lost = RangeSet(self.machine.lose(damage.lost))
        if leased and offset in damage.lost:
            self.machine.settle([(offset, offset + 1)])
            lost.add(offset, offset + 1)
        self.log.settle(list(lost))
        if lost or damage.kept:
            self._complain(loss_error(lost, damage.kept))
        return offset in damage.lost or offset in self.log.settled

    def _complain(self, error: StorageError) -> None:
        """Report what reading met: once, for as long as it is the same."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            self._report(self, error)

    # -- settling

    def settle(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The records are done with."""
        if self.deleted:
            return
        self.machine.settle(ranges)
        self.log.settle(ranges)

    def return_(self, ranges: Sequence[tuple[int, int]]) -> None:
        """The records are to be delivered again, from their old places."""
        if self.deleted:
            return
        self.machine.return_(ranges)
        self.log.redelivered_stop = self.machine.redelivered_stop
        self._turn.touch(self)

    def discard(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Consumers gave the records up."""
        self.settle(ranges)

    def wake(self) -> None:
        """A consumer can take more."""
        if self.machine.ready_count and not self.deleted:
            self._turn.touch(self)

    def purge(self) -> int:
        """Settle everything ready. Returns how many messages that were."""
        if self.deleted:
            return 0
        ranges = list(self.machine.purge())
        self.log.settle(ranges)
        return sum(stop - first for first, stop in ranges)

    # -- the end

    def mark_deleted(self) -> None:
        """Nothing more happens here: publishers hear yes, consumers that the queue is gone."""
        self._let_publishers_go()
        self._window = []
        for consumer in list(self.machine.consumers):
            consumer.queue_gone()  # type: ignore[attr-defined]  # added by add_consumer


def _batch_of(batches: list[Batch], offset: int) -> Batch:
    """The batch of a window that holds `offset`, which is within the window."""
    if len(batches) == 1:
        return batches[0]
    return batches[bisect_right(batches, offset, key=_base_offset) - 1]


_base_offset = attrgetter("base_offset")
