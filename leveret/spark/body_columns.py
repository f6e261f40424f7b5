"""Columns made of bodies: what they are decoded to, and what becomes of malformed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from leveret.spark.errors import MalformedBodyError
from leveret.spark.value_formats import MalformedMode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.spark.decoded_bodies import BodyDecoder

__all__ = ["BodyColumns", "DecodedColumns"]


class DecodedColumns(NamedTuple):
    """Columns by name, and a mask of the rows that stay, if not all do."""

    arrays: Mapping[str, pa.Array]
    kept: pa.Array | None


class BodyColumns:
    """Makes the column `value` of bodies, and one of the malformed ones, if the table has it."""

    def __init__(
        self, decoder: BodyDecoder, mode: MalformedMode, corrupt_column: str | None
    ) -> None:
        self._decoder = decoder
        self._mode = mode
        self._corrupt_column = corrupt_column

    def decode(self, bodies: pa.Array, place: Callable[[int], str]) -> DecodedColumns:
        """Return the columns of bodies; `place` says where the one of a row is.

        Raises MalformedBodyError for the first malformed body, if that ends the query.
        """
        values, malformed = self._decoder.decode(bodies)
        arrays = {"value": values}
        if malformed and self._mode is MalformedMode.FAIL_FAST:
            row, reason = next(iter(malformed.items()))
            raise MalformedBodyError(
                f"{place(row)}: {reason}. With mode=PERMISSIVE the value is null, and with "
                "mode=DROPMALFORMED there is no row"
            )
        if not malformed:
            if self._corrupt_column is not None:
                arrays[self._corrupt_column] = pa.nulls(len(bodies), pa.binary())
            return DecodedColumns(arrays, None)
        is_malformed = pa.array([row in malformed for row in range(len(bodies))], pa.bool_())
        if self._corrupt_column is not None:
            none = pa.scalar(None, pa.binary())
            arrays[self._corrupt_column] = pc.if_else(is_malformed, bodies, none)
        drops = self._mode is MalformedMode.DROP
        return DecodedColumns(arrays, pc.invert(is_malformed) if drops else None)
