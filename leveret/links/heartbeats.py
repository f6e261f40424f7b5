"""Machine of a link's heartbeats: when to send one, and whether the peer is still there.

Both sides send one in each interval, without being asked, so that a side which is heard needs not
be one that reads quickly. The answers measure the round trip, and tell that the other side reads.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.links.settings import LinkSettings

__all__ = ["Heartbeats", "Pulse"]


class Pulse(Enum):
    """Outcome of one beat."""

    ALIVE = "alive"
    SILENT = "nothing was heard from it: is its process stopped, or the network cut?"
    UNANSWERED = "it answers no heartbeat: does it read, and does the network carry both ways?"


class Heartbeats:
    """Heartbeats of one link; all times are those of one monotonic clock, in ns."""

    __slots__ = ("_answer_ns_max", "_asked_ns", "_beat_ns", "_interval_ns", "_last_ns",
                 "_silent_beats", "_silent_beats_max", "heard")  # fmt: skip

    def __init__(self, settings: LinkSettings, now_ns: int) -> None:
        self.heard = True  # whether anything came since the last beat; whoever reads sets it
        self._interval_ns = settings.heartbeat_ms * 1_000_000
        self._answer_ns_max = settings.answer_ms_max * 1_000_000
        self._silent_beats_max = -(-settings.silent_ms_max // settings.heartbeat_ms)
        self._silent_beats = 0
        self._beat_ns = now_ns
        self._last_ns = now_ns  # when the last heartbeat was sent
        self._asked_ns: int | None = None  # when the oldest one without an answer was

    def beat(self, now_ns: int) -> Pulse:
        """Note that an interval is over: a heartbeat is to be sent now if the peer is alive."""
        was_away = now_ns - self._beat_ns > 2 * self._interval_ns
        self._beat_ns = self._last_ns = now_ns
        if self._asked_ns is None or was_away:
            self._asked_ns = now_ns
        if self.heard or was_away:
            # After a pause of this process the peer's bytes may be there and not be read yet.
            self._silent_beats = 0
        else:
            self._silent_beats += 1
        self.heard = False
        if self._silent_beats >= self._silent_beats_max:
            return Pulse.SILENT
        if now_ns - self._asked_ns > self._answer_ns_max:
            return Pulse.UNANSWERED
        return Pulse.ALIVE

    def answered(self, sent_ns: int, now_ns: int) -> int | None:
        """Note the answer to the heartbeat of `sent_ns`. Returns the round trip in ns.

        None for an answer to none that was sent since the oldest one without.
        """
        if self._asked_ns is None or not self._asked_ns <= sent_ns <= self._last_ns:
            return None
        self._asked_ns = None if sent_ns == self._last_ns else sent_ns
        return now_ns - sent_ns
