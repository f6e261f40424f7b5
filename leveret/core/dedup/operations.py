"""What people do with windows, numbering publishers and half messages: look, forget, decide.

Called for the command line, on a running node. A window is a queue's or an exchange's; a key in it
is named by the x-dedup-id, or message-id, that messages had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.dedup.keys import text_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leveret.core.dedup.idempotent_publish import IdempotentPublish
    from leveret.core.dedup.prepared import PreparedMessages
    from leveret.core.dedup.window import DedupWindow
    from leveret.core.queues.open_queue import OpenQueue
    from leveret.core.vhost import Vhost

__all__ = ["Committed", "DedupOperations"]


class Committed:
    """A Waiter that remembers what it was told."""

    def __init__(self) -> None:
        self.is_done = False
        self.has_failed = False

    def done(self, *, failed: bool) -> None:
        """See Waiter."""
        self.is_done, self.has_failed = True, failed


class DedupOperations:
    """Over what a broker has of sending once. What changes is safe when `Committed` says so."""

    def __init__(
        self, once: IdempotentPublish, opened: Callable[[Vhost], Iterator[OpenQueue]]
    ) -> None:
        self._idempotency = once
        self._opened = opened

    # -- windows

    def windows(self, vhost: Vhost) -> list[dict[str, object]]:
        """Every window of a virtual host: what it belongs to, and what it has seen."""
        rows: list[dict[str, object]] = [
            _row(
                "queue", queue.name, queue.window_ms, queue.dedup.key_count, queue.dedup.duplicates
            )
            for queue in self._opened(vhost)
            if queue.dedup is not None
        ]
        writer = self._idempotency.interceptor.writers.get(vhost.name)
        duplicates = {} if writer is None else writer.seen.duplicates
        keys = 0 if writer is None else writer.seen.window.key_count
        # The exchanges of a virtual host have their keys together.
        rows += [
            _row("exchange", name, exchange.dedup_window_ms, keys, duplicates.get(name, 0))
            for name, exchange in vhost.exchanges.items()
            if exchange.dedup_window_ms is not None
        ]
        return rows

    def seen_ms(self, vhost: Vhost, kind: str, name: str, identifier: str) -> int | None:
        """When a message with this identifier was taken; None where none was, or too long ago."""
        window, key = self._window(vhost, kind, name, identifier)
        return None if window is None else window.seen_ms(key)

    def forget(self, vhost: Vhost, kind: str, name: str, identifier: str) -> DedupWindow | None:
        """A message with this identifier may come again, once the window `is_saved`.

        None where none was seen.
        """
        window, key = self._window(vhost, kind, name, identifier)
        return window if window is not None and window.forget_key(key) else None

    def _window(
        self, vhost: Vhost, kind: str, name: str, identifier: str
    ) -> tuple[DedupWindow | None, bytes]:
        if kind == "queue":
            found = [queue for queue in self._opened(vhost) if queue.name == name]
            return (found[0].dedup if found else None), text_key(identifier.encode())
        writer = self._idempotency.interceptor.writers.get(vhost.name)
        if writer is None or name not in vhost.exchanges:
            return None, b""
        return writer.seen.window, writer.seen.key_of(name, identifier)

    # -- numbering publishers

    def producers(self, vhost: Vhost) -> list[dict[str, object]]:
        """How far each numbering publisher has come."""
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
    ) -> Committed | None:
        """Let a publisher begin anew with any epoch: one user's, or every one's of this id.

        None where it is unknown.
        """
        writer, told = self._idempotency.interceptor.writers.get(vhost.name), Committed()
        if writer is None or not writer.forget_producer(producer, user, told):
            return None
        return told

    # -- half messages

    def prepared(self, vhost: Vhost) -> list[dict[str, object]]:
        """The half messages that wait to be decided, the oldest first."""
        messages = self.prepared_messages(vhost)
        return [] if messages is None else messages.rows()

    def decide(self, vhost: Vhost, id_: str, *, commit: bool) -> Committed | None:
        """Commit a half message, or roll it back; None where nobody knows it."""
        messages, told = self.prepared_messages(vhost), Committed()
        pending = None if messages is None else messages.find(id_)
        if messages is None or pending is None:
            return None
        messages.decide(pending, commit=commit, decided=lambda failed: told.done(failed=failed))
        return told

    def prepared_messages(self, vhost: Vhost) -> PreparedMessages | None:
        """Who keeps the half messages of a virtual host; None where there were none."""
        return self._idempotency.prepared.kept.get(vhost.name)


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
