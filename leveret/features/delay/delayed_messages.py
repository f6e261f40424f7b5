"""Delayed messages of one virtual host: kept in the topic `leveret.delayed` until they are due.

A delayed message is a record of the topic; the scheduling headers in it are its only state. When it
is due it is routed and put into its queues, and settled in the topic once they have committed it: a
crash in between may deliver it twice, and never loses it.

A message replaces an older one when it is published under a pending id, when a schedule is changed,
and when a repeated message gets its next due time. The newer one is written first, and the older
one is settled when that is committed; after a crash in between, opening the topic finds both and
settles the older one. While a newer one is being written the older one stays, even if it becomes
due.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from leveret.core.definitions.validation import AdministrationError
from leveret.core.routing.message import raw_headers
from leveret.errors import LeveretError
from leveret.features.dead_letter.publish import NOWHERE
from leveret.features.delay.due_delivery import DueDelivery, DueRouting
from leveret.features.delay.due_list import flagged_headers
from leveret.features.delay.schedule_ids import ScheduleIds
from leveret.features.delay.scheduled import (
    MARKED,
    ScheduleKey,
    as_shown,
    broker_offset,
    key_in,
    next_occurrence,
    own_key,
)
from leveret.ports.after_all import AfterAll
from leveret.ports.log_text import quoted
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.core.dependencies import CoreServices
    from leveret.core.publish_interceptors import Publisher
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.features.dead_letter.publish import Missing, Ranges, Written
    from leveret.features.delay.scheduled import Draft
    from leveret.features.delay.store import (
        DelayedMessageStore,
        DelayedMessageStores,
        PendingMessage,
    )
    from leveret.ports.records import Batch

__all__ = ["DELAYED_TOPIC", "DelayedMessages"]

DELAYED_TOPIC = "leveret.delayed"
# A full queue has room again when messages are consumed; a full disk takes longer.
RETRY_MS = 1000
COVER_RECORDS = 10_000  # records that may have to be read again after a crash


class DelayedMessages:
    """Stores delayed messages, and delivers them when they are due.

    `unrouted(vhost, message)` gets a due message that no queue matches.
    """

    def __init__(
        self,
        vhost: Vhost,
        services: CoreServices,
        stores: DelayedMessageStores,
        unrouted: Callable[[str, Message], None],
        *,
        is_new: bool,
    ) -> None:
        """Open the topic; `is_new`: an earlier run has left nothing. Raises StorageError."""
        self.vhost = vhost
        self.ids = ScheduleIds(vhost.name, vhost.incarnation, services.state)
        if is_new:
            self.ids.clear()  # of a deleted virtual host of the same name
        self.unroutable = 0  # due messages that no queue matched
        self.closed = False
        self._services = services
        self._unrouted = unrouted
        self._replaced: dict[
            int, PendingMessage | None
        ] = {}  # being replaced; set if it became due
        self._going_on: dict[int, PendingMessage] = {}  # delivered, next occurrence not yet written
        self._publishers: dict[int, ref[Publisher]] = {}  # publishers of mandatory messages
        self._held: dict[int, Written] = {}  # builders that hold a message which others refused
        self._early: list[PendingMessage] = []  # due before ids are restored
        self._restoring = not is_new
        self._covered = 0
        self._missing_exchanges: set[bytes] = set()  # already reported
        self._retry = services.timers.timer(self._go_on_again)
        self.covered = self.ids.covered  # ids of records from here on are not indexed
        self.store: DelayedMessageStore = stores.open(
            vhost.name,
            DELAYED_TOPIC,
            self._due,
            vhost.incarnation,
            scan_listener=None if is_new else self,
        )
        self._scan_stop = self.store.log.committed

    def __str__(self) -> str:
        return f"delayed messages of vhost {quoted(self.vhost.name)}"

    def __repr__(self) -> str:
        return f"DelayedMessages({self.vhost.name!r})"

    # -- storing

    def add(self, draft: Draft, publisher: Publisher | None = None) -> int:
        """Store a message. An unroutable one is returned to `publisher`. Returns its offset."""
        older = None if draft.key is None else self._find_older(draft.key)
        offset = self._write(draft)
        if publisher is not None:
            self._publishers[offset] = ref(publisher)
        if draft.key is not None:
            self._follow(draft.key, older, offset)
        return offset

    def _find_older(self, key: ScheduleKey) -> int | None:
        """Return the pending message with the same id and owner, or one of an older release."""
        for each in (key, ScheduleKey(key.id)):
            offset = self.ids.find(each)
            if offset is not None and self.is_pending(offset):
                return offset
        return None

    def replace(self, older: PendingMessage, draft: Draft) -> int:
        """Store a message in place of a pending one. Returns its offset."""
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
        self._publishers.pop(offset, None)  # of a message that was to be stored there, and was not
        if offset >= self._covered + COVER_RECORDS:
            self._covered = offset
            self.ids.cover(self.store.log.committed)
        return offset

    def _follow(self, key: ScheduleKey, older: int | None, offset: int) -> None:
        self.ids.begin(key, offset)
        if older is not None:
            self._replaced[older] = None
        succeeded = partial(self._succeeded, key, older, offset)
        self.store.await_commit(AfterAll(1, succeeded))

    def _succeeded(self, key: ScheduleKey, older: int | None, offset: int, *, failed: bool) -> None:
        """Handle the commit of a message with an id, or its failure."""
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
        """Cancel a message. Returns False if it is too late."""
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
        """Return the offset of a pending message, by its publisher's or the broker's id.

        That of `owner` takes precedence. Raises AdministrationError if several users have a message
        with this id, and none is preferred.
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
        """Whether a record of the topic is pending and has not been replaced."""
        return self.store.waits(offset) and offset not in self._replaced

    # -- delivering

    def _due(self, messages: Sequence[PendingMessage]) -> None:
        """Deliver due messages, given in due order."""
        if self._restoring:
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
        delivery = DueDelivery(leaving, routing.route, self._services.timers.wall_ms(), held)
        if delivery.unrouted:
            self._give_back(delivery.unrouted, routing.gone)
        delivery.deliver(self._services.turn, partial(self._delivered, marked))

    def _is_outlived(self, message: PendingMessage) -> bool:
        """Whether a newer message has replaced it, and a crash prevented its settlement."""
        key = own_key(message)
        if key is None:
            return False
        if not key.owner:  # any later message with this id has replaced it
            return any(offset > message.offset for offset in self.ids.offsets(key.id))
        newest = self.ids.find(key)
        return newest is not None and newest > message.offset

    def _give_back(self, unrouted: list[PendingMessage], gone: set[bytes]) -> None:
        """Return unroutable messages to their publishers if those want and can take them."""
        for message in unrouted:
            held = self._publishers.get(message.offset)
            publisher = held() if held is not None else None
            stored = message.stored
            self._unrouted(self.vhost.name, stored)
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
        """Settle or continue delivered messages, and retry those that queues refused."""
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
            self._retry_missing(missing)

    def _forget_id(self, message: PendingMessage) -> None:
        key = own_key(message)
        if key is not None:
            self.ids.forget(key, message.offset)

    def _goes_on(self, message: PendingMessage) -> bool:
        """Store the next occurrence of a delivered message, if it has one.

        Returns whether it does.
        """
        following = next_occurrence(message, self._services.timers.wall_ms())
        if following is None:
            return False
        if self._is_outlived(message):  # while it was under way
            key = own_key(message)
            if key is None or not self.ids.is_being_written(key):
                return False
            self._going_on[message.offset] = message
            self._retry_later()  # the newer one may yet be lost
            return True
        self._going_on[message.offset] = message
        self.replace(message, following)
        return True

    def _retry_missing(self, missing: list[Missing]) -> None:
        """Retry messages soon that some queues refused, for those queues only."""
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
            if message.offset in self._replaced:  # its next occurrence is being written
                self._going_on[message.offset] = message
            elif not self._goes_on(message):
                self._forget_id(message)
                self._settle(message.offset)

    async def committed(self) -> None:
        """Wait until everything stored so far is committed, or has failed."""
        commit = AfterAll(1)
        self.store.await_commit(commit)
        await commit

    # -- opening and closing

    def scanned(self, batch: Batch) -> None:
        """Restore ids that were written but not indexed, and settle replaced messages."""
        if self.closed or batch.stop_offset <= self.covered:
            return
        for offset, header in flagged_headers(batch, MARKED):
            if offset < self.covered or offset in self.store.log.settled:
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

    def scan_ended(self) -> None:
        """Deliver what became due meanwhile."""
        self.ids.cover(self._scan_stop)
        self._restoring = False
        early, self._early = self._early, []
        self._deliver(early)

    def close(self) -> None:
        """Stop: the virtual host was deleted; its topic is deleted by the caller."""
        self.closed = True
        self._retry.set(None)
        self.ids.clear()
