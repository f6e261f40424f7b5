"""Metering: what connections and queues have moved since somebody looked last.

Messages are counted where they pass, in compiled code (ports.traffic); here the counts are looked
at now and then, and turned into what is new for each account. Whoever ends says so first, so that
its last messages are not lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.ports.usage import Account, Subject, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Metered", "UsageMeter", "accounts_of_client"]


class Metered(Protocol):
    """Somebody whose traffic counts."""

    def accounts(self) -> Sequence[Account]:
        """On whose accounts; always the same."""
        ...

    def total_usage(self) -> Usage:
        """All of it so far."""
        ...


class UsageMeter:
    """What was used since the last `take`, by account."""

    def __init__(self) -> None:
        self._known: dict[Metered, Usage] = {}
        self._gathered: dict[Account, Usage] = {}

    def look(self, sources: Iterable[Metered]) -> None:
        """Take in what these have moved since the last look."""
        for source in sources:
            self._known[source] = self._gather(source)

    def ended(self, source: Metered) -> None:
        """Take in the last that this one has moved; it is not looked at again."""
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
        """What was gathered; nothing is, afterwards."""
        taken, self._gathered = self._gathered, {}
        return taken

    def give_back(self, used: dict[Account, Usage]) -> None:
        """What was taken could not be kept: it counts for the next time."""
        for account, usage in used.items():
            self._gathered[account] = self._gathered.get(account, Usage()).plus(usage)


def accounts_of_client(vhost: str, user: str) -> tuple[Account, ...]:
    """Where a connection's messages count."""
    return Account(Subject.VHOST, vhost, vhost), Account(Subject.USER, vhost, user)
