"""How much a field table takes, about: what limits of arguments are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from leveret.ports.definitions import Arguments

__all__ = ["LargeArguments", "Size", "measure"]

LARGE_BYTES = 1024  # more than people write
VALUE_BYTES = 9  # a number with its letter; texts and containers have their length in it


class Size(NamedTuple):
    """Octets on the wire, about, and values, nested ones included."""

    octets: int
    values: int


class LargeArguments:
    """What large arguments of a virtual host's definitions take, in all."""

    def __init__(self) -> None:
        self.octets = 0
        self._of: dict[object, int] = {}

    def enter(self, holder: object, arguments: Arguments) -> None:
        """Count the arguments of a queue, an exchange or a binding, if they are large."""
        octets = measure(arguments).octets if arguments else 0
        if octets > LARGE_BYTES:
            self._of[holder] = octets
            self.octets += octets

    def leave(self, holder: object) -> None:
        """Count those of a holder no more that is gone."""
        self.octets -= self._of.pop(holder, 0)


def measure(table: Arguments) -> Size:
    """Count a table's octets and values; the table itself is none."""
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
