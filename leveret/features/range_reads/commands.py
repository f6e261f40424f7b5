"""Operations on topics, that is on queues as what is read by offset."""

from __future__ import annotations

from typing import Any

from leveret.core.admin.commands import query
from leveret.core.admin.node import AdminNode, queue_of
from leveret.core.admin.rights import READ_QUEUE
from leveret.core.definitions.administration import AdministrationError
from leveret.features.range_reads.bounds import offset_rows
from leveret.features.range_reads.rules import OFFSET_MAX, check_read_by_offset

__all__ = ["topic_offsets"]


@query("topic.offsets", READ_QUEUE)
async def topic_offsets(
    node: AdminNode, *, vhost: str, queue: str, time_ms: int | None = None
) -> list[dict[str, Any]]:
    """Return first and end offset of each partition, and the first offset of a time."""
    if time_ms is not None and not 0 <= time_ms <= OFFSET_MAX:
        raise AdministrationError("invalid", "time_ms is in milliseconds since 1970")
    found = queue_of(node, vhost, queue)
    check_read_by_offset(found, queue)
    return list(await offset_rows(found, time_ms))
