"""Checks of what a user publishes in a batch: as for a channel, at the upload and at the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.access.permissions import IMPERSONATOR, authorise, authorise_topic
from leveret.core.exchanges import DELAYED_MESSAGE
from leveret.core.routing.sender_selected import selected_keys
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.features.delay.rules import read_schedule
from leveret.features.retry.retrying import check_retry_headers
from leveret.ports.contents import headers_table
from leveret.ports.records import RecordFlag
from leveret.ports.tables import MalformedFieldError, decode_raw_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from leveret.core.routing.routes import RouteCache
    from leveret.core.vhost import Vhost
    from leveret.ports.authentication import Kind, Permission, Rights

__all__ = ["PublishRights", "UploadChecks"]


class PublishRights:
    """Rights of a user to publish in a virtual host. `commands` are exchanges that take commands.

    Raises UnansweredError where somebody else must be asked for a right first.
    """

    def __init__(self, vhost: Vhost, rights: Rights, commands: Collection[bytes]) -> None:
        self.vhost = vhost
        self.user = rights.user
        self.rights = rights
        self._commands = commands

    @property
    def named_user(self) -> bytes | None:
        """User who may be named in the property user-id; None: anyone."""
        return None if IMPERSONATOR in self.rights.tags else self.user.encode()

    def require(self, permission: Permission, kind: Kind, name: str) -> None:
        """Raise ChannelError 403 unless the user has this permission on the resource."""
        authorise(self.rights, self.vhost.name, kind, name, permission)

    def exchange(self, name: bytes) -> RouteCache:
        """Return the routes of an exchange to publish to. Raises ChannelError 403 and 404."""
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise ChannelError(404, "the name of an exchange is no UTF-8") from None
        self.require("write", "exchange", text)
        if name in self._commands:
            raise ChannelError(
                403, f"exchange '{text}' takes commands, which are no part of a batch"
            )
        return self.vhost.cache(text)

    def restricts_keys(self, cache: RouteCache) -> bool:
        """Whether topic permissions may deny some routing keys of an exchange."""
        exchange: Any = cache.exchange
        return exchange.definition.type == "topic" and self.rights.restricts_topics(
            self.vhost.name, exchange.name
        )

    def require_key(self, exchange: str, key: bytes) -> None:
        """Raise ChannelError 403 if topic permissions deny a routing key."""
        authorise_topic(
            self.rights, self.vhost.name, exchange, key.decode(errors="replace"), "write"
        )


class UploadChecks:
    """Checks of an upload's rows (see RowStager). `exchanges` are those that were named."""

    def __init__(self, rights: PublishRights, wall_ms: Callable[[], int]) -> None:
        self.exchanges: dict[bytes, RouteCache] = {}
        self._rights = rights
        self._wall_ms = wall_ms

    def exchange(self, name: bytes) -> bool:
        """Check an exchange; return whether each of its keys must be checked."""
        cache = self.exchanges.get(name)
        if cache is None:
            cache = self.exchanges[name] = self._rights.exchange(name)
        return self._rights.restricts_keys(cache)

    def key(self, exchange: bytes, key: bytes) -> None:
        """Check a routing key."""
        self._rights.require_key(exchange.decode(), key)

    def content(self, flags: int, exchange: bytes, header: bytes) -> None:
        """Check headers that a feature would refuse later, when part of the batch is stored."""
        try:
            if flags & RecordFlag.HAS_RETRY:
                check_retry_headers(header)
            if flags & RecordFlag.SELECTS_KEYS:
                self._check_keys(exchange, header)
            if flags & RecordFlag.WANTS_DELAY:
                self._check_delay(exchange, header)
        except ConnectionClosingError as error:
            raise ChannelError(406, error.explanation) from None

    def _check_keys(self, exchange: bytes, header: bytes) -> None:
        keys, _ = selected_keys(header)
        if self._rights.restricts_keys(self.exchanges[exchange]):
            for key in keys:
                self._rights.require_key(exchange.decode(), key)

    def _check_delay(self, exchange: bytes, header: bytes) -> None:
        try:
            headers = decode_raw_table(headers_table(header))
        except MalformedFieldError:
            raise ChannelError(406, "cannot decode the headers") from None
        found: Any = self.exchanges[exchange].exchange
        like_plugin = found.definition.type == DELAYED_MESSAGE
        read_schedule(headers, self._wall_ms(), like_plugin=like_plugin)
