"""Permissions to declare queues and exchanges by HTTP and web UI: those of AMQP clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from leveret.core.settings.arguments import ALTERNATE_EXCHANGE, DEAD_LETTER_EXCHANGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.api.callers import Caller

__all__ = ["require_to_declare"]

# The argument that names the exchange to which messages go on.
NEXT_EXCHANGE = {"queue": DEAD_LETTER_EXCHANGE, "exchange": ALTERNATE_EXCHANGE}


async def require_to_declare(
    caller: Caller,
    host: Vhost,
    kind: Literal["exchange", "queue"],
    name: str,
    arguments: Mapping[str, Any],
) -> None:
    """Raise ApiError 401 unless the caller may declare it with these arguments, as in AMQP."""
    await caller.require(host.name, kind, name, "configure")
    exists = name in (host.queues if kind == "queue" else host.exchanges)
    exchange = arguments.get(NEXT_EXCHANGE[kind])
    # Dead-lettering and alternate exchanges need the permissions to read and to publish.
    if not exists and isinstance(exchange, str):
        await caller.require(host.name, kind, name, "read")
        await caller.require(host.name, "exchange", exchange, "write")
