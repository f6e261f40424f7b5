"""One JSON body at a time, as Spark's `from_json` reads it: what no block parser gets right.

Fields that are missing are null, fields that the schema does not have are passed over, names are
compared with their case, and the last one of several fields of a name counts. A field of another
type than the schema's is null, and the body malformed; so is an array or a map with such an
element, as a whole, while an element that is an object is null only where it does not fit.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import json
import re
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as kinds

from leveret.spark.errors import SourceError
from leveret.spark.json_shape import nesting

if TYPE_CHECKING:
    from collections.abc import Callable

    # Of a value that is not null, and of the problems found so far.
    Converter = Callable[[Any, list[str]], Any]

__all__ = ["NESTING_MAX", "JsonRow", "JsonRowReader"]

# Arrays and objects within each other. Spark's parser ends at 1000, which is as deep as Python's
# own stack; what is written by people or by programs for them has some ten.
NESTING_MAX: Final = 250
# Longer numbers are no data; their conversion would take long.
NUMBER_CHARACTERS_MAX: Final = 1000
INTEGER_CHARACTERS_MAX: Final = 20
TIME_CHARACTERS_MAX: Final = 64  # the patterns below may look at a character many times
MICROSECOND: Final = dt.timedelta(microseconds=1)
EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - offsets are added by hand
NO_TIME: Final = dt.timedelta()
CYCLE_YEARS: Final = 400  # after which the calendar repeats itself
CYCLE: Final = dt.timedelta(days=146_097)
FIRST_S: Final = -62_135_596_800  # of the year 1
LAST_S: Final = 253_402_300_799  # of the year 9999
NO_NUMBERS: Final = frozenset(("NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"))
DECIMAL: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
DATE: Final = re.compile(r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?\s*", re.ASCII)
TIME: Final = re.compile(
    r"\s*(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,9}))?)?)?)?"
    r")?)?\s*(Z|[+-]\d{2}(?::?\d{2})?)?\s*",
    re.ASCII,
)


class FieldMismatchError(Exception):
    """A value is not of its field's type."""


class IntegerText(str):
    """An integer of a JSON text, as it is written."""

    __slots__ = ()


class FloatText(str):
    """Any other number of a JSON text, as it is written."""

    __slots__ = ()


class JsonRow(NamedTuple):
    """Value of one body, and why it is malformed, if it is."""

    value: Any
    problem: str | None


class JsonRowReader:
    """Reads bodies as values of an Arrow type, which is a struct, a list or a map.

    Raises SourceError if the type has a part that is not read of JSON.
    """

    def __init__(self, wanted: pa.DataType, zone: dt.tzinfo) -> None:
        self._zone = zone
        self._convert = self._converter(wanted)

    def read(self, body: bytes) -> JsonRow:
        """Return the value, as `pyarrow.array` takes it. A body of nothing but spaces is null."""
        problems: list[str] = []
        try:
            parsed = _parsed(body)
            value = None if parsed is EMPTY else self._convert(parsed, problems)
        except FieldMismatchError as error:
            return JsonRow(None, f"the body {error}")
        return JsonRow(value, problems[0] if problems else None)

    def _converter(self, wanted: pa.DataType) -> Converter:
        """Return the function that makes values of a type."""
        makers: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Converter]], ...]
        makers = (
            (kinds.is_struct, self._of_struct),
            (kinds.is_list, self._of_list),
            (kinds.is_map, self._of_map),
            (kinds.is_timestamp, self._of_time),
            (kinds.is_signed_integer, _of_integer),
            (kinds.is_decimal128, _of_decimal),
        )
        for is_kind, make in makers:
            if is_kind(wanted):
                return make(wanted)
        for is_kind, convert in CONVERTERS:
            if is_kind(wanted):
                return convert
        raise SourceError(
            f"the schema has a part of Arrow's type '{wanted}', which is not read of JSON"
        )

    def _of_struct(self, wanted: pa.DataType) -> Converter:
        parts = [(each.name, self._converter(each.type)) for each in wanted]

        def convert(value: Any, problems: list[str]) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise FieldMismatchError("is no object")
            found: dict[str, Any] = {}
            for name, part in parts:
                given = value.get(name)
                if given is None:
                    continue
                try:
                    found[name] = part(given, problems)
                except FieldMismatchError as error:
                    problems.append(f"field '{name}' {error}")
            return found

        return convert

    def _of_list(self, wanted: pa.DataType) -> Converter:
        part = self._converter(wanted.value_type)

        def convert(value: Any, problems: list[str]) -> list[Any]:
            if not isinstance(value, list):
                raise FieldMismatchError("is no array")
            return [None if each is None else part(each, problems) for each in value]

        return convert

    def _of_map(self, wanted: pa.DataType) -> Converter:
        if not kinds.is_string(wanted.key_type):
            raise SourceError("the schema has a map whose keys are no strings, as JSON's are")
        part = self._converter(wanted.item_type)

        def convert(value: Any, problems: list[str]) -> list[tuple[str, Any]]:
            if not isinstance(value, dict):
                raise FieldMismatchError("is no object")
            return [
                (_encodable(name), None if each is None else part(each, problems))
                for name, each in value.items()
            ]

        return convert

    def _of_time(self, wanted: pa.DataType) -> Converter:
        return _local_time if wanted.tz is None else self._time

    def _time(self, value: Any, _: list[str]) -> int:
        """Return microseconds since 1970 of a time, or of a number of seconds."""
        if isinstance(value, IntegerText):
            seconds = int(value) if len(value) <= INTEGER_CHARACTERS_MAX else LAST_S + 1
            if not FIRST_S <= seconds <= LAST_S:
                raise FieldMismatchError("is no time of the years 1 to 9999")
            return seconds * 1_000_000
        time = _read_time(value)
        offset = time.offset
        if offset is None:
            offset = time.of_cycle.replace(tzinfo=self._zone).utcoffset() or NO_TIME
        return (time.since_1970 - offset) // MICROSECOND


EMPTY: Final = object()


def _parsed(body: bytes) -> Any:
    """Return what a body has, or EMPTY. Raises FieldMismatchError if it is malformed."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FieldMismatchError(f"is no UTF-8 at byte {error.start}") from None
    if not text.strip(" \t\r\n"):
        return EMPTY
    if nesting(body) > NESTING_MAX:
        raise FieldMismatchError(f"has more than {NESTING_MAX} arrays or objects within each other")
    try:
        parsed = json.loads(
            text, parse_int=IntegerText, parse_float=FloatText, parse_constant=FloatText
        )
    except json.JSONDecodeError as error:
        raise FieldMismatchError(f"is no JSON at character {error.pos}: {error.msg}") from None
    if parsed is None:
        raise FieldMismatchError("is JSON's null")
    return parsed


class ReadTime(NamedTuple):
    """A time without a zone, and its offset from UTC, if there is one.

    `of_cycle` is the time as Python has it, in the year 400 for the year 0, which it does not have.
    """

    of_cycle: dt.datetime
    since_1970: dt.timedelta
    offset: dt.timedelta | None


def _is_short(value: Any) -> bool:
    return type(value) is str and len(value) <= TIME_CHARACTERS_MAX


def _read_time(value: Any) -> ReadTime:
    found = TIME.fullmatch(value) if _is_short(value) else None
    if found is None:
        raise FieldMismatchError("is no time like 2026-01-05T13:30:00.123Z")
    year, month, day, hour, minute, second, fraction, offset = found.groups()
    if offset is not None and hour is None:
        raise FieldMismatchError("is a date with an offset, and no time")
    try:
        time = dt.datetime(  # noqa: DTZ001 - the zone comes later
            int(year) or CYCLE_YEARS,
            int(month or 1),
            int(day or 1),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            int((fraction or "0")[:6].ljust(6, "0")),
        )
        since = time - EPOCH - (NO_TIME if int(year) else CYCLE)
        return ReadTime(time, since, _offset(offset))
    except ValueError as error:
        raise FieldMismatchError(f"is no time: {error}") from None


def _offset(text: str | None) -> dt.timedelta | None:
    if text is None:
        return None
    if text == "Z":
        return NO_TIME
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError("its offset is not of hours and minutes")
    offset = dt.timedelta(hours=hours, minutes=minutes)
    return -offset if text[0] == "-" else offset


def _local_time(value: Any, _: list[str]) -> int:
    time = _read_time(value)
    if time.offset is not None:
        raise FieldMismatchError("is a time with an offset, and the schema's is without")
    return time.since_1970 // MICROSECOND


def _date(value: Any, _: list[str]) -> int:
    """Return days since 1970."""
    found = DATE.fullmatch(value) if _is_short(value) else None
    if found is None:
        raise FieldMismatchError("is no date like 2026-01-05")
    year, month, day = int(found[1]), int(found[2] or 1), int(found[3] or 1)
    try:
        date = dt.datetime(year or CYCLE_YEARS, month, day)  # noqa: DTZ001 - days have no zone
    except ValueError as error:
        raise FieldMismatchError(f"is no date: {error}") from None
    return (date - EPOCH - (NO_TIME if year else CYCLE)).days


def _of_integer(wanted: pa.DataType) -> Converter:
    bits = wanted.bit_width
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any, _: list[str]) -> int:
        if isinstance(value, IntegerText) and len(value) <= INTEGER_CHARACTERS_MAX:
            number = int(value)
            if low <= number <= high:
                return number
        raise FieldMismatchError(f"is no integer of {bits} bits")

    return convert


def _float(value: Any, _: list[str]) -> float:
    if isinstance(value, IntegerText | FloatText) or (
        isinstance(value, str) and value in NO_NUMBERS
    ):
        return float(value)
    raise FieldMismatchError("is no number")


def _of_decimal(wanted: pa.DataType) -> Converter:
    precision, scale = wanted.precision, wanted.scale
    unit = Decimal(1).scaleb(-scale)
    context = Context(prec=precision, rounding=ROUND_HALF_UP)

    def convert(value: Any, _: list[str]) -> Decimal:
        if (
            not isinstance(value, str)
            or len(value) > NUMBER_CHARACTERS_MAX
            or DECIMAL.fullmatch(value) is None
        ):
            raise FieldMismatchError("is no decimal number")
        try:
            return Decimal(value).quantize(unit, context=context)
        except InvalidOperation:
            raise FieldMismatchError(f"does not fit into decimal({precision},{scale})") from None

    return convert


def _flag(value: Any, _: list[str]) -> bool:
    if not isinstance(value, bool):
        raise FieldMismatchError("is neither true nor false")
    return value


def _binary(value: Any, _: list[str]) -> bytes:
    if type(value) is not str:
        raise FieldMismatchError("is no string of base64")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise FieldMismatchError("is no base64") from None


def _string(value: Any, _: list[str]) -> str:
    """Return a string as it is, and anything else as JSON."""
    if type(value) is str:
        return _encodable(value)
    parts: list[str] = []
    _write(value, parts)
    return _encodable("".join(parts))


def _write(value: Any, parts: list[str]) -> None:
    """Append a value's JSON text, its numbers as they were written."""
    if isinstance(value, IntegerText | FloatText):
        parts.append(value)
    elif isinstance(value, dict):
        mark = "{"
        for name, each in value.items():
            parts += (mark, json.dumps(name, ensure_ascii=False), ":")
            _write(each, parts)
            mark = ","
        parts.append("}" if value else "{}")
    elif isinstance(value, list):
        mark = "["
        for each in value:
            parts.append(mark)
            _write(each, parts)
            mark = ","
        parts.append("]" if value else "[]")
    else:
        parts.append(json.dumps(value, ensure_ascii=False))


def _encodable(text: str) -> str:
    """Return a text with question marks for halves of surrogate pairs, as Java has it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


CONVERTERS: Final = (
    (kinds.is_string, _string),
    (kinds.is_binary, _binary),
    (kinds.is_boolean, _flag),
    (kinds.is_floating, _float),
    (kinds.is_date32, _date),
)
