"""The delayed messages of one virtual host: kept in the topic `leveret.delayed` until they are due.

A message that is taken is a record of the topic; what its headers say of its schedule is all the
state there is. When it is due it is routed and put into its queues, and settled in the topic once
they have committed it: a crash in between may deliver it twice, and never loses it.

A message takes the place of an older one when it is published under a pending id, when a schedule
is changed, and when a message that repeats itself goes on. The newer one is written first, and the
older one is settled when that is committed; should the node die in between, whoever opens the topic
finds both and settles the older one. While a newer one is being written the older one stays where
it is, even if it becomes due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from leveret.core.dead_letters.publish import NOWHERE
from leveret.core.definitions.validation import AdministrationError
from leveret.core.delay.due_delivery import DueDelivery, DueRouting
from leveret.core.delay.schedule_ids import ScheduleIds
from leveret.core.delay.scheduled import (
    MARKED,
    ScheduleKey,
    as_shown,
    broker_offset,
    key_in,
    next_occurrence,
    own_key,
    raw_headers,
)
from leveret.core.routing.message import StoredMessage
from leveret.errors import LeveretError, StorageError
from leveret.ports.log_text import quoted
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from leveret.core.dead_letters.publish import Missing, Ranges, Written
    from leveret.core.delay.scheduled import Draft
    from leveret.core.delayed_store.store import DelayedMessageStore, PendingMessage
    from leveret.core.delayed_store.stores import DelayedMessageStores
    from leveret.core.publish_interceptors import Publisher
    from leveret.core.routing.message import Message
    from leveret.core.timers import Timers
    from leveret.core.turn import Turn
    from leveret.core.vhost import Vhost
    from leveret.ports import StateStore
    from leveret.ports.records import Batch

__all__ = ["DELAYED_TOPIC", "DelayServices", "DelayedMessages"]

DELAYED_TOPIC = "leveret.delayed"
# A queue that is full has room again when somebody has consumed; a full disk takes longer.
RETRY_MS = 1000
LEARN_BYTES = 1 << 20  # of the log at a time, while its ids are learnt
COVER_RECORDS = 10_000  # so many may have to be looked at again after a crash


class DelayServices(NamedTuple):
    """What the delayed messages of all virtual hosts share.

    `unrouted(vhost, message)` is told of a message that no queue was for when it was due.
    """

    stores: DelayedMessageStores
    state: StateStore
    turn: Turn
    timers: Timers
    spawn: Callable[[Coroutine[object, object, None]], object]
    report: Callable[[object, Exception], None]
    unrouted: Callable[[str, Message], None]


class DelayedMessages:
    """Takes messages, and delivers them when they are due."""

    def __init__(self, vhost: Vhost, services: DelayServices, *, is_new: bool) -> None:
        """`is_new`: nothing was left by an earlier run. Raises StorageError."""
        self.vhost = vhost
        self.ids = ScheduleIds(vhost.name, services.state)
        if is_new:
            self.ids.clear()  # what a virtual host of the same name may have left
        self.unroutable = 0  # messages that no queue was for when they were due
        self.closed = False
        self._services = services
        self._replaced: dict[
            int, PendingMessage | None
        ] = {}  # each, if it has become due meanwhile
        self._going_on: dict[
            int, PendingMessage
        ] = {}  # delivered, and not kept for the next time yet
        self._publishers: dict[int, ref[Publisher]] = {}  # of mandatory messages
        self._held: dict[int, Written] = {}  # by whom, what others had no room for
        self._early: list[PendingMessage] = []  # due before it is known what has taken whose place
        self._learning = True
        self._covered = 0
        self._missing_exchanges: set[bytes] = set()  # that the operator has heard of
        self._retry = services.timers.timer(self._go_on_again)
        self.store: DelayedMessageStore = services.stores.open(vhost.name, DELAYED_TOPIC, self._due)
        if is_new:
            self._learning = False
        else:
            services.spawn(self._learn_ids(self.store.log.committed))

    def __str__(self) -> str:
        return f"delayed messages of vhost {quoted(self.vhost.name)}"

    def __repr__(self) -> str:
        return f"DelayedMessages({self.vhost.name!r})"

    # -- taking

    def add(self, draft: Draft, publisher: Publisher | None = None) -> int:
        """Keep a message. `publisher` wants it back if it is unroutable. Returns its offset."""
        older = None if draft.key is None else self._find_older(draft.key)
        offset = self._write(draft)
        if publisher is not None:
            self._publishers[offset] = ref(publisher)
        if draft.key is not None:
            self._follow(draft.key, older, offset)
        return offset

    def _find_older(self, key: ScheduleKey) -> int | None:
        """The pending message of the same id and owner, or the one that an older release kept."""
        for each in (key, ScheduleKey(key.id)):
            offset = self.ids.find(each)
            if offset is not None and self.is_pending(offset):
                return offset
        return None

    def replace(self, older: PendingMessage, draft: Draft) -> int:
        """Keep a message in the place of a pending one. Returns its offset."""
        offset = self._write(draft)
        publisher = self._publishers.get(older.offset)
        if publisher is not None:
            self._publishers[offset] = publisher
        assert draft.key is not None, "whoever takes a place is found by its id"
        self._follow(draft.key, older.offset, offset)
        return offset

    def _write(self, draft: Draft) -> int:
        due_ms, flags, exchange, routing_key, header, body, _ = draft
        offset = self.store.add(due_ms, flags, exchange, routing_key, header, body)
        if offset >= self._covered + COVER_RECORDS:
            self._covered = offset
            self.ids.cover(self.store.log.committed)
        return offset

    def _follow(self, key: ScheduleKey, older: int | None, offset: int) -> None:
        self.ids.begin(key, offset)
        if older is not None:
            self._replaced[older] = None
        self.store.await_commit(_Succession(self, key, older, offset))

    def succeeded(self, key: ScheduleKey, older: int | None, offset: int, *, failed: bool) -> None:
        """A message that has an id is committed, or could not be written."""
        if failed:
            self.ids.lose(key, offset)
            self._publishers.pop(offset, None)
            due = None if older is None else self._replaced.pop(older, None)
            if due is not None:
                self._deliver([due])
            elif older in self._going_on:
                self._retry_later()
            return
        self.ids.keep(key, offset)
        if older is not None:
            self.ids.forget(ScheduleKey(key.id), older)
            self._replaced.pop(older, None)
            self._going_on.pop(older, None)
            self._settle(older)

    def cancel(self, message: PendingMessage) -> bool:
        """Deliver a message never. False where it is too late for that."""
        if not self.is_pending(message.offset):
            return False
        self._settle(message.offset)
        self._forget_id(message)
        return True

    def _settle(self, offset: int) -> None:
        self._publishers.pop(offset, None)
        if not self.store.cancel(offset):
            self.store.settle([(offset, offset + 1)])

    # -- looking up

    def find(self, id_: str, owner: str | None = None) -> int | None:
        """The offset of a pending message, by its publisher's or by the broker's id.

        The one of `owner` goes before others'. Raises AdministrationError where several users have
        a message with this id, and none is meant.
        """
        own = None if owner is None else self.ids.find(ScheduleKey(id_, owner))
        if own is not None and self.is_pending(own):
            return own
        offsets = [offset for offset in self.ids.offsets(id_) if self.is_pending(offset)]
        if len(offsets) > 1:
            raise AdministrationError(
                "invalid",
                f"{len(offsets)} users have a message with id '{id_}': name it by its broker id",
            )
        if offsets:
            return offsets[0]
        offset = broker_offset(id_)
        return offset if offset is not None and self.is_pending(offset) else None

    def is_pending(self, offset: int) -> bool:
        """Whether a record of the topic waits for its time, and nothing has taken its place."""
        return self.store.waits(offset) and offset not in self._replaced

    # -- delivering

    def _due(self, messages: Sequence[PendingMessage]) -> None:
        """Deliver messages that are due, in the order in which they were published."""
        if self._learning:
            self._early += messages
        else:
            self._deliver(messages)

    def _deliver(self, messages: Sequence[PendingMessage]) -> None:
        if self.closed:
            return
        if not self._held:
            self._deposit(messages, NOWHERE)
            return
        by_holders: dict[Written, list[PendingMessage]] = {}
        for message in messages:
            held = self._held.pop(message.offset, NOWHERE)
            by_holders.setdefault(held, []).append(message)
        for held, of_these in by_holders.items():
            self._deposit(of_these, held)

    def _deposit(self, messages: Sequence[PendingMessage], held: Written) -> None:
        marked: dict[int, PendingMessage] = {}
        leaving: list[PendingMessage] = []
        for message in messages:
            offset = message.offset
            if offset in self._replaced:
                self._replaced[offset] = message
            elif not message.flags & MARKED:
                leaving.append(message)
            elif self._is_outlived(message):
                self._settle(offset)
            else:
                marked[offset] = message
                leaving.append(as_shown(message))
        if not leaving:
            return
        routing = DueRouting(self.vhost)
        delivery = DueDelivery(routing.route, self._services.timers.wall_ms(), held)
        delivery.deposit(leaving)
        if delivery.unrouted:
            self._give_back(delivery.unrouted, routing.gone)
        delivery.begin(
            self._services.turn,
            lambda ranges, missing: self._delivered(marked, ranges, missing),
        )

    def _is_outlived(self, message: PendingMessage) -> bool:
        """Whether another has taken its place, which the node died upon."""
        key = own_key(message)
        if key is None:
            return False
        if not key.owner:  # whoever published under this id since has taken its place
            return any(offset > message.offset for offset in self.ids.offsets(key.id))
        newest = self.ids.find(key)
        return newest is not None and newest > message.offset

    def _give_back(self, unrouted: list[PendingMessage], gone: set[bytes]) -> None:
        """No queue is for these messages: their publishers hear of it, if they want to and can."""
        for message in unrouted:
            held = self._publishers.get(message.offset)
            publisher = held() if held is not None else None
            stored = StoredMessage(*message[3:], message.flags)
            self._services.unrouted(self.vhost.name, stored)
            if publisher is not None and publisher.alive:
                publisher.send_back(stored)
            else:
                self.unroutable += 1
        for name in gone - self._missing_exchanges:
            self._missing_exchanges.add(name)
            text = f"no exchange '{name.decode()}' any more: delayed messages to it are dropped"
            self._services.report(self, LeveretError(text))

    def _delivered(
        self, marked: dict[int, PendingMessage], ranges: Ranges, missing: list[Missing]
    ) -> None:
        """The queues have what they were given, or most of it."""
        if self.closed:
            return
        done = RangeSet(ranges)
        if self._publishers:
            for offset in (offset for first, stop in ranges for offset in range(first, stop)):
                self._publishers.pop(offset, None)
        for offset, message in marked.items():
            if offset in done and self._goes_on(message):
                done.remove(offset, offset + 1)
            elif offset in done:
                self._forget_id(message)
        if done:
            self.store.settle(list(done))
        if missing:
            self._hand_back(missing)

    def _forget_id(self, message: PendingMessage) -> None:
        key = own_key(message)
        if key is not None:
            self.ids.forget(key, message.offset)

    def _goes_on(self, message: PendingMessage) -> bool:
        """Whether a message that was delivered is due again; then it is kept for that time."""
        following = next_occurrence(message, self._services.timers.wall_ms())
        if following is None:
            return False
        self._going_on[message.offset] = message
        self.replace(message, following)
        return True

    def _hand_back(self, missing: list[Missing]) -> None:
        """Some queue refused these: they are due again soon, for whoever does not have them."""
        for first, stop, held in missing:
            if held:
                self._held.update(dict.fromkeys(range(first, stop), held))
        again_ms = self._services.timers.wall_ms() + RETRY_MS
        self.store.retry_later([(first, stop) for first, stop, _ in missing], again_ms)

    def _retry_later(self) -> None:
        if self._retry.due_ms is None:
            self._retry.set(self._services.timers.wall_ms() + RETRY_MS)

    def _go_on_again(self) -> None:
        stuck, self._going_on = self._going_on, {}
        for message in stuck.values():
            if message.offset in self._replaced:  # it is being written just now
                self._going_on[message.offset] = message
            else:
                self._goes_on(message)

    async def committed(self) -> None:
        """Until all that was taken so far is committed, or could not be."""
        gate = _Gate()
        self.store.await_commit(gate)
        await gate

    # -- opening and closing

    async def _learn_ids(self, stop: int) -> None:
        """Find what an earlier run wrote and did not note, and what had taken whose place."""
        offset = max(self.ids.covered, self.store.log.first)
        try:
            while offset < stop and not self.closed:
                batches = await self._read(offset)
                if not batches:
                    break
                for batch in batches:
                    self._learn_from(batch, offset)
                offset = batches[-1].stop_offset
        except StorageError as error:
            self._services.report(self, error)
        else:
            self.ids.cover(stop)
        self._learning = False
        early, self._early = self._early, []
        self._deliver(early)

    async def _read(self, offset: int) -> list[Batch]:
        log = self.store.log
        batches = log.read(offset, LEARN_BYTES)
        return await log.fetch(offset, LEARN_BYTES) if batches is None else batches

    def _learn_from(self, batch: Batch, first: int) -> None:
        for offset, flags, _, _, _, header, _ in batch.records():
            if offset < first or not flags & MARKED or offset in self.store.log.settled:
                continue
            key = key_in(raw_headers(header))
            if key is None:
                continue
            without_owner = ScheduleKey(key.id)
            for older in {
                self.ids.find(key),
                self.ids.find(without_owner),
                broker_offset(key.id),
            }:
                if older is not None and older < offset and self.is_pending(older):
                    self._settle(older)
            self.ids.keep(key, offset)

    def close(self) -> None:
        """The virtual host is gone, and so are its messages; the store is its owner's to delete."""
        self.closed = True
        self._retry.set(None)
        self.ids.clear()


class _Succession:
    """Waits until a message with an id is committed."""

    def __init__(
        self, messages: DelayedMessages, key: ScheduleKey, older: int | None, offset: int
    ) -> None:
        self._messages = messages
        self._told = (key, older, offset)

    def done(self, *, failed: bool) -> None:
        """See Waiter."""
        self._messages.succeeded(*self._told, failed=failed)


class _Gate:
    """Await it: whoever does goes on in the pass of the loop behind `done`."""

    def __init__(self) -> None:
        self._open = False

    def done(self, *, failed: bool) -> None:  # noqa: ARG002
        """See Waiter."""
        self._open = True

    def __await__(self) -> Generator[None, None, None]:
        while not self._open:
            yield
