"""Schemas by the ids of Confluent's prefix: given as JSON, or fetched from a schema registry.

A registry is asked for each id once in a process. An id that it does not know makes a body
malformed; a registry that does not answer ends the task, since the next one may find it well.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from leveret.spark.avro_schemas import AvroSchemaError, parsed_schema, schema_of_text
from leveret.spark.errors import SourceError

if TYPE_CHECKING:
    from leveret.spark.value_formats import SchemaIdOptions

__all__ = ["SchemaIds", "schema_ids_of"]

TIMEOUT_S: Final = 10.0
ATTEMPTS: Final = 4
PAUSE_S: Final = 1.0
ANSWER_BYTES_MAX: Final = 4 << 20  # a schema is some kilobytes
# Ids come from bodies: those that no schema has are not remembered without an end.
KNOWN_MAX: Final = 10_000


class SchemaIds:
    """Finds schemas by id, and remembers them."""

    def __init__(self, options: SchemaIdOptions) -> None:
        self._options = options
        self._given = schema_of_text(options.by_id) if options.by_id is not None else {}
        if not isinstance(self._given, dict):
            raise AvroSchemaError("it is no object with ids as names")
        self._known: dict[int, Any] = {}

    def schema(self, number: int) -> Any:
        """Return the schema with an id, as fastavro reads bodies by it.

        Raises AvroSchemaError if there is none that can be used, SourceError if the registry does
        not answer.
        """
        if number not in self._known:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[number] = self._found(number)
        found = self._known[number]
        if isinstance(found, AvroSchemaError):
            raise found
        return found

    def _found(self, number: int) -> Any:
        """Return a schema, or the error that is to be raised for it."""
        try:
            given = self._given.get(str(number))
            if given is None:
                given = self._ask(number)
            return parsed_schema(schema_of_text(given) if isinstance(given, str) else given)
        except AvroSchemaError as error:
            return AvroSchemaError(f"the schema with id {number} cannot be used: {error}")

    def _ask(self, number: int) -> str:
        url = self._options.url
        if url is None:
            raise AvroSchemaError("option 'valueSchemas' does not have it")
        request = urllib.request.Request(  # noqa: S310 - read_options has checked the scheme
            f"{url.rstrip('/')}/schemas/ids/{number}",
            headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json"},
        )
        if self._options.user is not None:
            secret = f"{self._options.user}:{self._options.password or ''}".encode()
            request.add_unredirected_header(
                "Authorization", f"Basic {base64.b64encode(secret).decode()}"
            )
        answer = _answer(request)
        if answer is None:
            raise AvroSchemaError("the schema registry does not have it")
        if answer.get("schemaType", "AVRO") != "AVRO":
            raise AvroSchemaError(f"it is of type {answer['schemaType']}")
        if answer.get("references"):
            raise AvroSchemaError("it refers to other schemas, which is not supported")
        return str(answer.get("schema"))


def _answer(request: urllib.request.Request) -> dict[str, Any] | None:
    """Return a registry's answer, or None if it does not have what is asked for."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            reason: object = f"{error.code} {error.reason}"
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            reason = error
        else:
            if isinstance(found, dict):
                return found
            reason = "its answer is no object"
    raise SourceError(f"the schema registry does not answer {request.full_url}: {reason}")


@lru_cache(maxsize=16)
def schema_ids_of(options: SchemaIdOptions) -> SchemaIds:
    """Return this process's schemas of these options. Raises AvroSchemaError."""
    return SchemaIds(options)
