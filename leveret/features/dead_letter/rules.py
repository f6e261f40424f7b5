"""Dead-letter history of a message in its headers.

A message is dead-lettered when a consumer rejects it, when it expires, when the queue is full or
when its delivery limit is exceeded. If the queue has a dead-letter exchange, the header `x-death`
keeps the history, one entry for each pair of queue and reason, the latest first:

    [original-expiration]   its expiration, which is removed so that it does not expire again
    count                   number of deaths in this queue for this reason
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

from leveret.core.routing.message import BLIND_COPIES, OPEN_COPIES, raw_headers
from leveret.core.settings.discard_reasons import Reason
from leveret.ports.records import RecordFlag
from leveret.ports.tables import Timestamp, decode_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.ports.tables import RawValue

DEATHS = "x-death"
FIRST, LAST = "x-first-death-", "x-last-death-"

Entry: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Death:
    """One death of a message: queue, reason and original address, names and keys as on the wire."""

    queue: bytes
    reason: str
    time: int  # seconds since 1970
    exchange: bytes
    routing_keys: Sequence[bytes]
    original_expiration: bytes | None = None

    def entry(self) -> Entry:
        """Return the `x-death` entry for a first death in this queue for this reason."""
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
    """Return the broker-written dead-letter history of a message, latest death first."""
    if DEATHS not in headers:
        return []
    entries = decode_value(headers[DEATHS])
    return (
        [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    )


def record(history: Sequence[Entry], death: Death) -> list[Entry]:
    """Add a death to a history: its entry, new or with an incremented count, comes first."""
    entry, others = death.entry(), []
    for known in history:
        if _place(known) == _place(entry):
            entry = known | {"count": int(known["count"]) + 1}
        else:
            others.append(known)
    return [entry, *others]


def is_cycle(history: Sequence[Entry], queue: bytes) -> bool:
    """Whether dead-lettering to `queue` would be a cycle without any rejection by a consumer.

    Such a message would circulate for ever without being touched.
    """
    for entry in history:
        if entry["reason"] == Reason.REJECTED:
            return False
        if _octets(entry["queue"]) == queue:
            return True
    return False


def dead_headers(
    headers: Mapping[str, RawValue], history: Sequence[Entry], death: Death
) -> dict[str, Any]:
    """Return the headers of a dead letter, with `history` (including `death`) as its x-death."""
    dead: dict[str, Any] = dict(headers)
    dead[DEATHS] = list(history)
    told = {"reason": str(death.reason), "queue": death.queue, "exchange": death.exchange}
    for name, value in told.items():
        if len(history) == 1 and history[0]["count"] == 1:
            dead[FIRST + name] = value
        dead[LAST + name] = value
    return dead


def further_keys(headers: Mapping[str, RawValue], name: str) -> list[bytes]:
    """Return the additional routing keys of the header CC or BCC."""
    if name not in headers:
        return []
    keys = decode_value(headers[name])
    if not isinstance(keys, list):
        return []
    return [_octets(key) for key in keys if isinstance(key, (str, bytes))]


def all_keys(routing_key: bytes, header: bytes, flags: int) -> list[str]:
    """Return the routing keys of a stored message, each once: its own, then those of CC and BCC."""
    keys = [routing_key]
    if flags & RecordFlag.SELECTS_KEYS:
        headers = raw_headers(header)
        keys += further_keys(headers, OPEN_COPIES) + further_keys(headers, BLIND_COPIES)
    return [key.decode(errors="replace") for key in dict.fromkeys(keys)]


def _place(entry: Entry) -> tuple[bytes, bytes]:
    return _octets(entry.get("queue", b"")), _octets(entry.get("reason", b""))


def _octets(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
