"""Search of a virtual host's waiting messages by message id (see `commands`).

A waiting message is in no queue's log: it is to be retried, it is a Celery task that a queue holds,
it is delayed, or prepared and undecided. Its row has the `state` retry, eta, scheduled or prepared,
the `id` that operations use, and its due time.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from leveret.core.admin.node import AdminNode
from leveret.core.json_fields import plain
from leveret.core.queues.queue import Queue
from leveret.features.browse.browsing import SCANNED_MAX
from leveret.features.celery.eta_hold import EtaHold
from leveret.features.delay.search import DelayedMessageFilter, DelayedMessageSearch
from leveret.features.retry.retrying import RetryTopic
from leveret.features.trace.message_trace import WAITING, TraceStep, trace_steps
from leveret.ports.records import RecordFlag
from leveret.ports.waiting import let_others_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.routing.message import StoredMessage
    from leveret.core.vhost import Vhost
    from leveret.features.delay.delayed_delivery import DelayedDelivery
    from leveret.features.delay.store import DelayedMessageStore
    from leveret.features.transactions.prepared_interceptor import PreparedInterceptor

__all__ = [
    "END",
    "TraceCursor",
    "TraceNode",
    "TraceSearch",
    "partition_at",
    "partition_keys",
    "search_delayed",
    "search_prepared",
    "search_retries",
    "search_tasks",
    "step_row",
]

ROWS_MAX: Final = 100  # messages of one answer
NAMES_MAX: Final = 1000  # of queues that are looked at in one request, each some microseconds
SLICE_QUEUES: Final = 100  # a twentieth of a millisecond of the event loop
PREPARED_AT_ONCE: Final = 50  # are read one by one, each a wait for the disk
# Behind all that any log has, of as many digits as requests may have.
END: Final = 10**18 - 1

Row = dict[str, Any]


class TraceNode(AdminNode, Protocol):
    """Parts of a node that a trace uses."""

    @property
    def delayed(self) -> DelayedDelivery | None:
        """Delayed messages of a running node, else None."""
        ...

    @property
    def prepared(self) -> PreparedInterceptor | None:
        """Prepared messages of a running node, else None."""
        ...


class TraceCursor(NamedTuple):
    """Place where a search continues: stage, key of an object, due time and offset."""

    stage: int
    name: str = ""
    first: int = 0
    second: int = 0

    def is_ahead(self, name: str) -> bool:
        """Whether an object of that name may hold something not searched yet."""
        return name > self.name if self.first == END else name >= self.name


def partition_keys(vhost: Vhost) -> Iterator[str]:
    """Return keys of all partitions of a virtual host's queues, in no order."""
    for name, queue in list(vhost.queues.items()):
        for part in cast("DeclaredQueue", queue).partitions:
            yield f"{name}\0{part.number:06}" if part.number else name


def partition_at(vhost: Vhost, key: str) -> OpenQueue | None:
    """Return the partition with a key; None if it is gone."""
    name, _, number = key.partition("\0")
    queue = cast("DeclaredQueue | None", vhost.queues.get(name))
    if queue is None:
        return None
    return next((part for part in queue.partitions if part.number == int(number or 0)), None)


class TraceSearch:
    """A search for messages with one id: results, and number of scanned messages."""

    def __init__(self, node: TraceNode, vhost: Vhost, message_id: str) -> None:
        self.node = node
        self.vhost = vhost
        self.message_id = message_id
        self.rows: list[Row] = []
        self.scanned = 0

    @property
    def left(self) -> int:
        """Number of messages that may still be scanned."""
        return max(SCANNED_MAX - self.scanned, 0)

    @property
    def room(self) -> int:
        """Number of further messages that the answer may hold."""
        return ROWS_MAX - len(self.rows)


async def search_retries(trace: TraceSearch, begin: TraceCursor) -> TraceCursor | None:
    """Search messages that wait for a retry, queue by queue."""
    return await _beside_queues(trace, begin, "retry", _retry_room)


async def search_tasks(trace: TraceSearch, begin: TraceCursor) -> TraceCursor | None:
    """Search the Celery tasks that queues hold."""
    return await _beside_queues(trace, begin, "eta", _task_room)


def _retry_room(queue: object) -> DelayedMessageStore | None:
    topic = queue.extension(RetryTopic) if isinstance(queue, Queue) else None
    return None if topic is None else topic.store


def _task_room(queue: object) -> DelayedMessageStore | None:
    hold = queue.extension(EtaHold) if isinstance(queue, Queue) else None
    return None if hold is None else hold.store


async def _beside_queues(
    trace: TraceSearch,
    begin: TraceCursor,
    state: str,
    store_of: Callable[[object], DelayedMessageStore | None],
) -> TraceCursor | None:
    vhost = trace.vhost
    waiting = []
    for number, key in enumerate(partition_keys(vhost)):
        if number % SLICE_QUEUES == SLICE_QUEUES - 1:
            await let_others_run()
        if begin.is_ahead(key) and store_of(partition_at(vhost, key)) is not None:
            waiting.append(key)
    keys = heapq.nsmallest(NAMES_MAX, waiting)
    for key in keys:
        part = partition_at(vhost, key)
        store = store_of(part)
        if part is None or store is None:
            continue  # it was deleted meanwhile
        here = begin if key == begin.name else TraceCursor(begin.stage, key)
        rest = await _in_store(trace, here, store, state, part.name)
        if rest is not None:
            return rest
    return TraceCursor(begin.stage, keys[-1], END, END) if len(keys) == NAMES_MAX else None


async def search_delayed(trace: TraceSearch, begin: TraceCursor) -> TraceCursor | None:
    """Search the delayed messages of the virtual host."""
    assert trace.node.delayed is not None, "the node runs"
    delayed = trace.node.delayed.find(trace.vhost.name)
    if delayed is None:
        return None
    return await _in_store(trace, begin, delayed.store, "scheduled", None)


async def _in_store(
    trace: TraceSearch,
    begin: TraceCursor,
    store: DelayedMessageStore,
    state: str,
    queue: str | None,
) -> TraceCursor | None:
    after = (begin.first, begin.second) if (begin.first, begin.second) != (0, 0) else None
    selection = DelayedMessageFilter(message_id=trace.message_id)
    search = DelayedMessageSearch(store, selection, after, store.waits, trace.left)
    async for found in search.found():
        for one in found:
            id_ = str(one.offset) if state == "retry" else f"@{one.offset}"
            row = _told(trace, one.stored, TraceStep(WAITING, None, queue=queue), state)
            trace.rows.append({**row, "offset": one.offset, "id": id_, "due_ms": one.due_ms})
            if not trace.room:
                return TraceCursor(begin.stage, begin.name, one.due_ms, one.offset)
    trace.scanned += search.scanned
    if search.is_over:
        return None
    return TraceCursor(begin.stage, begin.name, *(search.after or (0, 0)))


async def search_prepared(trace: TraceSearch, begin: TraceCursor) -> TraceCursor | None:
    """Search the undecided prepared messages of the virtual host."""
    assert trace.node.prepared is not None, "the node runs"
    messages = trace.node.prepared.kept.get(trace.vhost.name)
    if messages is None:
        return None
    after = begin.first - 1  # a place holds the offset that comes next
    while True:
        if not trace.left or not trace.room:
            return TraceCursor(begin.stage, "", after + 1)
        some = await messages.read(after, min(PREPARED_AT_ONCE, trace.left))
        if not some:
            return None
        for pending, message in some:
            after = pending.offset
            trace.scanned += 1
            if message.property("message_id") != trace.message_id:
                continue
            row = _told(trace, message, TraceStep(WAITING, pending.time_ms), "prepared")
            told = {"offset": after, "id": pending.request.id, "due_ms": pending.due_ms}
            trace.rows.append({**row, **told})
            if not trace.room:
                break
        await let_others_run()


def _told(trace: TraceSearch, message: StoredMessage, waits: TraceStep, state: str) -> Row:
    steps = trace_steps(
        waits,
        message.exchange.decode(errors="replace"),
        message.routing_key.decode(errors="replace"),
        plain(message.open_headers),
        is_dead_letter=bool(message.flags & RecordFlag.DEAD_LETTERED),
        is_retried=bool(message.flags & RecordFlag.RETRIED),
    )
    return {
        "vhost": trace.vhost.name,
        "queue": waits.queue,
        "message_id": plain(message.property("message_id")),
        "steps": [step_row(step) for step in steps],
        "state": state,
        "holder": None,
    }


def step_row(step: TraceStep) -> Row:
    """Return the row of a step, with its known fields."""
    known = {
        "step": step.kind,
        "time_ms": step.time_ms,
        "exchange": step.exchange,
        "routing_keys": None if step.routing_keys is None else list(step.routing_keys),
        "queue": step.queue,
        "reason": step.reason,
        "count": step.count,
    }
    return {name: value for name, value in known.items() if value is not None}
