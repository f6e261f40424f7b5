"""Chunks of messages, as they are staged."""

from __future__ import annotations

from typing import NamedTuple

from pamqp import commands

from leveret.batch_writer import pack_chunk, row_bytes
from tests.support.contents import encode_properties


class Row(NamedTuple):
    """A message to be staged."""

    key: str = "q"
    value: bytes = b"x"
    exchange: str = ""
    header: bytes | None = None
    properties: dict[str, object] = {}

    @property
    def content_header(self) -> bytes:
        if self.header is not None:
            return self.header
        given = {"delivery_mode": 2, **self.properties}
        return encode_properties(commands.Basic.Properties(**given), 0)


def chunk(*rows: Row) -> bytes:
    return pack_chunk(
        len(rows),
        exchange=row_bytes(row.exchange.encode() for row in rows),
        routing_key=row_bytes(row.key.encode() for row in rows),
        header=row_bytes(row.content_header for row in rows),
        value=row_bytes(row.value for row in rows),
    )
