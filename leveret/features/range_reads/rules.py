"""Parameters of range reads, their limits, and the rule which queues can be read so."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Final

from leveret.core.names import resource
from leveret.core.queues.declared_queue import check_keeps_messages
from leveret.features.range_reads.columns import COLUMNS
from leveret.ports.declared import suggestion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.ports.definitions import QueueDefinition

__all__ = [
    "BYTES_MAX",
    "CHUNKS_MAX",
    "OFFSET_MAX",
    "PARAMETERS",
    "ROWS_MAX",
    "WAIT_MS_MAX",
    "RangeRequest",
    "check_read_by_offset",
    "log_number",
    "log_text",
    "parse_request",
    "parse_time",
    "parse_whole_number",
]

OFFSET_MAX: Final = (1 << 63) - 1  # of Arrow's and Spark's numbers; no log has more
ROWS_DEFAULT: Final = 100_000
ROWS_MAX: Final = 1_000_000  # a table of their places is 4 MB
BYTES_DEFAULT: Final = 4 << 20  # some 40,000 messages of 100 bytes; one message may be larger
BYTES_MAX: Final = 16 << 20
# Chunks in one answer: a request costs the event loop as much as reading some thousand messages.
CHUNKS_MAX: Final = 1000
WAIT_MS_MAX: Final = 20_000  # as in the pull API: shorter than the idle timeouts of proxies
DIGITS_MAX: Final = 19
ALL_COLUMNS: Final = tuple(range(len(COLUMNS)))


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Parameters of a range read. `columns` are numbers (see columns.pyx), ascending."""

    offset: int
    rows_max: int = ROWS_DEFAULT
    bytes_max: int = BYTES_DEFAULT
    chunks_max: int = 1
    wait_ms: int = 0
    columns: tuple[int, ...] = ALL_COLUMNS


PARAMETERS: Final = {
    "offset": 0,
    "rows": ROWS_DEFAULT,
    "bytes": BYTES_DEFAULT,
    "chunks": 1,
    "wait": 0,
    "columns": "offset,key,value",
}


def parse_request(given: Mapping[str, str]) -> RangeRequest:
    """Return what a query asks for. Raises ValueError with a text for the client."""
    if "offset" not in given:
        raise ValueError("offset is needed: where to begin")
    return RangeRequest(
        offset=parse_whole_number(given, "offset", 0, OFFSET_MAX, 0),
        rows_max=parse_whole_number(given, "rows", 1, ROWS_MAX, ROWS_DEFAULT),
        bytes_max=parse_whole_number(given, "bytes", 1, BYTES_MAX, BYTES_DEFAULT),
        chunks_max=parse_whole_number(given, "chunks", 1, CHUNKS_MAX, 1),
        wait_ms=parse_whole_number(given, "wait", 0, WAIT_MS_MAX, 0),
        columns=_columns(given["columns"]) if "columns" in given else ALL_COLUMNS,
    )


def parse_time(given: Mapping[str, str]) -> int | None:
    """Return the time of a query for offsets, in ms since 1970. Raises ValueError."""
    return parse_whole_number(given, "time", 0, OFFSET_MAX, 0) if "time" in given else None


def parse_whole_number(
    given: Mapping[str, str], name: str, minimum: int, maximum: int, default: int
) -> int:
    """Return a parameter's value. Raises ValueError with a text for the client."""
    text = given.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    if not is_number or not minimum <= int(text) <= maximum:
        raise ValueError(f"{name} is a whole number from {minimum} to {maximum}")
    return int(text)


def _columns(text: str) -> tuple[int, ...]:
    numbers = set()
    for name in text.split(","):
        if name not in COLUMNS:
            close = suggestion(name, COLUMNS)
            raise ValueError(f"unknown column {name[:64]!r}{close}; there are {', '.join(COLUMNS)}")
        numbers.add(COLUMNS.index(name))
    return tuple(sorted(numbers))


def check_read_by_offset(queue: Any, name: str) -> None:
    """Raise ChannelError 406 unless a queue, as its client calls it, can be read by offset."""
    described = resource("queue", name, queue.definition.vhost)
    check_keeps_messages(queue, described, "to be read by offset")


def log_number(definition: QueueDefinition) -> int:
    """Return a number for a queue's logs, that another queue of the same name does not have."""
    digest = blake2s(definition.incarnation.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def log_text(definition: QueueDefinition) -> str:
    """Return the same number as JSON has it: as text, since it may exceed 53 bits."""
    return f"{log_number(definition):016x}"
