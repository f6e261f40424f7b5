"""Type of an operation, for tables of operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from pamqp import base

# Each takes a channel and a method of its own type, which a table by type cannot say.
Operation: TypeAlias = Callable[[Any, Any], Awaitable[None] | None]
Operations: TypeAlias = dict[type[base.Frame], Operation]
