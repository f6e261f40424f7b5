"""Administrative requests and answers, as JSON values.

    {"operation": "user.add", "parameters": {"name": "u", "password": "…", "tags": []}}
    {"ok": true, "result": null}
    {"ok": false, "error": "already_exists", "explanation": "user 'u' exists already"}

The control socket of a running node and the command line on a stopped one perform them alike.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any, Final, TypeAlias

from leveret.core.administration import Administration, AdministrationError
from leveret.core.passwords import SALT_BYTES, hash_password
from leveret.errors import StorageError
from leveret.ports.definitions import PermissionDefinition

__all__ = ["create_defaults", "perform"]

_Parameters: TypeAlias = dict[str, Any]
_Operation: TypeAlias = Callable[[Administration, _Parameters], Awaitable[object]]


async def perform(administration: Administration, request: object) -> dict[str, object]:
    """The answer to one request, once what it changed is durable. Never raises for a bad one."""
    try:
        operation, parameters = _understand(request)
        result = await operation(administration, parameters)
        await administration.store.flush()
    except AdministrationError as error:
        return {"ok": False, "error": error.code, "explanation": str(error)}
    except StorageError as error:
        return {"ok": False, "error": "storage", "explanation": str(error)}
    return {"ok": True, "result": result}


async def create_defaults(administration: Administration) -> None:
    """At the first start of a data directory, make what design and documentation promise."""
    if administration.is_first_start:
        administration.create_defaults(await _hash("guest"))
        await administration.store.flush()


def _understand(request: object) -> tuple[_Operation, _Parameters]:
    match request:
        case {"operation": str(name), "parameters": dict(parameters)} if name in OPERATIONS:
            operation, shape = OPERATIONS[name]
        case {"operation": str(name), "parameters": dict()}:
            raise AdministrationError("invalid", f"unknown operation {name!r}")
        case _:
            raise AdministrationError("invalid", "a request has an operation and parameters")
    for key in shape.keys() | parameters.keys():
        if key not in shape or not _fits(parameters.get(key), shape[key]):
            raise AdministrationError("invalid", f"{name}: bad parameter {key!r}")
    return operation, parameters


def _fits(value: object, kind: type | None) -> bool:
    """Whether `value` is text (str), a list of text (list), or text or nothing (None)."""
    match value:
        case str():
            return kind in {str, None} and _is_text(value)
        case list():
            return kind is list and all(isinstance(item, str) and _is_text(item) for item in value)
    return value is None and kind is None


def _is_text(value: str) -> bool:
    """False for half of a surrogate pair, which JSON can say and neither disk nor wire can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


async def _hash(password: str) -> str:
    """A password's hash, made beside the event loop: it takes tens of milliseconds."""
    return await asyncio.to_thread(hash_password, password, os.urandom(SALT_BYTES))


async def _user_add(administration: Administration, parameters: _Parameters) -> None:
    password_hash = await _checked_hash(parameters["password"])
    administration.add_user(parameters["name"], password_hash, parameters["tags"])


async def _user_set_password(administration: Administration, parameters: _Parameters) -> None:
    password_hash = await _checked_hash(parameters["password"])
    administration.set_password_hash(parameters["name"], password_hash)


async def _checked_hash(password: str) -> str:
    """Refuse the blank password, with which nobody could log in."""
    if not password:
        raise AdministrationError("invalid", "a password cannot be blank")
    return await _hash(password)


async def _user_set_tags(administration: Administration, parameters: _Parameters) -> None:
    administration.set_user_tags(parameters["name"], parameters["tags"])


async def _user_delete(administration: Administration, parameters: _Parameters) -> None:
    administration.delete_user(parameters["name"])


async def _user_list(administration: Administration, _: _Parameters) -> list[dict[str, object]]:
    return [{"name": user.name, "tags": list(user.tags)} for user in administration.users()]


async def _vhost_add(administration: Administration, parameters: _Parameters) -> None:
    administration.add_vhost(parameters["name"], parameters["description"], parameters["tags"])


async def _vhost_set(administration: Administration, parameters: _Parameters) -> None:
    administration.describe_vhost(parameters["name"], parameters["description"], parameters["tags"])


async def _vhost_delete(administration: Administration, parameters: _Parameters) -> None:
    administration.delete_vhost(parameters["name"])


async def _vhost_list(administration: Administration, _: _Parameters) -> list[dict[str, object]]:
    return [
        {"name": vhost.name, "description": vhost.description, "tags": list(vhost.tags)}
        for vhost in administration.vhosts()
    ]


async def _vhost_trace_on(administration: Administration, parameters: _Parameters) -> None:
    administration.trace_vhost(parameters["name"], on=True)


async def _vhost_trace_off(administration: Administration, parameters: _Parameters) -> None:
    administration.trace_vhost(parameters["name"], on=False)


async def _permission_set(administration: Administration, parameters: _Parameters) -> None:
    administration.set_permission(PermissionDefinition(**parameters))


async def _permission_clear(administration: Administration, parameters: _Parameters) -> None:
    administration.clear_permission(parameters["user"], parameters["vhost"])


async def _permission_list(
    administration: Administration, parameters: _Parameters
) -> list[dict[str, object]]:
    held = administration.permissions(user=parameters["user"], vhost=parameters["vhost"])
    return [asdict(definition) for definition in held]


_WITH_PASSWORD: Final = {"name": str, "password": str}
_OF_VHOST: Final = {"name": str, "description": str, "tags": list}
_PATTERNS: Final = {"vhost": str, "user": str, "configure": str, "write": str, "read": str}
OPERATIONS: Final[Mapping[str, tuple[_Operation, Mapping[str, type | None]]]] = {
    "user.add": (_user_add, {**_WITH_PASSWORD, "tags": list}),
    "user.set_password": (_user_set_password, _WITH_PASSWORD),
    "user.set_tags": (_user_set_tags, {"name": str, "tags": list}),
    "user.delete": (_user_delete, {"name": str}),
    "user.list": (_user_list, {}),
    "vhost.add": (_vhost_add, _OF_VHOST),
    "vhost.set": (_vhost_set, _OF_VHOST),
    "vhost.delete": (_vhost_delete, {"name": str}),
    "vhost.list": (_vhost_list, {}),
    "vhost.trace_on": (_vhost_trace_on, {"name": str}),
    "vhost.trace_off": (_vhost_trace_off, {"name": str}),
    "permission.set": (_permission_set, _PATTERNS),
    "permission.clear": (_permission_clear, {"user": str, "vhost": str}),
    "permission.list": (_permission_list, {"user": None, "vhost": None}),
}
