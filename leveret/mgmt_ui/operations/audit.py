"""Writing down who changed what, without their secrets."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.errors import StorageError
from leveret.ports.audit import AuditRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.mgmt_ui.operations.administered import Parameters
    from leveret.ports.audit import Actor, AuditStore

__all__ = ["Audit"]

logger = logging.getLogger(__name__)

# Words in names of parameters, and of what stands within them, whose values are nobody's business.
SECRET: Final = ("password", "secret", "token", "uri", "payload", "body")
HIDDEN: Final = "…"
VALUE_CHARACTERS_MAX: Final = 1000  # a document of definitions is not written down


class Audit:
    """What administrators did, in a store; `wall_ms()` tells the time."""

    def __init__(self, store: AuditStore, wall_ms: Callable[[], int]) -> None:
        self.store = store
        self._wall_ms = wall_ms

    async def note(
        self, actor: Actor, operation: str, parameters: Parameters, answer: Mapping[str, Any]
    ) -> None:
        """Write down one request and its answer.

        It has happened by now: where the log cannot be written, the operator hears of it.
        """
        record = AuditRecord(
            self._wall_ms(),
            actor,
            operation,
            {name: _shown(name, value) for name, value in parameters.items() if value is not None},
            answer.get("error", ""),
            answer.get("explanation", ""),
        )
        try:
            await self.store.add(record)
        except StorageError as error:
            logger.error(  # noqa: TRY400  # says it all
                "the audit log lacks %s by %r: %s", operation, actor.user, error
            )


def _shown(name: str, value: object) -> object:
    """A value without secrets, and short."""
    if any(word in name.lower() for word in SECRET):
        return HIDDEN
    if isinstance(value, dict):
        value = {str(inner): _shown(str(inner), item) for inner, item in value.items()}
    if isinstance(value, list):
        value = [_shown("", item) for item in value]
    return value if len(json.dumps(value)) <= VALUE_CHARACTERS_MAX else HIDDEN
