"""Operations on users, virtual hosts and permissions (see mgmt_ui.operations.performing)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from leveret.core.access.passwords import (
    RABBITMQ_DEFAULT_ALGORITHM,
    SALT_BYTES,
    hash_password,
    import_hash,
)
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.definitions import PermissionDefinition

if TYPE_CHECKING:
    from leveret.core.definitions.administration import Administration
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters

__all__ = ["ACCESS", "create_defaults"]


async def create_defaults(administration: Administration) -> None:
    """Create the default virtual host and user at the first start of a data directory."""
    if administration.is_first_start:
        administration.create_defaults(await _hash("guest"))
        await administration.store.flush()


async def _hash(password: str) -> str:
    """Return a password's hash, computed in a thread: it takes tens of milliseconds."""
    return await asyncio.to_thread(hash_password, password, os.urandom(SALT_BYTES))


async def _user_add(node: AdminContext, parameters: Parameters) -> None:
    password_hash = await _checked_hash(parameters)
    node.administration.add_user(parameters["name"], password_hash, parameters["tags"])


async def _user_put(node: AdminContext, parameters: Parameters) -> None:
    """Add a user, or replace a user's password and tags; without a hash or password no login."""
    password_hash = ""
    if parameters["password_hash"] or parameters["password"]:
        password_hash = await _checked_hash(parameters)
    name, tags = parameters["name"], parameters["tags"]
    if node.administration.access.user(name) is None:
        node.administration.add_user(name, password_hash, tags)
    else:
        node.administration.set_user_tags(name, tags)
        node.administration.set_password_hash(name, password_hash)


async def _user_set_password(node: AdminContext, parameters: Parameters) -> None:
    password_hash = await _checked_hash(parameters)
    node.administration.set_password_hash(parameters["name"], password_hash)


async def _checked_hash(parameters: Parameters) -> str:
    """Return the given hash, or that of the password, which must not be blank."""
    if parameters["password_hash"]:
        algorithm = parameters["hashing_algorithm"] or RABBITMQ_DEFAULT_ALGORITHM
        try:
            return import_hash(algorithm, parameters["password_hash"])
        except ValueError as error:
            raise AdministrationError("invalid", str(error)) from None
    if not parameters["password"]:
        raise AdministrationError("invalid", "a password cannot be blank")
    return await _hash(parameters["password"])


async def _user_set_tags(node: AdminContext, parameters: Parameters) -> None:
    node.administration.set_user_tags(parameters["name"], parameters["tags"])


async def _user_delete(node: AdminContext, parameters: Parameters) -> None:
    node.administration.delete_user(parameters["name"])


async def _user_list(node: AdminContext, _: Parameters) -> list[dict[str, object]]:
    return [
        {"name": user.name, "tags": list(user.tags), "limits": user.limits}
        for user in node.administration.users()
    ]


async def _vhost_add(node: AdminContext, parameters: Parameters) -> None:
    node.administration.add_vhost(
        parameters["name"],
        parameters["description"],
        parameters["tags"],
        parameters["default_queue_type"] or "classic",
    )


async def _vhost_set(node: AdminContext, parameters: Parameters) -> None:
    """Replace the stated attributes; None leaves one unchanged."""
    tags = parameters["tags"]
    if tags is not None and not (
        isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
    ):
        raise AdministrationError("invalid", "tags are a list of texts")
    node.administration.describe_vhost(
        parameters["name"], parameters["description"], tags, parameters["default_queue_type"]
    )


async def _vhost_protect(node: AdminContext, parameters: Parameters) -> None:
    node.administration.protect_vhost(parameters["name"], protected=parameters["protected"])


async def _vhost_create_queues(node: AdminContext, parameters: Parameters) -> None:
    node.administration.let_vhost_create_queues(parameters["name"], on=parameters["on"])


async def _vhost_delete(node: AdminContext, parameters: Parameters) -> None:
    node.administration.delete_vhost(parameters["name"])


async def _vhost_list(node: AdminContext, _: Parameters) -> list[dict[str, object]]:
    return [
        {
            "name": vhost.name,
            "description": vhost.description,
            "tags": list(vhost.tags),
            "default_queue_type": vhost.default_queue_type,
            "protected": vhost.protected_from_deletion,
            "creates_queues": vhost.creates_queues,
            "limits": vhost.limits,
        }
        for vhost in node.administration.vhosts()
    ]


async def _vhost_trace_on(node: AdminContext, parameters: Parameters) -> None:
    node.administration.trace_vhost(parameters["name"], on=True)


async def _vhost_trace_off(node: AdminContext, parameters: Parameters) -> None:
    node.administration.trace_vhost(parameters["name"], on=False)


async def _permission_set(node: AdminContext, parameters: Parameters) -> None:
    node.administration.set_permission(PermissionDefinition(**parameters))


async def _permission_clear(node: AdminContext, parameters: Parameters) -> None:
    node.administration.clear_permission(parameters["user"], parameters["vhost"])


async def _permission_list(node: AdminContext, parameters: Parameters) -> list[dict[str, object]]:
    held = node.administration.permissions(user=parameters["user"], vhost=parameters["vhost"])
    return [asdict(definition) for definition in held]


_WITH_PASSWORD: Final = {
    "name": str,
    "password": None,
    "password_hash": None,
    "hashing_algorithm": None,
}
_OF_VHOST: Final = {"name": str, "description": str, "tags": list, "default_queue_type": None}
_PATTERNS: Final = {"vhost": str, "user": str, "configure": str, "write": str, "read": str}
ACCESS: Final[Operations] = {
    "user.add": (_user_add, {**_WITH_PASSWORD, "tags": list}),
    "user.put": (_user_put, {**_WITH_PASSWORD, "tags": list}),
    "user.set_password": (_user_set_password, _WITH_PASSWORD),
    "user.set_tags": (_user_set_tags, {"name": str, "tags": list}),
    "user.delete": (_user_delete, {"name": str}),
    "user.list": (_user_list, {}),
    "vhost.add": (_vhost_add, _OF_VHOST),
    "vhost.set": (_vhost_set, {**_OF_VHOST, "description": None, "tags": object}),
    "vhost.protect": (_vhost_protect, {"name": str, "protected": bool}),
    "vhost.create_queues": (_vhost_create_queues, {"name": str, "on": bool}),
    "vhost.delete": (_vhost_delete, {"name": str}),
    "vhost.list": (_vhost_list, {}),
    "vhost.trace_on": (_vhost_trace_on, {"name": str}),
    "vhost.trace_off": (_vhost_trace_off, {"name": str}),
    "permission.set": (_permission_set, _PATTERNS),
    "permission.clear": (_permission_clear, {"user": str, "vhost": str}),
    "permission.list": (_permission_list, {"user": None, "vhost": None}),
}
