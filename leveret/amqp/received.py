"""A message that left the reader's fast path, as routing sees it (core.routing.message)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.amqp.arguments import plain_table
from leveret.amqp.methods import decode_properties

if TYPE_CHECKING:
    from pamqp import commands

    from leveret.amqp.frames import Publish
    from leveret.ports.definitions import Arguments


class ReceivedMessage:
    """Reads the properties once, when an exchange on its way asks for them.

    Raises ConnectionClosingError then, where they are not what they should be.
    """

    __slots__ = ("_headers", "_properties", "body", "exchange", "flags", "header", "routing_key")

    def __init__(self, publish: Publish) -> None:
        self.exchange = publish.exchange
        self.routing_key = publish.routing_key
        self.header = publish.header
        self.body = publish.body
        self.flags = publish.flags
        self._properties: commands.Basic.Properties | None = None
        self._headers: Arguments | None = None

    @property
    def headers(self) -> Arguments:
        """See Message."""
        if self._headers is None:
            self._headers = plain_table(self._read().headers)
        return self._headers

    def property(self, name: str) -> Any:
        """See Message."""
        return getattr(self._read(), name)

    def _read(self) -> commands.Basic.Properties:
        if self._properties is None:
            self._properties = decode_properties(self.header)
        return self._properties
