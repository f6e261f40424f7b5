"""Commands that the controller, or the leader of a partition, performs for other nodes: JSON.

    {"command": "policy.set", "values": {…}, "user": "guest"}
    {"sequence": 17, "answer": {"ok": true, "result": null}}
    {"refused": "not controller"}

The answer of a leader has no sequence: it changes no definitions.

A command is tried once only, unless it is certain that nobody has begun with it: a user that exists
already cannot be added again.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from leveret.clustering.definitions.wire import ChangeMessageError, NotControllingError
from leveret.links.errors import LinkError, PeerRefusedError, PeerUnavailableError, Unavailable
from leveret.mgmt_ui.operations.places import ForwardedCommand
from leveret.ports.link_kinds import RUN_COMMAND, RUN_COMMAND_AT_LEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leveret.clustering.definitions.following import DefinitionRole
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator

__all__ = ["ClusterCommands"]

REFUSED_REQUEST: Final = 1  # code of a request that makes no sense
ANSWER_SECONDS_MAX: Final = 60.0  # an import of many definitions takes a while
RETRY_SECONDS: Final = 0.1


class ClusterCommands:
    """`CommandForwarding` of a node of a cluster."""

    def __init__(
        self,
        role: DefinitionRole,
        coordinator: Coordinator,
        *,
        wait_seconds_max: float = ANSWER_SECONDS_MAX,
    ) -> None:
        self.links: Links  # set once they are open: they need `serve`
        # Performs a command here; set once the node has what commands need.
        self.perform_here: Callable[[ForwardedCommand], Awaitable[dict[str, Any]]] = _refuse
        self._role = role
        self._coordinator = coordinator
        self._wait_seconds_max = wait_seconds_max

    async def perform(self, command: ForwardedCommand) -> dict[str, Any] | None:
        """Have the controller perform a command (see CommandForwarding)."""
        deadline = asyncio.get_running_loop().time() + self._wait_seconds_max
        try:
            while not self._role.is_controlling:
                controller = self._coordinator.controller
                if controller is None or self._coordinator.is_controller:
                    await self._role.progress(deadline)
                    continue
                answer = await self._asked(controller, command, deadline)
                if answer is not None:
                    return answer
                await asyncio.sleep(RETRY_SECONDS)
        except TimeoutError:
            return _unavailable("the cluster has no controller")
        return None

    async def _asked(
        self, controller: int, command: ForwardedCommand, deadline: float
    ) -> dict[str, Any] | None:
        """Return the controller's answer; None if it has not begun, and another may be asked."""
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise TimeoutError
        try:
            answered = await self.links.peer(controller).request(
                RUN_COMMAND, _packed(command), timeout_s=left
            )
            sequence, answer = _parsed_answer(answered)
        except PeerUnavailableError as error:
            if error.why is not Unavailable.LOST:
                return None
            return _unavailable(f"{error}: it may have performed the command")
        except NotControllingError:
            return None
        except (LinkError, ChangeMessageError) as error:
            return _unavailable(f"the controller, node {controller}, gives no answer: {error}")
        while self._role.applied < sequence and not self._role.is_controlling:
            await self._role.progress(deadline)
        return answer

    async def serve(self, _: NodeIdentity, payload: memoryview) -> bytes:
        """Perform a command that another node asks for, and answer once that is written."""
        try:
            command = _parsed_request(payload)
        except ChangeMessageError as error:
            raise PeerRefusedError(REFUSED_REQUEST, str(error)) from error
        if not self._role.is_controlling:
            return json.dumps({"refused": "not controller"}).encode()
        answer = await self.perform_here(command)
        told = {"sequence": self._coordinator.sequence, "answer": answer}
        return json.dumps(told, separators=(",", ":")).encode()

    async def perform_at(self, leader: int, command: ForwardedCommand) -> dict[str, Any]:
        """Have the leader of a partition perform a command (see CommandForwarding)."""
        try:
            answered = await self.links.peer(leader).request(
                RUN_COMMAND_AT_LEADER, _packed(command), timeout_s=self._wait_seconds_max
            )
            return _parsed_leaders_answer(answered)
        except PeerUnavailableError as error:
            if error.why is not Unavailable.LOST:
                return _refusal(
                    "elsewhere", f"node {leader}, which leads, cannot be asked: {error}"
                )
            return _refusal("storage", f"{error}: it may have performed the command")
        except (LinkError, ChangeMessageError) as error:
            return _refusal("storage", f"the leader, node {leader}, gives no answer: {error}")

    async def serve_leader(self, _: NodeIdentity, payload: memoryview) -> bytes:
        """Perform a command about messages that this node leads, for another node."""
        try:
            command = _parsed_request(payload)
        except ChangeMessageError as error:
            raise PeerRefusedError(REFUSED_REQUEST, str(error)) from error
        answer = await self.perform_here(command)
        return json.dumps({"answer": answer}, separators=(",", ":")).encode()


async def _refuse(_command: ForwardedCommand) -> dict[str, Any]:
    return _unavailable("the node is starting")


def _unavailable(explanation: str) -> dict[str, Any]:
    return _refusal("storage", f"definitions cannot be changed now: {explanation}")


def _refusal(code: str, explanation: str) -> dict[str, Any]:
    return {"ok": False, "error": code, "explanation": explanation}


def _packed(command: ForwardedCommand) -> bytes:
    request = {"command": command.name, "values": command.values, "user": command.user}
    return json.dumps(request, separators=(",", ":")).encode()


def _parsed_request(payload: memoryview) -> ForwardedCommand:
    match _parsed(payload):
        case {"command": str(name), "values": dict(values), "user": str(user)}:
            return ForwardedCommand(name, values, user)
    raise ChangeMessageError("no command for the controller")


def _parsed_answer(payload: memoryview) -> tuple[int, dict[str, Any]]:
    match _parsed(payload):
        case {"sequence": int(sequence), "answer": {"ok": bool()} as answer}:
            return sequence, answer
        case {"refused": "not controller"}:
            raise NotControllingError
    raise ChangeMessageError("no answer of the controller to a command")


def _parsed_leaders_answer(payload: memoryview) -> dict[str, Any]:
    match _parsed(payload):
        case {"answer": {"ok": bool()} as answer}:
            return dict(answer)
    raise ChangeMessageError("no answer of a leader to a command")


def _parsed(payload: memoryview) -> object:
    try:
        return json.loads(bytes(payload))
    except (ValueError, RecursionError) as error:
        raise ChangeMessageError(f"a message is no JSON: {error!r}") from error
