"""Answers of somebody far away, remembered for a while: bounded, and refusals shorter."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Answers"]

Answer = TypeVar("Answer")

ANSWERS_MAX = 16_384  # some megabytes: the queues and exchanges of the users that are connected
# Who was refused has asked for a permission, more often than not, and tries again.
REFUSALS_PART = 0.2


class Answers(Generic[Answer]):
    """What was answered to which question. A falsy answer is a refusal."""

    def __init__(
        self, seconds: float, clock: Callable[[], float], entries_max: int = ANSWERS_MAX
    ) -> None:
        """`clock` gives seconds from some fixed moment."""
        self._seconds = seconds
        self._clock = clock
        self._entries_max = entries_max
        self._entries: OrderedDict[Hashable, tuple[float, Answer]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, question: Hashable) -> Answer | None:
        """The answer, unless there is none or it is too old."""
        entry = self._entries.get(question)
        if entry is None:
            return None
        until, answer = entry
        if self._clock() >= until:
            del self._entries[question]
            return None
        return answer

    def put(self, question: Hashable, answer: Answer) -> None:
        """Remember an answer; the one that was put first is pushed out where it gets too many."""
        seconds = self._seconds if answer else self._seconds * REFUSALS_PART
        self._entries[question] = (self._clock() + seconds, answer)
        self._entries.move_to_end(question)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
