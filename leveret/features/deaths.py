"""The deaths of a message: what its headers tell of them, and what follows from that.

A message dies in a queue when a consumer rejects it, when it expires, when the queue is full or
when it came back too often; the queue's dead-letter exchange may get it then. The header `x-death`
keeps the history, one entry for each pair of queue and reason, the latest first:

    [original-expiration]   the expiration it had, which is taken off: it does not expire again
    count                   how often it died there of that
    reason                  rejected, expired, maxlen or delivery_limit
    queue
    time                    of the first such death
    exchange, routing-keys  what it had been published with, CC included

`x-first-death-*` and `x-last-death-*` repeat reason, queue and exchange of the oldest and of the
latest death. Called by the core's dead lettering, once for messages that are alike in all this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from leveret.ports.tables import Timestamp, decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.ports.tables import RawValue

DEATHS = "x-death"
FIRST, LAST = "x-first-death-", "x-last-death-"
OPEN_COPIES, BLIND_COPIES = "CC", "BCC"
REJECTED, EXPIRED, MAX_LENGTH, DELIVERY_LIMIT = "rejected", "expired", "maxlen", "delivery_limit"
REASONS = (REJECTED, EXPIRED, MAX_LENGTH, DELIVERY_LIMIT)
# A queue of this ending is, or may become, the dead-letter topic of the queue named before it.
TOPIC_SUFFIX = ".dlq"

Entry: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Death:
    """One death of one message; names and keys as on the wire."""

    queue: bytes
    reason: str
    time: int  # seconds since 1970
    exchange: bytes
    routing_keys: Sequence[bytes]
    original_expiration: bytes | None = None

    def entry(self) -> Entry:
        """The first entry of this death's queue and reason."""
        entry: Entry = {}
        if self.original_expiration is not None:
            entry["original-expiration"] = str(int(self.original_expiration))
        return entry | {
            "count": 1,
            "reason": str(self.reason),
            "queue": self.queue,
            "time": Timestamp(self.time),
            "exchange": self.exchange,
            "routing-keys": list(self.routing_keys),
        }


def history_of(headers: Mapping[str, RawValue]) -> list[Entry]:
    """Read the history that the broker has written; the latest death first."""
    if DEATHS not in headers:
        return []
    entries = decode_value(headers[DEATHS])
    return (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )


def record(history: Sequence[Entry], death: Death) -> list[Entry]:
    """Add a death to a history: a new entry, or an old one counted up, comes to the front."""
    entry, others = death.entry(), []
    for known in history:
        if _place(known) == _place(entry):
            entry = known | {"count": int(known["count"]) + 1}
        else:
            others.append(known)
    return [entry, *others]


def is_cycle(history: Sequence[Entry], queue: bytes) -> bool:
    """Whether `queue` would get a message again that nobody rejected since it died there.

    Such a message would go round for ever without anyone touching it.
    """
    for entry in history:
        if entry["reason"] == REJECTED:
            return False
        if _octets(entry["queue"]) == queue:
            return True
    return False


def dead_headers(
    headers: Mapping[str, RawValue], history: Sequence[Entry], death: Death
) -> dict[str, Any]:
    """The headers of a dead letter: `history`, which `death` has joined, replaces the old one."""
    dead: dict[str, Any] = dict(headers)
    dead[DEATHS] = list(history)
    told = {"reason": str(death.reason), "queue": death.queue, "exchange": death.exchange}
    for name, value in told.items():
        if len(history) == 1 and history[0]["count"] == 1:
            dead[FIRST + name] = value
        dead[LAST + name] = value
    return dead


def further_keys(headers: Mapping[str, RawValue], name: str) -> list[bytes]:
    """The routing keys that the sender has added in CC or BCC."""
    if name not in headers:
        return []
    keys = decode_value(headers[name])
    if not isinstance(keys, list):
        return []
    return [_octets(key) for key in keys if isinstance(key, (str, bytes))]


def _place(entry: Entry) -> tuple[bytes, bytes]:
    return _octets(entry.get("queue", b"")), _octets(entry.get("reason", b""))


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
