"""Approximate sizes of field tables, for limits on arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from leveret.ports.definitions import Arguments

__all__ = ["LargeArguments", "Size", "measure"]

LARGE_BYTES = 1024  # more than arguments written by people
VALUE_BYTES = 9  # a number with its type letter; strings and containers have their length in it


class Size(NamedTuple):
    """Approximate octets on the wire, and number of values, nested ones included."""

    octets: int
    values: int


class LargeArguments:
    """Total size of the large arguments of a virtual host's definitions."""

    def __init__(self) -> None:
        self.octets = 0
        self._of: dict[object, int] = {}

    def enter(self, holder: object, arguments: Arguments) -> None:
        """Add the arguments of a queue, an exchange or a binding, if they are large."""
        octets = measure(arguments).octets if arguments else 0
        if octets > LARGE_BYTES:
            self._of[holder] = octets
            self.octets += octets

    def leave(self, holder: object) -> None:
        """Subtract the arguments of a deleted holder."""
        self.octets -= self._of.pop(holder, 0)


def measure(table: Arguments) -> Size:
    """Return a table's size; the table itself counts as no value."""
    octets, values = 0, 0
    waiting: list[Any] = [table]
    while waiting:
        container = waiting.pop()
        if isinstance(container, dict):
            octets += sum(1 + len(name.encode(errors="surrogateescape")) for name in container)
            container = container.values()
        for value in container:
            values += 1
            octets += VALUE_BYTES
            if isinstance(value, str):
                octets += len(value.encode(errors="surrogateescape"))
            elif isinstance(value, bytes | bytearray):
                octets += len(value)
            elif isinstance(value, dict | list | tuple):
                waiting.append(value)
    return Size(octets, values)
