"""Bounded cache of a remote service's answers, with a shorter time for refusals."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Answers"]

Answer = TypeVar("Answer")

ANSWERS_MAX = 16_384  # some megabytes: the queues and exchanges of the users that are connected
# Refusals expire earlier: a refused user often asks for the permission and tries again.
REFUSALS_PART = 0.2


class Answers(Generic[Answer]):
    """Answers by question. A falsy answer is a refusal."""

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
        """Return the answer, or None if there is none or it has expired."""
        entry = self._entries.get(question)
        if entry is None:
            return None
        until, answer = entry
        if self._clock() >= until:
            del self._entries[question]
            return None
        return answer

    def put(self, question: Hashable, answer: Answer) -> None:
        """Store an answer; the oldest one is dropped where there are too many."""
        seconds = self._seconds if answer else self._seconds * REFUSALS_PART
        self._entries[question] = (self._clock() + seconds, answer)
        self._entries.move_to_end(question)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
