"""Limits on connections, channels and consumers, checked when one opens, never per message."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from leveret.core.access.limits import NO_LIMIT
from leveret.errors import ConnectionClosingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from leveret.core.access.limits import NodeLimits
    from leveret.core.clients import Client
    from leveret.ports.definitions import UserDefinition, VhostDefinition

__all__ = ["Admission"]


class Admission:
    """Limits on connections, channels and consumers.

    `clients` are the open connections; they are counted only if a limit requires it, which takes
    some milliseconds for ten thousand.
    """

    def __init__(
        self,
        node_name: str,
        limits: NodeLimits,
        clients: Collection[Client],
        user: Callable[[str], UserDefinition | None],
    ) -> None:
        self._node_name = node_name
        self._limits = limits
        self._clients = clients
        self._user = user

    def check_connection(self, vhost: VhostDefinition, user: str) -> None:
        """Raise ConnectionClosingError 530 if node, virtual host or user may have no more."""
        limit = self._limits.connections_max
        if 0 <= limit <= len(self._clients):
            raise ConnectionClosingError(
                530, f"connection refused: node connection limit ({limit}) is reached"
            )
        limit = vhost.limits.get("max-connections", NO_LIMIT)
        if self._is_full(limit, lambda client: client.vhost.name == vhost.name):
            raise ConnectionClosingError(
                530,
                f"access to vhost '{vhost.name}' refused for user '{user}': "
                f"connection limit ({limit}) is reached",
            )
        limit = self._user_limit(user, "max-connections")
        if self._is_full(limit, lambda client: client.user == user):
            raise ConnectionClosingError(
                530,
                f"connection refused for user '{user}': user connection limit ({limit}) is reached",
            )

    def check_channel(self, user: str) -> None:
        """Raise ConnectionClosingError 530 if user or node may have no more channels."""
        limit = self._user_limit(user, "max-channels")
        if 0 <= limit <= self._channel_count(limit, user):
            raise ConnectionClosingError(
                530,
                f"number of channels opened for user '{user}' has reached the maximum allowed "
                f"user limit of {limit}",
            )
        limit = self._limits.channels_max
        if 0 <= limit <= self._channel_count(limit):
            raise ConnectionClosingError(
                530,
                f"number of channels opened on node '{self._node_name}' has reached the "
                f"maximum allowed limit of {limit}",
            )

    def check_consumer(self, count: int) -> None:
        """Raise ConnectionClosingError 530 if a channel with `count` consumers may have no more."""
        limit = self._limits.consumers_per_channel_max
        if 0 <= limit <= count:
            raise ConnectionClosingError(530, f"reached maximum ({limit}) of consumers per channel")

    def _user_limit(self, user: str, name: str) -> int:
        definition = self._user(user)
        return NO_LIMIT if definition is None else definition.limits.get(name, NO_LIMIT)

    def _is_full(self, limit: int, concerns: Callable[[Client], bool]) -> bool:
        """Whether at least `limit` of the clients satisfy `concerns`."""
        if not 0 <= limit <= len(self._clients):
            return False
        concerned = (client for client in self._clients if concerns(client))
        return len(list(islice(concerned, limit))) == limit

    def _channel_count(self, limit: int, user: str | None = None) -> int:
        """Return the number of channels of one user, or all; 0 if there is no limit."""
        if limit < 0:
            return 0
        return sum(client.channel_count for client in self._clients if user in {None, client.user})
