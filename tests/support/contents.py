"""Content headers from and to the properties of pamqp."""

from __future__ import annotations

from pamqp import commands

from leveret.ports import contents


def encode_properties(properties: commands.Basic.Properties, size: int) -> bytes:
    """Return the content header of a message with these properties and a body of `size` bytes."""
    named = dict(properties)
    named["type"] = named.pop("message_type")
    named["cluster_id"] = named["cluster_id"] or None
    return contents.encode_properties(named, size)


def decode_properties(header: bytes, *, raw_headers: bool = False) -> commands.Basic.Properties:
    """Return the properties in a content header; an absent one is None (cluster_id: empty)."""
    named = contents.decode_properties(header, raw_headers=raw_headers)
    properties = commands.Basic.Properties()
    for name in commands.Basic.Properties.attributes():
        absent = "" if name == "cluster_id" else None
        setattr(properties, name, named.get("type" if name == "message_type" else name, absent))
    return properties
