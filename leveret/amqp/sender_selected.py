"""Sender-selected distribution: the headers CC and BCC name further routing keys of a message.

The reader notices such headers; the channel calls `select_keys` before it routes the message. Only
the broker sees the header BCC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.message import BLIND_COPIES, OPEN_COPIES
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.contents import headers_table, open_header
from leveret.ports.fields import field_type
from leveret.ports.tables import MalformedFieldError, decode_raw_table, decode_value

if TYPE_CHECKING:
    from leveret.amqp.frames import Publish
    from leveret.ports.tables import RawValue


def select_keys(publish: Publish) -> None:
    """Store the keys in CC and BCC as `further_keys`; remove BCC from the header others see.

    The record keeps BCC: if it is dead-lettered, its BCC keys apply again.

    Raises ChannelError 406 where one of the two is not an array; elements that are not strings are
    ignored.
    """
    try:
        headers = decode_raw_table(headers_table(publish.header))
    except MalformedFieldError as error:
        raise ConnectionClosingError(501, "cannot decode the headers") from error
    publish.further_keys = tuple(
        key for name in (OPEN_COPIES, BLIND_COPIES) for key in _keys(headers, name)
    )
    if BLIND_COPIES in headers:
        publish.blind_header = publish.header
        publish.header = open_header(publish.header)


def _keys(headers: dict[str, RawValue], name: str) -> list[bytes]:
    if name not in headers:
        return []
    keys = decode_value(headers[name])
    if not isinstance(keys, list):
        kind = field_type(headers[name][0])
        raise ChannelError(406, f'invalid message: {{unacceptable_type_in_header,"{name}",{kind}}}')
    return [
        key.encode() if isinstance(key, str) else bytes(key)
        for key in keys
        if isinstance(key, (str, bytes))
    ]
