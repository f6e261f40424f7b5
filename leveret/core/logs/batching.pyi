from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from leveret.core.turn import TouchedQueue, Turn
from leveret.ports import SharedLog, TopicLog
from leveret.ports.after_all import Waiter
from leveret.ports.records import BatchBuilder

Uncommitted: TypeAlias = deque[tuple[int, list[Waiter]]]
Unseen: TypeAlias = deque[tuple[int, Waiter]]

class Batching(TouchedQueue):
    log: SharedLog
    builder: BatchBuilder
    held: bool
    _owned_log: TopicLog
    _turn: Turn
    _report: Callable[[object, Exception], None]
    _opened_at: int
    _waiting: list[Waiter]
    _uncommitted: Uncommitted | tuple[()]
    _unseen: Unseen | tuple[()]
    _release_waiters: list[Callable[[Exception | None], None]] | None
    @property
    def is_caught_up(self) -> bool: ...
    def await_commit(self, waiter: Waiter) -> None: ...
    def await_written(self, waiter: Waiter) -> None: ...
    def _begin_release(self) -> None: ...
    def _prepare(self) -> None: ...
    def _show_committed(self) -> None: ...
    def _committed(self) -> None: ...
