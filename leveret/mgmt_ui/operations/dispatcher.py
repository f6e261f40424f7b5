"""Administrative requests and answers, as JSON values.

    {"operation": "user.add", "parameters": {"name": "u", "password": "…", "tags": []}}
    {"ok": true, "result": null}
    {"ok": false, "error": "already_exists", "explanation": "user 'u' exists already"}

All administrative changes are made here: by the control socket of a running node, on the command
line of a stopped one, by the HTTP API or the web UI. So all of them can do the same, and all of it
is in the audit log.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from leveret.core.admin.commands import named
from leveret.core.admin.node import ElsewhereError
from leveret.core.definitions.administration import AdministrationError
from leveret.core.definitions.document import OPERATOR_POLICY, DefinitionsError
from leveret.core.events import acting_as
from leveret.core.events import actor as acting_user
from leveret.errors import ChannelError, ConnectionClosingError, StorageError
from leveret.features.alerts import commands as alerts
from leveret.features.batch_leases import commands as batch_leases
from leveret.features.browse import commands as browse
from leveret.features.dead_letter import commands as dead_letter
from leveret.features.dedup import commands as dedup
from leveret.features.delay import commands as delay
from leveret.features.groups import commands as groups
from leveret.features.range_reads import commands as range_reads
from leveret.features.retry import commands as retry
from leveret.features.shovels import commands as shovels
from leveret.features.staged_batches import commands as staged_batches
from leveret.features.topics import commands as topics
from leveret.features.trace import commands as trace
from leveret.features.transactions import commands as transactions
from leveret.mgmt_ui.operations import (
    access,
    backup,
    cluster,
    encryption,
    inventory,
    publishing,
    records,
    rules,
    topology,
    transfer,
)
from leveret.mgmt_ui.operations import node as node_commands
from leveret.mgmt_ui.operations.places import ForwardedCommand, is_of_controller
from leveret.ports.audit import Way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.core.admin.commands import AnyCommand
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.mgmt_ui.operations.places import CommandForwarding
    from leveret.ports.audit import Actor

__all__ = ["MODULES", "perform", "perform_command", "perform_for_another"]

# Modules whose commands exist.
MODULES: Final = (
    access,
    alerts,
    backup,
    batch_leases,
    browse,
    cluster,
    dead_letter,
    dedup,
    delay,
    encryption,
    groups,
    inventory,
    node_commands,
    publishing,
    range_reads,
    records,
    retry,
    rules,
    shovels,
    staged_batches,
    topics,
    topology,
    trace,
    transactions,
    transfer,
)
ELSEWHERE: Final = "elsewhere"  # code of what another node must answer
LEADER_SECONDS_MAX: Final = 10.0  # for which a leader is looked for
LEADER_POLL_SECONDS: Final = 0.1
# What AMQP's reply codes are called here; all others mean that a request made no sense.
REPLY_CODES: Final = {403: "forbidden", 404: "not_found", 405: "locked"}


async def perform(node: AdminContext, request: object, actor: Actor) -> dict[str, object]:
    """Perform one request; return its answer once it is durable. Never raises for a bad one."""
    match request:
        case {"operation": str(name), "parameters": dict(parameters)}:
            pass
        case _:
            return _refusal("invalid", "a request has an operation and parameters")
    try:
        return await perform_command(node, named(name), parameters, actor)
    except AdministrationError as error:
        return _refusal(error.code, error)


async def perform_command(
    node: AdminContext, command: AnyCommand, parameters: Mapping[str, object], actor: Actor
) -> dict[str, object]:
    """Perform a command; return its answer once it is durable, and note it in the audit log.

    Raises AdministrationError for parameters that do not fit.
    """
    values = command.checked(parameters)
    refused = None
    if actor.way is not Way.COMMAND_LINE and not node.http_delete:
        refused = refused_deletion(command.name, values)
    if refused is not None:
        answer = _refusal("forbidden", refused)
    else:
        with acting_as(actor.user):
            answer = await _answer_anywhere(node, command, values)
    if node.audit is not None and command.is_audited:
        await node.audit.note(actor, command.name, values, answer)
    return answer


async def perform_for_another(node: AdminContext, forwarded: ForwardedCommand) -> dict[str, object]:
    """Perform a command that another node of the cluster has checked, and noted as its own."""
    try:
        command = named(forwarded.name)
        values = command.checked(forwarded.values)
    except AdministrationError as error:
        return _refusal(error.code, error)
    with acting_as(forwarded.user):
        return await _answer(node, command, values)


async def _answer_anywhere(
    node: AdminContext, command: AnyCommand, values: dict[str, Any]
) -> dict[str, object]:
    """Answer here or, in a cluster, have the node answer that is to perform the command."""
    if node.forwarding is None:
        return await _answer(node, command, values)
    forwarded = ForwardedCommand(command.name, values, acting_user.get())
    if is_of_controller(command):
        answer = await node.forwarding.perform(forwarded)
        return await _answer(node, command, values) if answer is None else answer
    return await _answer_at_leader(node, command, forwarded, node.forwarding)


async def _answer_at_leader(
    node: AdminContext,
    command: AnyCommand,
    forwarded: ForwardedCommand,
    forwarding: CommandForwarding,
) -> dict[str, object]:
    """Answer here, or have the leader answer of the messages that a command is about.

    Where nobody leads them, or a node that leads them no more was asked, the next leader is waited
    for, as clients wait.
    """
    deadline = asyncio.get_running_loop().time() + LEADER_SECONDS_MAX
    while True:
        try:
            return await _perform(node, command, forwarded.values)
        except ElsewhereError as error:
            leader, answer = error.node, _refusal(error.code, error)
        if leader is not None:
            answer = await forwarding.perform_at(leader, forwarded)
        if answer.get("error") != ELSEWHERE or asyncio.get_running_loop().time() > deadline:
            return answer
        await asyncio.sleep(LEADER_POLL_SECONDS)


async def _answer(
    node: AdminContext, command: AnyCommand, values: Mapping[str, Any]
) -> dict[str, object]:
    """Perform a command on this node, whoever should."""
    try:
        return await _perform(node, command, values)
    except ElsewhereError as error:
        return _refusal(error.code, error)


async def _perform(
    node: AdminContext, command: AnyCommand, values: Mapping[str, Any]
) -> dict[str, object]:
    """Perform a command, and return its answer. Raises ElsewhereError."""
    try:
        result = await command.run(node, values)
        # Who only looks can do so on a full disk, too: what is noted there waits for room.
        if command.changes:
            await node.administration.store.flush()
    except ElsewhereError:
        raise
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


def refused_deletion(operation: str, parameters: Mapping[str, Any]) -> str | None:
    """Return why an operation is refused there; None if it deletes no queue."""
    match operation:
        case "queue.delete" | "vhost.delete":
            deletes = True
        case "queue.change":
            deletes = parameters["arguments"].get("x-expires") is not None
        case "policy.set":
            deletes = "expires" in parameters["definition"]
        case "definitions.import":
            deletes = _expires(parameters["document"])
        case _:
            return None
    if not deletes:
        return None
    command = operation.replace(".", " ")
    if operation == "policy.set" and parameters["operator"]:
        command = "operator-policy set"
    return f"queues are not deleted by HTTP on this node: use `leveret {command}`"


def _expires(document: Any) -> bool:
    """Whether an unchecked document of definitions has policies that delete queues."""
    operator_policies = [
        row.get("value")
        for row in _rows(document, "parameters")
        if row.get("component") == OPERATOR_POLICY
    ]
    return any(
        isinstance(policy, dict) and _has(policy.get("definition"), "expires")
        for policy in (*_rows(document, "policies"), *operator_policies)
    )


def _rows(document: Any, section: str) -> list[dict[str, Any]]:
    found = document.get(section) if isinstance(document, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _has(definition: Any, key: str) -> bool:
    """Whether an object has a key; some RabbitMQ tools write a list of pairs instead."""
    if isinstance(definition, list):
        return any(isinstance(pair, list) and pair[:1] == [key] for pair in definition)
    return isinstance(definition, dict) and key in definition
