"""Where one message goes that left the reader's fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.ports.records import BatchBuilder


class Destinations(NamedTuple):
    """The builders of queues, and the addresses of those who await a direct reply.

    Whoever awaited a reply may be gone; the message counts as routed all the same.
    """

    builders: Sequence[BatchBuilder]
    replies: Sequence[bytes]
