"""Usage meter: traffic of connections and queues since the last reading, by account.

Messages are counted where they pass, in compiled code (ports.traffic); here the counts are read
from time to time, and their increase is added to each account. A source that ends is read a last
time, so that its final messages are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.ports.usage import Account, Subject, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Metered", "UsageMeter", "accounts_of_client"]


class Metered(Protocol):
    """Source of metered traffic."""

    def accounts(self) -> Sequence[Account]:
        """Return the accounts that it is charged to; always the same."""
        ...

    def total_usage(self) -> Usage:
        """Return its total usage so far."""
        ...


class UsageMeter:
    """Usage since the last `take`, by account."""

    def __init__(self) -> None:
        self._known: dict[Metered, Usage] = {}
        self._gathered: dict[Account, Usage] = {}

    def look(self, sources: Iterable[Metered]) -> None:
        """Add the increase of all sources since they were last read."""
        for source in sources:
            self._known[source] = self._gather(source)

    def ended(self, source: Metered) -> None:
        """Add the final increase of a source that has ended."""
        self._gather(source)
        self._known.pop(source, None)

    def _gather(self, source: Metered) -> Usage:
        total = source.total_usage()
        used = total.since(self._known.get(source, Usage()))
        if any(used):
            for account in source.accounts():
                self._gathered[account] = self._gathered.get(account, Usage()).plus(used)
        return total

    def take(self) -> dict[Account, Usage]:
        """Return and reset the gathered usage."""
        taken, self._gathered = self._gathered, {}
        return taken

    def give_back(self, used: dict[Account, Usage]) -> None:
        """Add usage back that could not be stored."""
        for account, usage in used.items():
            self._gathered[account] = self._gathered.get(account, Usage()).plus(usage)


def accounts_of_client(vhost: str, user: str) -> tuple[Account, ...]:
    """Return the accounts for a connection's messages."""
    return Account(Subject.VHOST, vhost, vhost), Account(Subject.USER, vhost, user)
