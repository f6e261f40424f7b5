"""De-duplication windows of exchanges: the topic `leveret.seen` with the keys of accepted messages.

One topic for all exchanges of a virtual host. A record is the key of one message, written
atomically with the message itself (see leveret.core.logs.atomic): its content header has one header
x-dedup-id, made of the exchange's name and the message's own key, so that the topic has a window
like any queue's. The window belongs to the exchange's name: it survives deleting and redeclaring
the exchange.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING

from leveret.core.logs.internal_topics import state_name
from leveret.core.logs.log_restore import LogRestore
from leveret.core.logs.log_scan import LogScan
from leveret.core.logs.log_writer import LogWriter
from leveret.core.settings.arguments import WINDOW_MS_MAX
from leveret.features.dedup.keys import message_key, text_key
from leveret.features.dedup.window import DedupWindow
from leveret.ports.log_text import quoted
from leveret.ports.records import RecordFlag

if TYPE_CHECKING:
    from leveret.core.dependencies import CoreServices
    from leveret.core.routing.message import Message
    from leveret.core.vhost import Vhost
    from leveret.ports import TopicLog
    from leveret.ports.records import BatchBuilder

__all__ = ["SEEN_FLAGS", "SEEN_TOPIC", "ExchangeDedupLog", "exchanges_window_id", "key_in"]

SEEN_TOPIC = "leveret.seen"
HEADERS_BIT = 1 << 13
FIXED = struct.Struct(">HHQH")
SEEN_FLAGS = RecordFlag.HAS_HEADERS | RecordFlag.PERSISTENT
FIELD = b"\x0ax-dedup-idS"


def key_in(exchange: bytes, message: Message) -> bytes | None:
    """Return the key of a message in an exchange's window; None if the message has none."""
    key = message_key(message.flags, message.header)
    return None if key is None else exchange + b"\0" + key


def exchanges_window_id(vhost: str, incarnation: str) -> bytes:
    """Return the name of a virtual host's window in the state store."""
    return b"exchanges-" + text_key(state_name(vhost, incarnation)).hex().encode()


class ExchangeDedupLog(LogWriter):
    """De-duplication log of one virtual host's exchanges. `held` until it is restored."""

    def __init__(self, vhost: Vhost, log: TopicLog, services: CoreServices, keys_max: int) -> None:
        super().__init__(log, services.turn, services.report)
        self._vhost = vhost
        self.duplicates: dict[str, int] = {}  # dropped since the start, by exchange
        self.window = DedupWindow(self, services, keys_max, keeps=True)
        self.window.open()
        if self.window.is_incomplete:
            services.spawn(self._restore(services))

    def __str__(self) -> str:
        return f"de-duplication log of vhost {quoted(self._vhost.name)}"

    def __repr__(self) -> str:
        return f"ExchangeDedupLog({self._vhost.name!r})"

    # -- Windowed

    @property
    def window_ms(self) -> int:
        """Longest window of all exchanges in ms, for which keys are kept."""
        windows = (exchange.dedup_window_ms for exchange in self._vhost.exchanges.values())
        return max((window for window in windows if window is not None), default=WINDOW_MS_MAX)

    @property
    def window_id(self) -> bytes:
        """Name of the window in the state store."""
        return exchanges_window_id(self._vhost.name, self._vhost.incarnation)

    def keep_from(self, offset: int) -> None:
        """Settle the records of expired keys, since nothing consumes them."""
        if offset:
            self.settle([(0, offset)])

    async def _restore(self, services: CoreServices) -> None:
        """Add the keys that only the log has."""
        await self.window.find_first()
        first = self.window.complete
        scan = LogScan(
            self.log, partial(self._report, self), self.lose, first=first, all_from=first
        )
        window = self.window
        LogRestore(self, services, scan, window.restore, window.restored).start()

    def resume(self) -> None:
        """Resume appending: the window is restored."""
        self._release()

    # -- lookups

    def is_known(self, exchange: bytes, key: bytes, now_ms: int) -> bool:
        """Whether the exchange has accepted a message with this key within its window."""
        known = self._vhost.exchanges.get(exchange.decode())
        window = None if known is None else known.dedup_window_ms
        if window is None:
            return False
        seen_ms = self.window.seen_ms(text_key(key))
        return seen_ms is not None and now_ms < seen_ms + window

    @staticmethod
    def header(key: bytes) -> bytes:
        """Return the content header of a key's record."""
        field = FIELD + struct.pack(">I", len(key)) + key
        return FIXED.pack(60, 0, 0, HEADERS_BIT) + struct.pack(">I", len(field)) + field

    # -- atomic writes

    def take_in(self, records: BatchBuilder) -> None:
        """Add the keys of records to be appended; the writer has excluded duplicates."""
        self.window.index(records.preview(self.log.end))

    def undo(self, transaction: int, first: int, stop: int) -> None:
        """Undo an atomic write: remove its keys."""
        if first < stop:
            self.window.forget(first, stop)
        super().undo(transaction, first, stop)

    def _forget_uncommitted(self) -> None:
        self.window.truncate()

    def _show_committed(self) -> None:
        """Do nothing: there are no consumers."""

    @staticmethod
    def key_of(exchange: str, identifier: str) -> bytes:
        """Return the key of an x-dedup-id or message-id in an exchange's window."""
        return text_key(exchange.encode() + b"\0" + text_key(identifier.encode()))

    def close(self) -> None:
        """Stop: the virtual host was deleted."""
        self._close_publishing()
        self.window.end()
