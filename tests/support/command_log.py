"""Command log of a queue's state: what its queue told it, to tell another state the same."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leveret.core.queues import queue as queue_module
from leveret.core.queues import stream as stream_module
from leveret.core.queues.offers import Deliver
from leveret.core.queues.state import QueueState
from leveret.core.queues.stream_state import StreamState
from leveret.ports.ranges import RangeSet
from leveret.ports.records import Batch
from leveret.ports.returns import Returns

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = (
    "add_consumer",
    "begin_round",
    "commit",
    "count_bytes",
    "count_retries",
    "credit",
    "deliver",
    "deliver_runs",
    "get",
    "hand_over",
    "index",
    "lose",
    "next",
    "purge",
    "recount_bytes",
    "reconfigure",
    "release",
    "release_all",
    "remove_consumer",
    "resume",
    "return_",
    "seek",
    "settle",
    "suspend",
    "take_returned",
    "track_returns",
    "truncate",
    "unblock",
    "wake",
    "withdraw",
)
EVERYTHING = 1 << 62


@dataclass(eq=False)
class Named:
    """Stands for a consumer: everything that a state may know of it."""

    name: int
    priority: int


@dataclass
class CommandLog:
    """Commands in values of their own, so that nothing that happens later changes them."""

    created: Any = None  # makes a state as it was at first
    entries: list[tuple[str, tuple, dict, object]] = field(default_factory=list)
    _names: dict[object, Named] = field(default_factory=dict)
    _depth: int = 0  # a command that calls others is one entry

    def of(self, value: object) -> object:
        """Return a value that no one else holds, with consumers replaced by their names."""
        if isinstance(value, Deliver):
            offered = value.first, value.stop, value.redelivered
            return Offered(self.of(value.consumer), value.limit, offered, value.is_partial)
        if isinstance(value, RangeSet):
            return Ranges(value)
        if isinstance(value, Batch):  # of an append, it is in memory that will be used again
            return Batch.parse(bytes(value))
        if isinstance(value, tuple | list):
            return [self.of(each) for each in value]
        if hasattr(value, "capacity"):
            return self._names.setdefault(value, Named(len(self._names), value.priority))
        return value

    def replay(self) -> Any:
        """Return a new state that was told the same, after checking that it answers the same."""
        state = self.created()
        for name, arguments, options, answer in self.entries:
            given = [each.back() if hasattr(each, "back") else each for each in arguments]
            answered = getattr(state, name)(*given, **options)
            assert of_replay(answered) == answer, (name, arguments, options)
        return state


@dataclass
class Offered:
    """Offer of a state."""

    consumer: Any
    limit: int
    offered: tuple[int, int, bool]
    is_partial: bool

    def back(self) -> Deliver:
        return Deliver(self.consumer, self.limit, self.offered)


class Ranges(list):
    """Ranges of a set."""

    def back(self) -> RangeSet:
        return RangeSet(self)


def of_replay(answer: object) -> object:
    """Return an answer as the log has it; it names consumers already."""
    if isinstance(answer, Deliver):
        offered = answer.first, answer.stop, answer.redelivered
        return Offered(answer.consumer, answer.limit, offered, answer.is_partial)
    if isinstance(answer, tuple | list | RangeSet):
        return [of_replay(each) for each in answer]
    return answer


def _recorded(name: str) -> Any:
    def command(self: Any, *arguments: Any, **options: Any) -> Any:
        log: CommandLog = self.commands
        arguments = tuple(_consumed(each) for each in arguments)  # an iterator is read once
        given = tuple(log.of(each) for each in arguments)
        log._depth += 1
        try:
            answer = self.call(name, *arguments, **options)
        finally:
            log._depth -= 1
        if log._depth == 0:
            log.entries.append((name, given, options, log.of(answer)))
        return answer

    return command


def _consumed(value: Any) -> Any:
    return list(value) if hasattr(value, "__next__") else value


class _Recorded:
    """A state that notes its commands."""

    commands: CommandLog

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return getattr(super(), name)(*arguments, **options)


for each in COMMANDS:
    setattr(_Recorded, each, _recorded(each))


class RecordedQueueState(_Recorded, QueueState):
    """State of a queue that notes its commands."""

    def __init__(self, ledger: Any, **options: Any) -> None:
        self.commands = CommandLog()
        QueueState.__init__(self, ledger, **options)

    @classmethod
    def of_log(cls, log: Any, settings: Any, **counts: bool) -> Any:
        frozen = LogAsItWas(log)
        state = super().of_log(log, settings, **counts)
        state.commands = CommandLog(lambda: QueueState.of_log(frozen.again(), settings, **counts))
        return state


class RecordedStreamState(_Recorded, StreamState):
    """State of a stream that notes its commands."""

    def __init__(self, committed: int) -> None:
        self.commands = CommandLog(lambda: StreamState(committed))
        StreamState.__init__(self, committed)


class LogAsItWas:
    """The facts that a state reads of its log when it is created."""

    def __init__(self, log: Any) -> None:
        self.first, self.committed = log.first, log.committed
        self.redelivered_stop = log.redelivered_stop
        self.settled = RangeSet(list(log.settled))
        self.returns = Returns()
        self.returns.acquired.update(log.returns.acquired)
        self.returns.failures.update(log.returns.failures)

    def again(self) -> LogAsItWas:
        return LogAsItWas(self)


@contextmanager
def recorded_states() -> Iterator[None]:
    """Let queues and streams opened inside have states with a command log."""
    kept = queue_module.QueueState, stream_module.StreamState
    queue_module.QueueState = RecordedQueueState
    stream_module.StreamState = RecordedStreamState
    try:
        yield
    finally:
        queue_module.QueueState, stream_module.StreamState = kept


def contents_of_queue(state: QueueState) -> dict[str, object]:
    """Return everything that a queue's state knows, as values."""
    return {
        "committed": state.committed,
        "ready": state.ready_in(0, EVERYTHING),
        "leased": state.leased_in(0, EVERYTHING),
        "order": state.next_ranges(EVERYTHING),
        "delayed": [
            offset
            for first, stop in state.leased_in(0, EVERYTHING)
            for offset in range(first, stop)
            if state.is_delayed(offset)
        ],
        "next_delayed_ms": state.next_delayed_ms,
        "acquired": dict(state.acquired),
        "counts": dict(state.counts),
        "waiting_bytes": state.waiting_bytes,
        "redelivered_stop": state.redelivered_stop,
        "consumers": [_name(consumer) for consumer in state.consumers],
        "served": [_name(consumer) for consumer in state.served],
        "handing_over": state.is_handing_over,
        "held_up": state.is_held_up,
        "exclusive": state.is_exclusive,
        "counts_bytes": state.counts_bytes,
        "limit": (state.delivery_limit, state.retry_delay, state.counts_returns),
    }


def contents_of_stream(state: StreamState) -> dict[str, object]:
    """Return everything that a stream's state knows, as values."""
    return {
        "committed": state.committed,
        "consumers": [(_name(each), state.place(each)) for each in state.consumers],
        "next": _name(state.next()),
        "held_up": state.is_held_up,
    }


def _name(consumer: Any) -> object:
    return consumer.name if consumer is not None else None
