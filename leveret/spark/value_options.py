"""Options that say how bodies are decoded, of topics that are read and queues that are consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from leveret.spark.option_reader import OptionError, OptionReader
from leveret.spark.value_formats import (
    CORRUPT_COLUMN,
    MalformedMode,
    SchemaIdOptions,
    ValueFormat,
    ValueOptions,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_values", "value_options"]

DECODED: Final = (ValueFormat.TEXT, ValueFormat.JSON, ValueFormat.AVRO)
WITH_SCHEMA: Final = (ValueFormat.JSON, ValueFormat.AVRO)
VALUE_OPTIONS: Final = {  # the formats that an option is for
    "mode": DECODED,
    "columnNameOfCorruptRecord": DECODED,
    "valueSchema": WITH_SCHEMA,
    "timeZone": (ValueFormat.JSON,),
    **dict.fromkeys(
        ("schemaRegistry", "schemaRegistryUser", "schemaRegistryPassword", "valueSchemas"),
        (ValueFormat.AVRO,),
    ),
}


def value_options(options: Mapping[str, str]) -> ValueOptions:
    """Return how bodies are decoded. Raises OptionError."""
    return read_values(OptionReader(options))


def read_values(given: OptionReader) -> ValueOptions:
    """Return how bodies are decoded. Raises OptionError."""
    found = ValueOptions(
        format=ValueFormat(given.one_of("format", (each.value for each in ValueFormat), "raw")),
        mode=MalformedMode(
            given.one_of("mode", (each.value for each in MalformedMode), "permissive")
        ),
        corrupt_column=given.text("columnNameOfCorruptRecord") or CORRUPT_COLUMN,
        schema=given.text("valueSchema"),
        time_zone=given.text("timeZone") or "UTC",
        schema_ids=_schema_id_options(given),
    )
    try:
        ZoneInfo(found.time_zone)
    except (OSError, ValueError, KeyError):
        raise OptionError(
            f"option 'timeZone' is '{found.time_zone}', and must be like Europe/Berlin"
        ) from None
    for name, formats in VALUE_OPTIONS.items():
        if given.is_given(name) and found.format not in formats:
            raise OptionError(
                f"option '{name}' is for format={' or '.join(each.value for each in formats)}"
            )
    return found


def _schema_id_options(given: OptionReader) -> SchemaIdOptions | None:
    url, by_id = given.text("schemaRegistry"), given.text("valueSchemas")
    user, password = given.text("schemaRegistryUser"), given.text("schemaRegistryPassword")
    if url is None and user is not None:
        raise OptionError("option 'schemaRegistryUser' is given, and 'schemaRegistry' is missing")
    if password is not None and user is None:
        raise OptionError(
            "option 'schemaRegistryPassword' is given, and 'schemaRegistryUser' is missing"
        )
    place = urlsplit(url or "")
    if place.username is not None or place.password is not None:
        raise OptionError(
            "option 'schemaRegistry' has a password: it belongs in 'schemaRegistryUser' and "
            "'schemaRegistryPassword'"
        )
    if url is not None and place.scheme not in {"http", "https"}:
        raise OptionError(f"option 'schemaRegistry' is '{url}', and must be an http or https URL")
    if url is None and by_id is None:
        return None
    return SchemaIdOptions(url, user, password, by_id)
