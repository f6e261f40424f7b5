"""Results of decoding the bodies of a batch, and bodies that are text.

A decoder never raises for a body: whoever has published it shall not end the query of others,
unless its owner wants that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BodyDecoder", "DecodedBodies", "TextDecoder"]


class DecodedBodies(NamedTuple):
    """Values of the bodies of a batch, and by row, ascending, why a body is malformed.

    The value of a malformed body is null, or what could be read of it.
    """

    values: pa.Array
    malformed: Mapping[int, str]


class BodyDecoder(Protocol):
    """Decodes the bodies of a batch, an array of binary without nulls."""

    def decode(self, bodies: pa.Array) -> DecodedBodies:
        """Return as many values as there are bodies."""


class TextDecoder:
    """Bodies as strings of UTF-8."""

    def decode(self, bodies: pa.Array) -> DecodedBodies:
        """Return strings; null for bodies that are no UTF-8."""
        try:
            return DecodedBodies(bodies.cast(pa.string()), {})
        except pa.ArrowInvalid:  # it does not say which one
            pass
        texts: list[str | None] = []
        malformed = {}
        for row, body in enumerate(bodies):
            try:
                texts.append(body.as_py().decode("utf-8"))
            except UnicodeDecodeError as error:
                texts.append(None)
                malformed[row] = f"the body is no UTF-8 at byte {error.start}"
        return DecodedBodies(pa.array(texts, pa.string()), malformed)
