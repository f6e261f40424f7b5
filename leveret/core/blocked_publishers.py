"""Publishers that wait until a leader takes what they have sent."""

from __future__ import annotations

from typing import Protocol

__all__ = ["BlockedPublishers"]


class BlockableConnection(Protocol):
    """Connection that can be kept from publishing."""

    def leader_missed(self, reason: str) -> None:
        """Read nothing until `leader_found`."""
        ...

    def leader_found(self) -> None:
        """Read again."""
        ...


class BlockedPublishers:
    """Connections that publish to partitions whose leader is away, or slow.

    A connection is blocked with its next publish to one of `overdue`; others go on.
    """

    def __init__(self) -> None:
        self.overdue: dict[object, str] = {}  # what takes no more, and the reason
        self._blocked: dict[BlockableConnection, set[object]] = {}

    def block(self, owner: object, reason: str) -> None:
        """Block whoever publishes to `owner` from now on."""
        self.overdue[owner] = reason

    def published(self, connection: BlockableConnection, owner: object) -> None:
        """Note a publish: the connection is blocked if its owner is overdue."""
        reason = self.overdue.get(owner)
        if reason is not None:
            self._blocked.setdefault(connection, set()).add(owner)
            connection.leader_missed(reason)

    def release(self, owner: object) -> None:
        """Let those publish again who waited for `owner` alone."""
        if self.overdue.pop(owner, None) is None:
            return
        for connection, owners in list(self._blocked.items()):
            owners.discard(owner)
            if not owners:
                del self._blocked[connection]
                connection.leader_found()

    def forget(self, connection: BlockableConnection) -> None:
        """Forget a connection that has ended."""
        self._blocked.pop(connection, None)
