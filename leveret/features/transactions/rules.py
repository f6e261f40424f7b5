"""Prepared messages: their headers, and when their publisher is asked about them.

`x-prepare: true` keeps a message invisible until its publisher commits it or rolls it back, by the
id in `x-prepare-id`, else in the property message-id. A publisher that may fail in between names a
queue (`x-check-queue`): after `x-check-after` milliseconds, and again after each such interval, the
broker sends a question about the message to that queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CHECK_AFTER_MS",
    "PREPARE_ID",
    "PrepareRequest",
    "is_asked_for",
    "read_id",
    "read_prepare_request",
]

PREPARE: Final = "x-prepare"
PREPARE_ID: Final = "x-prepare-id"
CHECK_AFTER: Final = "x-check-after"
CHECK_QUEUE: Final = "x-check-queue"
ID_BYTES_MAX: Final = 255
CHECK_AFTER_MS: Final = 60_000  # default if only a queue is named
CHECK_AFTER_MS_MAX: Final = 366 * 86_400_000


class PrepareRequest(NamedTuple):
    """Headers of a prepared message. Without `check_queue` the publisher is never asked."""

    id: str
    check_queue: str | None
    check_after_ms: int


def is_asked_for(headers: Mapping[str, Any]) -> bool:
    """Whether a message is a prepared one. Raises ValueError that says what is wrong."""
    asked = headers.get(PREPARE)
    if asked is True or asked is False:
        return asked
    raise ValueError(f"'{PREPARE}' is neither true nor false")


def read_id(headers: Mapping[str, Any], message_id: str | None = None) -> str:
    """Return the id of a prepared message. Raises ValueError that says what is wrong."""
    id_ = headers.get(PREPARE_ID, message_id)
    if id_ is None:
        raise ValueError(f"neither '{PREPARE_ID}' nor a message-id")
    if not isinstance(id_, str) or not id_:
        raise ValueError(f"'{PREPARE_ID}' is not a text")
    if len(id_.encode(errors="surrogateescape")) > ID_BYTES_MAX:
        raise ValueError(f"'{PREPARE_ID}' is longer than {ID_BYTES_MAX} bytes")
    return id_


def read_prepare_request(headers: Mapping[str, Any], message_id: str | None) -> PrepareRequest:
    """Parse the headers of a prepared message. Raises ValueError that says what is wrong."""
    queue, after_ms = headers.get(CHECK_QUEUE), headers.get(CHECK_AFTER)
    if queue is not None and (not isinstance(queue, str) or not queue):
        raise ValueError(f"'{CHECK_QUEUE}' is not a text")
    if after_ms is None:
        after_ms = CHECK_AFTER_MS
    elif (
        not isinstance(after_ms, int)
        or isinstance(after_ms, bool)
        or not 1 <= after_ms <= CHECK_AFTER_MS_MAX
    ):
        raise ValueError(f"'{CHECK_AFTER}' is not a number of 1 to {CHECK_AFTER_MS_MAX}")
    elif queue is None:
        raise ValueError(
            f"'{CHECK_AFTER}' without '{CHECK_QUEUE}': there is no queue to send checks to"
        )
    return PrepareRequest(read_id(headers, message_id), queue, after_ms)
