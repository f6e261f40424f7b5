"""What an administrator may change: users, virtual hosts and permissions.

Each operation decides, changes what is in memory and hands the change to the store; making it
durable (`store.flush`) is the caller's, who can wait. A node and the command line on a stopped one
perform the same operations.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from leveret.core.access import AccessControl, InvalidPatternError
from leveret.core.events import silent
from leveret.errors import LeveretError
from leveret.ports.definitions import (
    Definitions,
    PermissionDefinition,
    UserDefinition,
    VhostDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.core.events import Emit
    from leveret.ports import MetadataStore

__all__ = ["DEFAULT_USER", "DEFAULT_VHOST", "Administration", "AdministrationError"]

DEFAULT_VHOST = "/"
DEFAULT_USER = "guest"  # password: the same word; from this machine only, see config.loopback_users
NAME_BYTES_MAX = 255  # names travel as short strings
TAG_BYTES_MAX = 255
TAGS_MAX = 64  # a handful is normal; the list is copied with every login


class AdministrationError(LeveretError):
    """An operation that cannot be done; `code` is one of not_found, already_exists, invalid."""

    def __init__(self, code: str, explanation: str) -> None:
        super().__init__(explanation)
        self.code = code


class Administration:
    """The operations, over what is in memory (`access`, `vhosts`) and what is kept (`store`)."""

    def __init__(
        self,
        access: AccessControl,
        store: MetadataStore,
        *,
        on_vhost_added: Callable[[VhostDefinition], None],
        on_vhost_deleted: Callable[[str], None],
        on_user_deleted: Callable[[str], None] = lambda _name: None,
        emit: Emit = silent,
    ) -> None:
        """The callbacks are called after the change, before a flush.

        So is `emit`, which is told what changed (see leveret.core.events).
        """
        self.access = access
        self.store = store
        self._vhosts: dict[str, VhostDefinition] = {}
        self._on_vhost_added = on_vhost_added
        self._on_vhost_deleted = on_vhost_deleted
        self._on_user_deleted = on_user_deleted
        self._emit = emit

    def restore(self, definitions: Definitions) -> None:
        """Take over what the store kept; no callback is called."""
        self._vhosts = {vhost.name: vhost for vhost in definitions.vhosts}
        self.access.restore(definitions.users, definitions.permissions)

    @property
    def is_first_start(self) -> bool:
        """Whether there is nobody and nowhere yet."""
        return not self._vhosts and not self.access.users()

    def create_defaults(self, guest_password_hash: str) -> None:
        """What a first start begins with: virtual host `/`, and guest, who may do all in it."""
        self.add_vhost(DEFAULT_VHOST)
        self.add_user(DEFAULT_USER, guest_password_hash, ("administrator",))
        self.set_permission(PermissionDefinition(DEFAULT_VHOST, DEFAULT_USER, ".*", ".*", ".*"))

    # Users.

    def users(self) -> list[UserDefinition]:
        """All users, by name."""
        return self.access.users()

    def add_user(self, name: str, password_hash: str, tags: Iterable[str] = ()) -> None:
        """Add a user without any permissions. Raises AdministrationError."""
        _check_name("user", name)
        if self.access.user(name) is not None:
            raise AdministrationError("already_exists", f"user '{name}' exists already")
        user = UserDefinition(name, password_hash, _checked_tags(tags))
        self._keep_user(user)
        self._emit("user.created", {"name": name})
        if user.tags:
            self._emit("user.tags.set", {"name": name, "tags": user.tags})

    def set_password_hash(self, name: str, password_hash: str) -> None:
        """Replace a user's password. Raises AdministrationError."""
        self._keep_user(replace(self._user(name), password_hash=password_hash))
        key = "user.password.changed" if password_hash else "user.password.cleared"
        self._emit(key, {"name": name})

    def set_user_tags(self, name: str, tags: Iterable[str]) -> None:
        """Replace a user's tags. Raises AdministrationError."""
        user = replace(self._user(name), tags=_checked_tags(tags))
        self._keep_user(user)
        self._emit("user.tags.set", {"name": name, "tags": user.tags})

    def delete_user(self, name: str) -> None:
        """Delete a user and its permissions. Raises AdministrationError."""
        user = self._user(name)
        self._drop_permissions(self.access.remove_user(name))
        self.store.remove(user)
        self._on_user_deleted(name)
        self._emit("user.deleted", {"name": name})

    # Virtual hosts.

    def vhosts(self) -> list[VhostDefinition]:
        """All virtual hosts, by name."""
        return sorted(self._vhosts.values(), key=lambda vhost: vhost.name)

    def add_vhost(self, name: str, description: str = "", tags: Iterable[str] = ()) -> None:
        """Add a virtual host that nobody may enter yet. Raises AdministrationError."""
        _check_name("vhost", name)
        if name in self._vhosts:
            raise AdministrationError("already_exists", f"vhost '{name}' exists already")
        vhost = VhostDefinition(name, description, _checked_tags(tags))
        self._keep_vhost(vhost)
        self._on_vhost_added(vhost)
        self._emit(
            "vhost.created",
            {
                "name": name,
                "description": description,
                "tags": vhost.tags,
                "default_queue_type": vhost.default_queue_type,
                "tracing": False,
            },
        )

    def describe_vhost(self, name: str, description: str, tags: Iterable[str]) -> None:
        """Replace a virtual host's description and tags. Raises AdministrationError."""
        vhost = self._vhost(name)
        self._keep_vhost(replace(vhost, description=description, tags=_checked_tags(tags)))

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with everything in it. Raises AdministrationError."""
        vhost = self._vhost(name)
        del self._vhosts[name]
        self._drop_permissions(self.access.remove_vhost(name))
        self.store.remove(vhost)
        self._on_vhost_deleted(name)
        self._emit("vhost.deleted", {"name": name})

    # Permissions.

    def permissions(
        self, *, user: str | None = None, vhost: str | None = None
    ) -> list[PermissionDefinition]:
        """Permissions of one user, in one virtual host, or all. Raises AdministrationError."""
        if user is not None:
            self._user(user)
        if vhost is not None:
            self._vhost(vhost)
        return self.access.permissions(user=user, vhost=vhost)

    def set_permission(self, definition: PermissionDefinition) -> None:
        """Permit a user something in a virtual host. Raises AdministrationError."""
        self._user(definition.user)
        self._vhost(definition.vhost)
        try:
            self.access.put_permission(definition)
        except InvalidPatternError as error:
            raise AdministrationError("invalid", str(error)) from None
        self.store.put(definition)
        self._emit("permission.created", asdict(definition))

    def clear_permission(self, user: str, vhost: str) -> None:
        """Forbid a user a virtual host; no error if it was. Raises AdministrationError."""
        self._user(user)
        self._vhost(vhost)
        self._drop_permissions(self.access.remove_permission(user, vhost))
        self._emit("permission.deleted", {"user": user, "vhost": vhost})

    def _user(self, name: str) -> UserDefinition:
        user = self.access.user(name)
        if user is None:
            raise AdministrationError("not_found", f"no user '{name}'")
        return user

    def _vhost(self, name: str) -> VhostDefinition:
        vhost = self._vhosts.get(name)
        if vhost is None:
            raise AdministrationError("not_found", f"no vhost '{name}'")
        return vhost

    def _keep_user(self, user: UserDefinition) -> None:
        self.access.put_user(user)
        self.store.put(user)

    def _keep_vhost(self, vhost: VhostDefinition) -> None:
        self._vhosts[vhost.name] = vhost
        self.store.put(vhost)

    def _drop_permissions(self, definitions: Iterable[PermissionDefinition]) -> None:
        for definition in definitions:
            self.store.remove(definition)


def _check_name(kind: str, name: str) -> None:
    if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
        raise AdministrationError(
            "invalid", f"a {kind} name has 1 to {NAME_BYTES_MAX} bytes of printable text"
        )


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags without doubles, in their order."""
    unique = tuple(dict.fromkeys(tags))
    if len(unique) > TAGS_MAX:
        raise AdministrationError("invalid", f"more than {TAGS_MAX} tags")
    for tag in unique:
        if not tag or "," in tag or len(tag.encode()) > TAG_BYTES_MAX:
            raise AdministrationError("invalid", f"{tag!r} is not a tag")
    return unique
