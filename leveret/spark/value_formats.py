"""Formats that bodies are decoded of, and ways to treat those that are malformed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

__all__ = ["CORRUPT_COLUMN", "MalformedMode", "SchemaIdOptions", "ValueFormat", "ValueOptions"]

CORRUPT_COLUMN: Final = "_corrupt_record"  # as Spark's own sources have it


class ValueFormat(Enum):
    """Format of the bodies of a topic."""

    RAW = "raw"
    TEXT = "text"
    JSON = "json"
    AVRO = "avro"


class MalformedMode(Enum):
    """Ways to treat a body that cannot be decoded, as in Spark's own sources."""

    PERMISSIVE = "permissive"  # null, and the body in a column of its own
    DROP = "dropmalformed"
    FAIL_FAST = "failfast"


@dataclass(frozen=True, slots=True)
class SchemaIdOptions:
    """Places of schemas whose ids are in Confluent's prefix: a registry's URL, or JSON by id."""

    url: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    by_id: str | None = None


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """How bodies are decoded. `schema` is as the user has written it."""

    format: ValueFormat = ValueFormat.RAW
    mode: MalformedMode = MalformedMode.PERMISSIVE
    corrupt_column: str = CORRUPT_COLUMN
    schema: str | None = None
    time_zone: str = "UTC"
    schema_ids: SchemaIdOptions | None = None  # None: bodies have no prefix
