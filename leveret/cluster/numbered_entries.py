"""Reading of the entries that have a number, below one path: those of nodes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.ports.coordinator import Coordinator, CoordinatorEntry

__all__ = ["read_numbered", "read_numbers"]


async def read_numbers(coordinator: Coordinator, path: str) -> list[int]:
    """Return the numbers of entries below a path; other names are ignored.

    Raises CoordinatorError.
    """
    return [int(name) for name in await coordinator.children(path) if name.isdecimal()]


async def read_numbered(coordinator: Coordinator, path: str) -> dict[int, CoordinatorEntry]:
    """Return the entries below a path, by number; other names are ignored.

    Raises CoordinatorError.
    """
    numbers = await read_numbers(coordinator, path)
    found = await asyncio.gather(*(coordinator.read(f"{path}/{number}") for number in numbers))
    entries = zip(numbers, found, strict=True)
    return {number: entry for number, entry in entries if entry is not None}
