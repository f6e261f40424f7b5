"""What the owner of a node's data directory may do: everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.ports.authentication import Kind, Permission, Rights, TopicPermission

__all__ = ["OperatorRights"]


class OperatorRights:
    """Rights of the command line, whose socket only the directory's owner may open."""

    expires_at_ms = None
    generation = 0
    tags = ("administrator",)

    def __init__(self, user: str) -> None:
        self.user = user

    def may_enter(self, _vhost: str) -> bool:
        """See ports.authentication."""
        return True

    def allows(self, _vhost: str, _kind: Kind, _name: str, _permission: Permission) -> bool:
        """See ports.authentication."""
        return True

    def restricts_topics(self, _vhost: str, _exchange: str) -> bool:
        """See ports.authentication."""
        return False

    def allows_topic(
        self, _vhost: str, _exchange: str, _key: str, _permission: TopicPermission
    ) -> bool:
        """See ports.authentication."""
        return True

    async def renewed(self, _secret: str) -> Rights:
        """Nothing was proved that could be renewed."""
        return self
