"""How many bytes an attack may send, preparation included."""

from __future__ import annotations


class SpentError(Exception):
    """The attack has sent what it may."""


class Budget:
    """Counts what is sent, and refuses what would pass the limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0
        self.is_open = False  # what the harness sends itself is not counted

    def spend(self, count: int) -> None:
        if self.is_open:
            return
        if self.spent + count > self.limit:
            raise SpentError
        self.spent += count

    @property
    def share(self) -> float:
        """How much of it is spent, from 0 to 1."""
        return self.spent / self.limit
