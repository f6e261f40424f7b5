"""Administrative requests and answers, as JSON values.

    {"operation": "user.add", "parameters": {"name": "u", "password": "…", "tags": []}}
    {"ok": true, "result": null}
    {"ok": false, "error": "already_exists", "explanation": "user 'u' exists already"}

All administrative changes are made here: by the control socket of a running node, on the command
line of a stopped one, by the HTTP API or the web UI. So all of them can do the same, and all of it
is in the audit log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.document import DefinitionsError
from leveret.core.events import acting_as
from leveret.errors import ChannelError, ConnectionClosingError, StorageError
from leveret.mgmt_ui.operations.access import ACCESS
from leveret.mgmt_ui.operations.alerts import ALERTS
from leveret.mgmt_ui.operations.alter import LIVE
from leveret.mgmt_ui.operations.audit import AUDIT
from leveret.mgmt_ui.operations.backup import BACKUP
from leveret.mgmt_ui.operations.dead_letters import DEAD_LETTERS
from leveret.mgmt_ui.operations.dedup import ONCE
from leveret.mgmt_ui.operations.deletions import refused_deletion
from leveret.mgmt_ui.operations.encryption import ENCRYPTION
from leveret.mgmt_ui.operations.inventory import INVENTORY
from leveret.mgmt_ui.operations.losses import LOSSES
from leveret.mgmt_ui.operations.message_trace import MESSAGE_TRACE
from leveret.mgmt_ui.operations.messages import MESSAGES
from leveret.mgmt_ui.operations.node import NODE
from leveret.mgmt_ui.operations.publishing import PUBLISHING
from leveret.mgmt_ui.operations.retries import RETRIES
from leveret.mgmt_ui.operations.rules import RULES
from leveret.mgmt_ui.operations.schedules import SCHEDULES
from leveret.mgmt_ui.operations.topology import TOPOLOGY
from leveret.mgmt_ui.operations.transfer import TRANSFER
from leveret.mgmt_ui.operations.usage import USAGE
from leveret.ports.audit import Way
from leveret.ports.declared import suggestion, undeclared

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import (
        AdminContext,
        Operation,
        Operations,
        Parameters,
    )
    from leveret.ports.audit import Actor

__all__ = ["perform"]

INTEGER_MAX: Final = (1 << 63) - 1  # no clock, offset or store has more

# An operation's name is `thing.verb`; these verbs look and change nothing.
LOOKING: Final = {
    "list",
    "show",
    "status",
    "health",
    "overview",
    "diagnose",
    "export",
    "trace",
    "rehearse",
}
# They change nothing either, but who has had them is written down: hashes of passwords are in them.
TELLING: Final = {"definitions.export", "rabbitmq_definitions.export"}
# What AMQP's reply codes are called here; all others mean that a request made no sense.
REPLY_CODES: Final = {403: "forbidden", 404: "not_found", 405: "locked"}


async def perform(node: AdminContext, request: object, actor: Actor) -> dict[str, object]:
    """Perform one request; return its answer once it is durable. Never raises for a bad one."""
    try:
        name, operation, parameters = _understand(request)
    except AdministrationError as error:
        return _refusal(error.code, error)
    changes = name.rpartition(".")[2] not in LOOKING
    refused = None
    if actor.way is not Way.COMMAND_LINE and not node.http_delete:
        refused = refused_deletion(name, parameters)
    if refused is not None:
        answer = _refusal("forbidden", refused)
    else:
        with acting_as(actor.user):
            answer = await _answer(node, operation, parameters, changes=changes)
    if node.audit is not None and (changes or name in TELLING):
        await node.audit.note(actor, name, parameters, answer)
    return answer


async def _answer(
    node: AdminContext, operation: Operation, parameters: Parameters, *, changes: bool
) -> dict[str, object]:
    try:
        result = await operation(node, parameters)
        # Who only looks can do so on a full disk, too: what is noted there waits for room.
        if changes:
            await node.administration.store.flush()
    except AdministrationError as error:
        return _refusal(error.code, error)
    except DefinitionsError as error:
        return _refusal("invalid", error)
    except StorageError as error:
        return _refusal("storage", error)
    except (ChannelError, ConnectionClosingError) as error:
        return _refusal(REPLY_CODES.get(error.code, "invalid"), error.explanation)
    return {"ok": True, "result": result}


def _refusal(code: str, error: object) -> dict[str, object]:
    return {"ok": False, "error": code, "explanation": str(error)}


def _understand(request: object) -> tuple[str, Operation, Parameters]:
    match request:
        case {"operation": str(name), "parameters": dict(parameters)} if name in OPERATIONS:
            operation, shape = OPERATIONS[name]
        case {"operation": str(name), "parameters": dict()}:
            close = suggestion(name, OPERATIONS)
            raise AdministrationError("invalid", f"unknown operation {name!r}{close}")
        case _:
            raise AdministrationError("invalid", "a request has an operation and parameters")
    if problem := undeclared(parameters, shape):
        raise AdministrationError("invalid", f"{name}: {problem}")
    for key, kind in shape.items():
        if not _fits(parameters.get(key), kind):
            raise AdministrationError("invalid", f"{name}: bad parameter {key!r}")
    return name, operation, {key: parameters.get(key) for key in shape}


def _fits(value: object, kind: type | None) -> bool:
    """Whether `value` has a type, as Shape lists them."""
    if value is None:
        return kind in {None, object}
    if isinstance(value, str):
        return kind in {str, None, object} and _is_text(value)
    if kind is list and isinstance(value, list):
        return all(isinstance(item, str) and _is_text(item) for item in value)
    if type(value) is int and not -INTEGER_MAX <= value <= INTEGER_MAX:
        return False
    return kind is object or type(value) is kind  # True is not an int here


def _is_text(value: str) -> bool:
    """Whether text has no lone surrogate, which JSON allows but neither disk nor wire."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


OPERATIONS: Final[Operations] = {
    **ACCESS,
    **ALERTS,
    **AUDIT,
    **BACKUP,
    **RULES,
    **DEAD_LETTERS,
    **RETRIES,
    **TRANSFER,
    **ENCRYPTION,
    **USAGE,
    **SCHEDULES,
    **ONCE,
    **TOPOLOGY,
    **MESSAGES,
    **PUBLISHING,
    **INVENTORY,
    **NODE,
    **MESSAGE_TRACE,
    **LIVE,
    **LOSSES,
}
