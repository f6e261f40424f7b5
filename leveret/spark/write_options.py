"""Options of a table that is written: where its rows go, and what messages they become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from leveret.spark.connection_options import ConnectionOptions, read_connection
from leveret.spark.option_reader import OptionError, OptionReader

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WriteOptions", "write_options"]

SHORT_STRING_MAX: Final = 255
NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a table that is written.

    `exchange` and `routing_key` are those of all rows; None: a column has them. `writer` and
    `number` name the batch; None: a streaming query's own, or new ones for each write.
    """

    connection: ConnectionOptions
    exchange: str | None
    routing_key: str | None
    persistent: bool
    mandatory: bool
    atomic: bool
    writer: str | None
    number: int | None


def write_options(options: Mapping[str, str], *, is_streaming: bool) -> WriteOptions:
    """Return the options of a table that is written. Raises OptionError."""
    given = OptionReader(options)
    topic = _short(given, "topic")
    exchange, key = _short(given, "exchange"), _short(given, "routingKey")
    if topic is not None and (exchange is not None or key is not None):
        raise OptionError(
            "option 'topic' is given, and 'exchange' or 'routingKey' as well: a topic is written "
            "by its name alone"
        )
    number = given.integer("batchId", 0, high=NUMBER_MAX) if given.is_given("batchId") else None
    found = WriteOptions(
        connection=read_connection(given),
        exchange="" if topic is not None else exchange,
        routing_key=topic if topic is not None else key,
        persistent=given.flag("persistent", default=True),
        mandatory=given.flag("mandatory", default=True),
        atomic=given.flag("atomic", default=is_streaming or number is not None),
        writer=_short(given, "writer"),
        number=number,
    )
    given.text("checkpointLocation")  # Spark's own, of each streaming query
    given.end()
    _check_writer(found, is_streaming=is_streaming)
    return found


def _short(given: OptionReader, name: str) -> str | None:
    value = given.text(name)
    if value is not None and len(value.encode(errors="replace")) > SHORT_STRING_MAX:
        raise OptionError(f"option '{name}' has more than {SHORT_STRING_MAX} bytes")
    return value


def _check_writer(found: WriteOptions, *, is_streaming: bool) -> None:
    """Raise OptionError if the batch of a write is half named, or a stream's is not whole."""
    if is_streaming:
        if found.number is not None:
            raise OptionError("option 'batchId' is for batch writes: a stream has batch ids")
        if not found.atomic:
            raise OptionError("option 'atomic' is for batch writes: a micro-batch always is")
    elif (found.writer is None) != (found.number is None):
        raise OptionError("options 'writer' and 'batchId' name a batch together: give both")
    elif found.number is not None and not found.atomic:
        raise OptionError("a write with 'batchId' is atomic: drop the option 'atomic'")
