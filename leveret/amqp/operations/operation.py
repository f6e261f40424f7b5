"""Type of an operation, and an error that several raise."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from pamqp import base

from leveret.core.names import resource
from leveret.errors import ConnectionClosingError

if TYPE_CHECKING:
    from leveret.core.queues.declared_queue import DeclaredQueue

# Each takes a channel and a method of its own type, which a table by type cannot say.
Operation: TypeAlias = Callable[[Any, Any], Awaitable[None] | None]
Operations: TypeAlias = dict[type[base.Frame], Operation]


def not_for_streams(method: str, queue: DeclaredQueue) -> ConnectionClosingError:
    """Build the error 540 of a method that streams do not support."""
    name = resource("queue", queue.name, queue.definition.vhost)
    return ConnectionClosingError(540, f"{method} not supported by stream queues {name}")
