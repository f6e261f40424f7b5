"""Parameters of range reads, their limits, and the rule which queues can be read so."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2s
from typing import TYPE_CHECKING, Any, Final, TypeVar

from leveret.core.names import resource
from leveret.core.queues.declared_queue import check_keeps_messages
from leveret.features.filters.expressions import ExpressionError
from leveret.features.filters.filters import RecordFilter, never
from leveret.features.filters.rules import sql_condition, tag_condition
from leveret.features.range_reads.columns import COLUMNS
from leveret.ports.declared import suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    "parse_truth",
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

Condition = TypeVar("Condition")


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Parameters of a range read. `columns` are numbers (see columns.pyx), ascending.

    Records that a filter excludes are passed over.
    """

    offset: int
    rows_max: int = ROWS_DEFAULT
    bytes_max: int = BYTES_DEFAULT
    chunks_max: int = 1
    wait_ms: int = 0
    columns: tuple[int, ...] = ALL_COLUMNS
    filter: RecordFilter | None = None


PARAMETERS: Final = {
    "offset": 0,
    "rows": ROWS_DEFAULT,
    "bytes": BYTES_DEFAULT,
    "chunks": 1,
    "wait": 0,
    "columns": "offset,key,value",
    "tags": "vip && !test",
    "filter": "amount > 100",
}


def parse_request(given: Mapping[str, str], is_over: Callable[[], bool] = never) -> RangeRequest:
    """Return what a query asks for. Raises ValueError with a text for the client.

    `is_over()` is that of RecordFilter.
    """
    if "offset" not in given:
        raise ValueError("offset is needed: where to begin")
    return RangeRequest(
        offset=parse_whole_number(given, "offset", 0, OFFSET_MAX, 0),
        rows_max=parse_whole_number(given, "rows", 1, ROWS_MAX, ROWS_DEFAULT),
        bytes_max=parse_whole_number(given, "bytes", 1, BYTES_MAX, BYTES_DEFAULT),
        chunks_max=parse_whole_number(given, "chunks", 1, CHUNKS_MAX, 1),
        wait_ms=parse_whole_number(given, "wait", 0, WAIT_MS_MAX, 0),
        columns=_columns(given["columns"]) if "columns" in given else ALL_COLUMNS,
        filter=_filter(given, is_over),
    )


def parse_time(given: Mapping[str, str]) -> int | None:
    """Return the time of a query for offsets, in ms since 1970. Raises ValueError."""
    return parse_whole_number(given, "time", 0, OFFSET_MAX, 0) if "time" in given else None


def parse_truth(given: Mapping[str, str], name: str) -> bool:
    """Return a parameter that is true or false, and false by default. Raises ValueError."""
    text = given.get(name, "false")
    if text not in {"true", "false"}:
        raise ValueError(f"{name} is true or false")
    return text == "true"


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


def _filter(given: Mapping[str, str], is_over: Callable[[], bool]) -> RecordFilter | None:
    """Return the filter of a query, by tags, SQL or both; None without one."""
    tags = _condition(given, "tags", tag_condition)
    sql = _condition(given, "filter", sql_condition)
    return None if tags is None and sql is None else RecordFilter(tags, None, sql, is_over)


def _condition(
    given: Mapping[str, str], name: str, parse: Callable[[str], Condition]
) -> Condition | None:
    if name not in given:
        return None
    try:
        return parse(given[name])
    except ExpressionError as error:
        raise ValueError(f"{name}: {error}") from None


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
