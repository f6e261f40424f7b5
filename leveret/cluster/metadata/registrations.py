"""Registrations of nodes and of the controller, as JSON: people read them in ZooKeeper's shell."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from leveret.cluster.metadata.encoding import MalformedError
from leveret.ports.coordination import NodeRegistration

__all__ = [
    "ControllerTerm",
    "RegisteredProcess",
    "decode_controller",
    "decode_registration",
    "decode_session",
    "encode_controller",
    "encode_registration",
    "encode_session",
]

REGISTRATION_BYTES_MAX = 16 * 1024  # addresses and names; somebody else's znode may have anything
_NUMBER_MAX = (1 << 63) - 1
_TYPES = {each.name: {"int": int, "str": str}[str(each.type)] for each in fields(NodeRegistration)}


class RegisteredProcess(NamedTuple):
    """Registration, and the process that made it: the random number that it writes batches with."""

    registration: NodeRegistration
    process: int


class ControllerTerm(NamedTuple):
    """Node that was elected, in which of its sessions, and the how manieth controller it is."""

    node: int
    session: int
    epoch: int


def encode_registration(registered: RegisteredProcess) -> bytes:
    """Return a registration as JSON."""
    return _encode({**asdict(registered.registration), "process": registered.process})


def decode_registration(data: bytes, node: int) -> RegisteredProcess:
    """Return the registration of `node`. Raises MalformedError.

    Fields that are not known are left out: a newer release may have added some.
    """
    found = _decode(data, {**_TYPES, "process": int})
    process = found.pop("process")
    registration = NodeRegistration(**found)
    if registration.node != node:
        raise MalformedError(f"it is the registration of node {registration.node}")
    return RegisteredProcess(registration, process)


def encode_controller(term: ControllerTerm) -> bytes:
    """Return the value of the controller's key."""
    return _encode(term._asdict())


def decode_controller(data: bytes) -> ControllerTerm:
    """Return which controller was elected. Raises MalformedError."""
    return ControllerTerm(**_decode(data, dict.fromkeys(ControllerTerm._fields, int)))


def encode_session(session: int) -> bytes:
    """Return the value of a node's session key."""
    return _encode({"session": session})


def decode_session(data: bytes) -> int:
    """Return the number of a node's last start. Raises MalformedError."""
    return int(_decode(data, {"session": int})["session"])


def _encode(values: dict[str, object]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def _decode(data: bytes, types: dict[str, type]) -> dict[str, Any]:
    if len(data) > REGISTRATION_BYTES_MAX:
        raise MalformedError(f"it has {len(data)} bytes, more than {REGISTRATION_BYTES_MAX}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedError("it is no JSON") from None
    if not isinstance(found, dict):
        raise MalformedError("it is no JSON object")
    for name, kind in types.items():
        value = found.get(name)
        if type(value) is not kind:
            raise MalformedError(f"its field {name} is missing, or of another type")
        if isinstance(value, int) and not 0 <= value <= _NUMBER_MAX:
            raise MalformedError(f"its field {name} is out of range")
    return {name: found[name] for name in types}
