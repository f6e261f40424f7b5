"""Permissions: users, their permissions per virtual host and per topic exchange, and their checks.

A permission is three regular expressions over resource names. They are searched, not matched
whole, and an empty one means `^$`: it matches nothing but the empty name (see
leveret.core.patterns).

A topic permission is two more patterns, over the routing keys of one topic exchange; a user without
one there may use every key. `{username}` and `{vhost}` in it stand for the literal text of those
names, whatever they would mean in a pattern; `{client_id}` is MQTT's and is left unchanged.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Self

from leveret.core.patterns import NOWHERE, Pattern, PatternError
from leveret.errors import ConnectionClosingError, LeveretError, PermissionDeniedError
from leveret.ports.definitions import (
    PermissionDefinition,
    TopicPermissionDefinition,
    UserDefinition,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from leveret.ports.authentication import Kind, Permission, Rights, TopicPermission

__all__ = [
    "AccessControl",
    "InternalRights",
    "InvalidPatternError",
    "Permissions",
    "authorise",
    "authorise_topic",
    "check_vhost",
    "is_loopback",
]

IMPERSONATOR = "impersonator"  # tag of users that may publish with another user-id
ANSWERS_MAX = 4096  # cached answers: for queues and exchanges in constant use
TOPIC_VARIABLES = re.compile(r"\{username\}|\{vhost\}")
DEFAULT_EXCHANGE = "amq.default"  # name of the nameless exchange in patterns and texts


class InvalidPatternError(LeveretError):
    """Raised for a permission that is not a regular expression or is too long."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """Compiled permissions of one user in one virtual host."""

    definition: PermissionDefinition
    configure: Pattern
    write: Pattern
    read: Pattern

    @classmethod
    def compile(cls, definition: PermissionDefinition) -> Self:
        """Compile a definition. Raises InvalidPatternError."""
        return cls(
            definition,
            _compile(definition.configure),
            _compile(definition.write),
            _compile(definition.read),
        )

    def allow(self, permission: Permission, name: str) -> bool:
        """Whether the resource `name` may be configured, written or read."""
        pattern: Pattern = getattr(self, permission)
        return pattern.is_in(name)


@dataclass(frozen=True, slots=True)
class TopicPermissions:
    """Compiled permissions of one user on the keys of one topic exchange."""

    definition: TopicPermissionDefinition
    write: Pattern
    read: Pattern

    @classmethod
    def compile(cls, definition: TopicPermissionDefinition) -> Self:
        """Compile a definition. Raises InvalidPatternError."""
        return cls(
            definition,
            _compile(_expanded(definition.write, definition)),
            _compile(_expanded(definition.read, definition)),
        )


class AccessControl:
    """All users and permissions of a node, in memory.

    `generation` grows with every change: cached answers are valid while it stays the same.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._users: dict[str, UserDefinition] = {}
        self._answers: dict[tuple[str, str, Kind, str, Permission], bool] = {}
        self._answers_generation = 0
        self._permissions: dict[tuple[str, str], Permissions] = {}  # by (user, vhost)
        # By (user, vhost, exchange).
        self._topic_permissions: dict[tuple[str, str, str], TopicPermissions] = {}

    def user(self, name: str) -> UserDefinition | None:
        """Return the user with this name, or None."""
        return self._users.get(name)

    def users(self) -> list[UserDefinition]:
        """Return all users, sorted by name."""
        return sorted(self._users.values(), key=lambda user: user.name)

    def permissions(
        self, *, user: str | None = None, vhost: str | None = None
    ) -> list[PermissionDefinition]:
        """Return the permissions of one user, in one virtual host, or all; by vhost, then user."""
        return sorted(
            (
                held.definition
                for held in self._permissions.values()
                if user in {None, held.definition.user} and vhost in {None, held.definition.vhost}
            ),
            key=lambda definition: (definition.vhost, definition.user),
        )

    def topic_permissions(
        self, *, user: str | None = None, vhost: str | None = None, exchange: str | None = None
    ) -> list[TopicPermissionDefinition]:
        """Return the topic permissions of a user, virtual host or exchange; by vhost, then user."""
        return sorted(
            (
                held.definition
                for held in self._topic_permissions.values()
                if user in {None, held.definition.user}
                and vhost in {None, held.definition.vhost}
                and exchange in {None, held.definition.exchange}
            ),
            key=lambda held: (held.vhost, held.user, held.exchange),
        )

    def may_connect_from(self, user: str, peer_host: str, loopback_users: Collection[str]) -> bool:
        """Whether `user` may connect from `peer_host`, an IP address."""
        return user not in loopback_users or is_loopback(peer_host)

    def may_enter(self, user: str, vhost: str) -> bool:
        """Whether `user` has any permissions in `vhost`."""
        return (user, vhost) in self._permissions

    def allows(self, user: str, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:
        """Whether `user` has `permission` for the resource."""
        if self._answers_generation != self.generation or len(self._answers) >= ANSWERS_MAX:
            self._answers.clear()
            self._answers_generation = self.generation
        question = (user, vhost, kind, name, permission)
        answer = self._answers.get(question)
        if answer is None:
            permissions = self._permissions.get((user, vhost))
            answer = permissions is not None and permissions.allow(permission, known_as(kind, name))
            self._answers[question] = answer
        return answer

    def restricts_topics(self, user: str, vhost: str, exchange: str) -> bool:
        """Whether some routing keys of a topic exchange may be forbidden to `user`."""
        return (user, vhost, exchange) in self._topic_permissions

    def allows_topic(
        self, user: str, vhost: str, exchange: str, key: str, permission: TopicPermission
    ) -> bool:
        """Whether `user` may use a routing key of a topic exchange."""
        held = self._topic_permissions.get((user, vhost, exchange))
        if held is None:
            return True
        pattern: Pattern = getattr(held, permission)
        return pattern.is_in(key)

    def restore(
        self,
        users: Iterable[UserDefinition],
        permissions: Iterable[PermissionDefinition],
        topic_permissions: Iterable[TopicPermissionDefinition] = (),
    ) -> None:
        """Restore users and permissions from the store.

        A pattern no longer valid permits nothing.
        """
        for user in users:
            self.put_user(user)
        for permission in permissions:
            try:
                self.put_permission(permission)
            except InvalidPatternError:
                self._hold(Permissions(permission, NOWHERE, NOWHERE, NOWHERE))
        for topic_permission in topic_permissions:
            try:
                self.put_topic_permission(topic_permission)
            except InvalidPatternError:
                self._hold_topic(TopicPermissions(topic_permission, NOWHERE, NOWHERE))

    def put_user(self, user: UserDefinition) -> None:
        """Add or replace a user."""
        self._users[user.name] = user
        self.generation += 1

    def remove_user(self, name: str) -> list[PermissionDefinition]:
        """Remove a user and return its permissions, which are removed as well."""
        self._users.pop(name, None)
        return self._remove_permissions(self.permissions(user=name))

    def put_permission(self, definition: PermissionDefinition) -> None:
        """Add or replace one user's permissions in one virtual host. Raises InvalidPatternError."""
        self._hold(Permissions.compile(definition))

    def _hold(self, permissions: Permissions) -> None:
        definition = permissions.definition
        self._permissions[definition.user, definition.vhost] = permissions
        self.generation += 1

    def remove_permission(self, user: str, vhost: str) -> list[PermissionDefinition]:
        """Remove and return one user's permissions in one virtual host."""
        return self._remove_permissions(self.permissions(user=user, vhost=vhost))

    def remove_vhost(self, vhost: str) -> list[PermissionDefinition]:
        """Remove and return all permissions in a virtual host."""
        return self._remove_permissions(self.permissions(vhost=vhost))

    def _remove_permissions(
        self, definitions: list[PermissionDefinition]
    ) -> list[PermissionDefinition]:
        for definition in definitions:
            del self._permissions[definition.user, definition.vhost]
        self.generation += 1
        return definitions

    def put_topic_permission(self, definition: TopicPermissionDefinition) -> None:
        """Add or replace one user's permissions on one exchange. Raises InvalidPatternError."""
        self._hold_topic(TopicPermissions.compile(definition))

    def _hold_topic(self, held: TopicPermissions) -> None:
        definition = held.definition
        self._topic_permissions[definition.user, definition.vhost, definition.exchange] = held
        self.generation += 1

    def remove_topic_permissions(
        self, *, user: str | None = None, vhost: str | None = None, exchange: str | None = None
    ) -> list[TopicPermissionDefinition]:
        """Remove and return the topic permissions of a user, virtual host or exchange."""
        definitions = self.topic_permissions(user=user, vhost=vhost, exchange=exchange)
        for definition in definitions:
            del self._topic_permissions[definition.user, definition.vhost, definition.exchange]
        self.generation += 1
        return definitions


class InternalRights:
    """Rights of one of the broker's own users; changes take effect at once."""

    expires_at_ms = None

    def __init__(self, access: AccessControl, user: str) -> None:
        self.user = user
        self._access = access

    @property
    def tags(self) -> tuple[str, ...]:
        """Current tags of the user."""
        definition = self._access.user(self.user)
        return definition.tags if definition is not None else ()

    # Grows with every change of a permission. Read for every socket read, therefore without Python
    # code.
    generation = property(attrgetter("_access.generation"))

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may open connections to a virtual host."""
        return self._access.may_enter(self.user, vhost)

    def allows(self, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:
        """Whether the user has `permission` for the resource."""
        return self._access.allows(self.user, vhost, kind, name, permission)

    def restricts_topics(self, vhost: str, exchange: str) -> bool:
        """Whether some routing keys of a topic exchange may be forbidden to the user."""
        return self._access.restricts_topics(self.user, vhost, exchange)

    def allows_topic(
        self, vhost: str, exchange: str, key: str, permission: TopicPermission
    ) -> bool:
        """Whether the user may use a routing key of a topic exchange."""
        return self._access.allows_topic(self.user, vhost, exchange, key, permission)

    async def renewed(self, secret: str) -> Rights:  # noqa: ARG002  # RabbitMQ takes any, too
        """Return the same rights: a proved password needs no renewal."""
        return self


def check_vhost(rights: Rights, vhost: str) -> None:
    """Raise ConnectionClosingError 530 unless the user may enter `vhost`."""
    if not rights.may_enter(vhost):
        raise ConnectionClosingError(
            530, f"access to vhost '{vhost}' refused for user '{rights.user}'"
        )


def authorise(rights: Rights, vhost: str, kind: Kind, name: str, permission: Permission) -> None:
    """Raise PermissionDeniedError unless the user has `permission` for the resource."""
    known = known_as(kind, name)
    if not rights.allows(vhost, kind, known, permission):
        raise PermissionDeniedError(
            403,
            f"{permission} access to {kind} '{known}' in vhost '{vhost}' "
            f"refused for user '{rights.user}'",
        )


def authorise_topic(
    rights: Rights, vhost: str, exchange: str, key: str, permission: TopicPermission
) -> None:
    """Raise PermissionDeniedError unless the user may use a routing key of a topic exchange."""
    if not rights.allows_topic(vhost, exchange, key, permission):
        raise PermissionDeniedError(
            403,
            f"{permission} access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' "
            f"refused for user '{rights.user}'",
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is a loopback IP address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def _compile(pattern: str) -> Pattern:
    try:
        return Pattern(pattern or "^$")
    except PatternError as error:
        raise InvalidPatternError(f"{pattern!r} is not a regular expression: {error}") from None


def _expanded(pattern: str, definition: TopicPermissionDefinition) -> str:
    """Replace the variables by the escaped names of user and virtual host."""
    values = {"{username}": definition.user, "{vhost}": definition.vhost}
    return TOPIC_VARIABLES.sub(lambda found: re.escape(values[found[0]]), pattern)


def known_as(kind: Kind, name: str) -> str:
    """Return a resource's name in patterns and texts."""
    return DEFAULT_EXCHANGE if kind == "exchange" and not name else name
