"""Recording of administrators' changes, without their secrets."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.errors import StorageError
from leveret.ports.audit import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.ports.audit import Actor, AuditStore

__all__ = ["Audit"]

logger = logging.getLogger(__name__)

# Words in names of parameters, and of their fields, whose values are secret.
# Addresses of webhooks are tokens: knowing one is enough to post there.
SECRET: Final = ("password", "secret", "token", "uri", "webhook", "payload", "body")
HIDDEN: Final = "…"
VALUE_CHARACTERS_MAX: Final = 1000  # a document of definitions is not written down
ITEMS_MAX: Final = 100  # of one list or table; more are no short value
DEPTH_MAX: Final = 5  # tables in tables; people's are flat


class Audit:
    """Writes administrators' operations to a store; `wall_ms()` is the clock."""

    def __init__(self, store: AuditStore, wall_ms: Callable[[], int]) -> None:
        self.store = store
        self._wall_ms = wall_ms

    async def note(
        self, actor: Actor, operation: str, parameters: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> None:
        """Record one request and its answer.

        The request was carried out already: if the store fails, that is logged.
        """
        record = AuditRecord(
            self._wall_ms(),
            actor,
            operation,
            {name: _shown(name, value) for name, value in parameters.items() if value is not None},
            answer.get("error", ""),
            answer.get("explanation", "")[:VALUE_CHARACTERS_MAX],
        )
        try:
            await self.store.add(record)
        except StorageError as error:
            logger.error(  # noqa: TRY400  # says it all
                "the audit log lacks %s by %r: %s", operation, actor.user, error
            )


def _shown(name: str, value: object, depth: int = 0) -> object:
    """Return a value for the record, without secrets; deep or long ones are hidden."""
    if _is_secret(name) or depth > DEPTH_MAX:
        return HIDDEN
    if isinstance(value, dict | list) and len(value) > ITEMS_MAX:
        return HIDDEN
    if isinstance(value, dict):
        value = {
            str(inner)[:VALUE_CHARACTERS_MAX]: _shown(str(inner), item, depth + 1)
            for inner, item in value.items()
        }
    if isinstance(value, list):
        match value:
            case [str(inner), _] if _is_secret(inner):  # as RabbitMQ's exports write a table
                return [inner[:VALUE_CHARACTERS_MAX], HIDDEN]
        value = [_shown("", item, depth + 1) for item in value]
    return value if len(json.dumps(value)) <= VALUE_CHARACTERS_MAX else HIDDEN


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET)
