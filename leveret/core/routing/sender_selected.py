"""Sender-selected distribution: the headers CC and BCC name further routing keys of a message.

Only the broker sees the header BCC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.routing.message import BLIND_COPIES, OPEN_COPIES
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.contents import headers_table
from leveret.ports.fields import field_type
from leveret.ports.tables import MalformedFieldError, decode_raw_table, decode_value

if TYPE_CHECKING:
    from leveret.ports.tables import RawValue

__all__ = ["selected_keys"]


def selected_keys(header: bytes) -> tuple[tuple[bytes, ...], bool]:
    """Return the keys in CC and BCC of a content header, and whether it has BCC.

    Raises ChannelError 406 where one of the two is not an array, ConnectionClosingError 501 for a
    malformed table; elements that are not strings are ignored.
    """
    try:
        headers = decode_raw_table(headers_table(header))
    except MalformedFieldError as error:
        raise ConnectionClosingError(501, "cannot decode the headers") from error
    keys = tuple(key for name in (OPEN_COPIES, BLIND_COPIES) for key in _keys(headers, name))
    return keys, BLIND_COPIES in headers


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
