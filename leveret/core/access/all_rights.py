"""Rights of users whose requests need no check on this node: all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.ports.authentication import Kind, Permission, Rights, TopicPermission

__all__ = ["AllRights"]


class AllRights:
    """Rights of the command line, whose socket only the data directory's owner can open."""

    expires_at_ms = None
    generation = 0

    def __init__(self, user: str, tags: tuple[str, ...] = ("administrator",)) -> None:
        self.user = user
        self.tags = tags

    def may_enter(self, _vhost: str) -> bool:
        """Whether the user may open connections to a virtual host: always."""
        return True

    def allows(self, _vhost: str, _kind: Kind, _name: str, _permission: Permission) -> bool:
        """Whether the user has a permission for a resource: always."""
        return True

    def restricts_topics(self, _vhost: str, _exchange: str) -> bool:
        """Whether some routing keys may be forbidden: never."""
        return False

    def allows_topic(
        self, _vhost: str, _exchange: str, _key: str, _permission: TopicPermission
    ) -> bool:
        """Whether the user may use a routing key: always."""
        return True

    async def renewed(self, _secret: str) -> Rights:
        """Return the same rights: there are no credentials to renew."""
        return self
