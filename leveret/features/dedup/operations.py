"""Administrator's operations on windows and numbering publishers.

Used by the management operations, on a running node. A window is a queue's or an exchange's; a key
in it is given by the x-dedup-id or message-id of messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.features.dedup.extension import window_of
from leveret.features.dedup.keys import text_key
from leveret.ports.after_all import AfterAll

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.vhost import Vhost
    from leveret.features.dedup.idempotent_publish import IdempotentPublish
    from leveret.features.dedup.window import DedupWindow

__all__ = ["DedupOperations"]


class DedupOperations:
    """Operations on a broker's de-duplication state.

    A change is safe when nothing of the returned `AfterAll` is pending.
    """

    def __init__(
        self, once: IdempotentPublish, opened: Callable[[Vhost], Iterator[OpenQueue]]
    ) -> None:
        self._idempotency = once
        self._opened = opened

    # -- windows

    def windows(self, vhost: Vhost) -> list[dict[str, object]]:
        """Return all windows of a virtual host, with their owners and counts."""
        rows: list[dict[str, object]] = [
            _row("queue", queue.name, window.window_ms, window.key_count, window.duplicates)
            for queue in self._opened(vhost)
            if (window := window_of(queue)) is not None
        ]
        writer = self._idempotency.interceptor.writers.get(vhost.name)
        duplicates = {} if writer is None else writer.seen.duplicates
        keys = 0 if writer is None else writer.seen.window.key_count
        # All exchanges of a virtual host share one set of keys.
        rows += [
            _row("exchange", name, exchange.dedup_window_ms, keys, duplicates.get(name, 0))
            for name, exchange in vhost.exchanges.items()
            if exchange.dedup_window_ms is not None
        ]
        return rows

    def seen_ms(self, vhost: Vhost, kind: str, name: str, identifier: str) -> int | None:
        """Return when a message with this identifier was accepted, in ms.

        None if not in the window.
        """
        window, key = self._window(vhost, kind, name, identifier)
        return None if window is None else window.seen_ms(key)

    def forget(self, vhost: Vhost, kind: str, name: str, identifier: str) -> DedupWindow | None:
        """Remove an identifier from a window; done once the window `is_saved`.

        Returns None if it was not in the window.
        """
        window, key = self._window(vhost, kind, name, identifier)
        return window if window is not None and window.forget_key(key) else None

    def _window(
        self, vhost: Vhost, kind: str, name: str, identifier: str
    ) -> tuple[DedupWindow | None, bytes]:
        if kind == "queue":
            found = [queue for queue in self._opened(vhost) if queue.name == name]
            return (window_of(found[0]) if found else None), text_key(identifier.encode())
        writer = self._idempotency.interceptor.writers.get(vhost.name)
        if writer is None or name not in vhost.exchanges:
            return None, b""
        return writer.seen.window, writer.seen.key_of(name, identifier)

    # -- numbering publishers

    def producers(self, vhost: Vhost) -> list[dict[str, object]]:
        """Return the positions of all numbering publishers."""
        writer = self._idempotency.interceptor.writers.get(vhost.name)
        return [
            {
                "id": producer.id,
                "user": producer.user or None,
                "epoch": known.position.epoch,
                "sequence": known.position.sequence,
                "last_at": known.time_ms,
            }
            for producer, known in ([] if writer is None else writer.producers.items())
        ]

    def forget_producer(
        self, vhost: Vhost, producer: str, user: str | None = None
    ) -> AfterAll | None:
        """Remove the position of a publisher, of one user or of all users with this id.

        The publisher may then begin any epoch. Returns None if it is unknown.
        """
        writer, told = self._idempotency.interceptor.writers.get(vhost.name), AfterAll(1)
        if writer is None or not writer.forget_producer(producer, user, told):
            return None
        return told


def _row(
    kind: str, name: str, window_ms: int | None, keys: int, duplicates: int
) -> dict[str, object]:
    return {
        "kind": kind,
        "name": name,
        "window_ms": window_ms,
        "keys": keys,
        "duplicates": duplicates,
    }
