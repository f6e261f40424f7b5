"""Data-loss reports for the operator, on messages that can no longer be read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from leveret.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.ports.ranges import RangeSet

__all__ = ["loss_error"]

RANGES_SHOWN_MAX = 10  # per report; the files beside the log have the rest


def loss_error(lost: RangeSet, kept: Sequence[str]) -> StorageError:
    """Return the report on lost offsets, and on the files with the damaged bytes."""
    if lost:
        shown = [_range_text(*piece) for piece in islice(lost, RANGES_SHOWN_MAX)]
        shown += ["…"] * (len(lost) > RANGES_SHOWN_MAX)
        text = f"messages lost: {lost.count} (at offset {', '.join(shown)}); "
    else:
        text = "no message is lost, but "
    text += "the disk did not keep what was written. "
    if kept:
        text += (
            f"The damaged bytes are quarantined in {', '.join(kept)}; "
            "`leveret dump` shows what such a file holds. "
        )
    return StorageError(text + "All other messages are delivered. Check the disk")


def _range_text(first: int, stop: int) -> str:
    return str(first) if stop == first + 1 else f"{first}-{stop - 1}"
