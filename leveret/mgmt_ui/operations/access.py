"""Operations on users, virtual hosts and permissions (see mgmt_ui.operations.performing)."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from leveret.core.access.passwords import (
    RABBITMQ_DEFAULT_ALGORITHM,
    SALT_BYTES,
    hash_password,
    import_hash,
)
from leveret.core.admin.commands import command, query
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.definitions import PermissionDefinition

if TYPE_CHECKING:
    from leveret.core.definitions.administration import Administration
    from leveret.mgmt_ui.operations.context import AdminContext

__all__ = ["create_defaults"]


async def create_defaults(administration: Administration) -> None:
    """Create the default virtual host and user at the first start of a data directory."""
    if administration.is_first_start:
        administration.create_defaults(await _hash("guest"))
        await administration.store.flush()


async def _hash(password: str) -> str:
    """Return a password's hash, computed in a thread: it takes tens of milliseconds."""
    return await asyncio.to_thread(hash_password, password, os.urandom(SALT_BYTES))


@command("user.add")
async def user_add(
    node: AdminContext,
    *,
    name: str,
    password: str | None = None,
    password_hash: str | None = None,
    hashing_algorithm: str | None = None,
    tags: list[str],
) -> None:
    """Add a user."""
    secret = await _checked_hash(password, password_hash, hashing_algorithm)
    node.administration.add_user(name, secret, tags)


@command("user.put")
async def user_put(
    node: AdminContext,
    *,
    name: str,
    password: str | None = None,
    password_hash: str | None = None,
    hashing_algorithm: str | None = None,
    tags: list[str],
) -> None:
    """Add a user, or replace a user's password and tags; without a hash or password no login."""
    secret = ""
    if password_hash or password:
        secret = await _checked_hash(password, password_hash, hashing_algorithm)
    if node.administration.access.user(name) is None:
        node.administration.add_user(name, secret, tags)
    else:
        node.administration.set_user_tags(name, tags)
        node.administration.set_password_hash(name, secret)


@command("user.set_password")
async def user_set_password(
    node: AdminContext,
    *,
    name: str,
    password: str | None = None,
    password_hash: str | None = None,
    hashing_algorithm: str | None = None,
) -> None:
    """Replace a user's password."""
    secret = await _checked_hash(password, password_hash, hashing_algorithm)
    node.administration.set_password_hash(name, secret)


async def _checked_hash(
    password: str | None, password_hash: str | None, hashing_algorithm: str | None
) -> str:
    """Return the given hash, or that of the password, which must not be blank."""
    if password_hash:
        algorithm = hashing_algorithm or RABBITMQ_DEFAULT_ALGORITHM
        try:
            return import_hash(algorithm, password_hash)
        except ValueError as error:
            raise AdministrationError("invalid", str(error)) from None
    if not password:
        raise AdministrationError("invalid", "a password cannot be blank")
    return await _hash(password)


@command("user.set_tags")
async def user_set_tags(node: AdminContext, *, name: str, tags: list[str]) -> None:
    """Replace a user's tags."""
    node.administration.set_user_tags(name, tags)


@command("user.delete")
async def user_delete(node: AdminContext, *, name: str) -> None:
    """Delete a user and its permissions."""
    node.administration.delete_user(name)


@query("user.list")
async def user_list(node: AdminContext) -> list[dict[str, Any]]:
    """Return all users and their tags."""
    return [
        {"name": user.name, "tags": list(user.tags), "limits": user.limits}
        for user in node.administration.users()
    ]


@command("vhost.add")
async def vhost_add(
    node: AdminContext,
    *,
    name: str,
    description: str,
    tags: list[str],
    default_queue_type: str | None = None,
) -> None:
    """Add a virtual host; `permission set` gives users access."""
    node.administration.add_vhost(
        name,
        description,
        tags,
        default_queue_type or "classic",
    )


@command("vhost.set")
async def vhost_set(
    node: AdminContext,
    *,
    name: str,
    description: str | None = None,
    tags: Any = None,
    default_queue_type: str | None = None,
) -> None:
    """Replace the stated attributes; None leaves one unchanged."""
    if tags is not None and not (
        isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
    ):
        raise AdministrationError("invalid", "tags are a list of texts")
    node.administration.describe_vhost(name, description, tags, default_queue_type)


@command("vhost.protect")
async def vhost_protect(node: AdminContext, *, name: str, protected: bool) -> None:
    """Protect a virtual host from deletion, or not."""
    node.administration.protect_vhost(name, protected=protected)


@command("vhost.create_queues")
async def vhost_create_queues(node: AdminContext, *, name: str, on: bool) -> None:
    """Let messages to the default exchange create queues, or not."""
    node.administration.let_vhost_create_queues(name, on=on)


@command("vhost.delete")
async def vhost_delete(node: AdminContext, *, name: str) -> None:
    """Delete a virtual host with all its exchanges, queues and messages."""
    node.administration.delete_vhost(name)


@query("vhost.list")
async def vhost_list(node: AdminContext) -> list[dict[str, Any]]:
    """Return all virtual hosts."""
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


@command("vhost.trace_on")
async def vhost_trace_on(node: AdminContext, *, name: str) -> None:
    """Start copying; `trace off` or a restart of the node ends it."""
    node.administration.trace_vhost(name, on=True)


@command("vhost.trace_off")
async def vhost_trace_off(node: AdminContext, *, name: str) -> None:
    """Stop copying."""
    node.administration.trace_vhost(name, on=False)


@command("permission.set")
async def permission_set(
    node: AdminContext, *, vhost: str, user: str, configure: str, write: str, read: str
) -> None:
    """Set a user's permissions in a virtual host, as patterns of names."""
    node.administration.set_permission(PermissionDefinition(vhost, user, configure, write, read))


@command("permission.clear")
async def permission_clear(node: AdminContext, *, user: str, vhost: str) -> None:
    """Remove a user's permissions in a virtual host."""
    node.administration.clear_permission(user, vhost)


@query("permission.list")
async def permission_list(
    node: AdminContext, *, user: str | None = None, vhost: str | None = None
) -> list[dict[str, Any]]:
    """Return permissions."""
    held = node.administration.permissions(user=user, vhost=vhost)
    return [asdict(definition) for definition in held]
