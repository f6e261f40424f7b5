"""A message that left the fast path, in the form that routing takes (core.routing.message)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.amqp.arguments import plain_table
from leveret.amqp.methods import decode_properties

if TYPE_CHECKING:
    from leveret.amqp.frames import Publish
    from leveret.ports.definitions import Arguments


class ReceivedMessage:
    """Decodes the properties once, when an exchange needs them.

    Raises ConnectionClosingError then, if they are malformed.
    """

    __slots__ = ("_headers", "_properties", "body", "exchange", "flags", "header", "routing_key")

    def __init__(self, publish: Publish) -> None:
        self.exchange = publish.exchange
        self.routing_key = publish.routing_key
        self.header = publish.header
        self.body = publish.body
        self.flags = publish.flags
        self._properties: dict[str, Any] | None = None
        self._headers: Arguments | None = None

    @property
    def headers(self) -> Arguments:
        """Headers of the message (see Message)."""
        if self._headers is None:
            self._headers = plain_table(self._read().get("headers"))
        return self._headers

    def property(self, name: str) -> Any:
        """Return a property by name; None if absent (see Message)."""
        return self._read().get(name)

    def _read(self) -> dict[str, Any]:
        if self._properties is None:
            self._properties = decode_properties(self.header)
        return self._properties
