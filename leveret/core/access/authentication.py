"""Authentication, and checks of a user's rights.

The broker's own users are one backend (`ports.authentication.Authenticator`) among those that
the operator has configured in order.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from leveret.config import AuthBackend
from leveret.core.access.passwords import PasswordCache
from leveret.core.access.permissions import known_as
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.ports.authentication import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from leveret.core.access.permissions import AccessControl
    from leveret.ports.authentication import (
        Authenticator,
        Kind,
        Login,
        Permission,
        Rights,
        TopicPermission,
    )

__all__ = [
    "InternalAuthenticator",
    "InternalRights",
    "answered",
    "authorise",
    "authorise_topic",
    "check_vhost",
    "explain_refusal",
    "log_in",
]


T = TypeVar("T")


async def answered(question: Callable[[], T]) -> T:
    """Return the answer to a question about rights, fetching missing permissions as needed.

    For callers that can wait; raises what the question raises.
    """
    while True:
        try:
            return question()
        except UnansweredError as unanswered:  # once; then the answer is cached
            await unanswered.ask()


async def log_in(authenticators: Iterable[Authenticator], login: Login) -> Rights | None:
    """Return the rights from the first backend that accepts the login; None if none does."""
    for authenticator in authenticators:
        rights = await authenticator.log_in(login)
        if rights is not None:
            return rights
    return None


def explain_refusal(access: AccessControl, backends: Sequence[str], user: str) -> str:
    """Return why none of `backends` accepted a login, for the operator's log only."""
    if tuple(backends) != (AuthBackend.INTERNAL,):
        return f"none of auth_backends accepts it: {', '.join(backends)}"
    known = access.user(user)
    if known is None:
        return "unknown user"
    return "wrong password" if known.password_hash else "the user has no password"


def check_vhost(rights: Rights, vhost: str) -> None:
    """Raise ConnectionClosingError 530 unless the user may enter `vhost`."""
    if not rights.may_enter(vhost):
        raise ConnectionClosingError(
            530, f"access to vhost '{vhost}' refused for user '{rights.user}'"
        )


def authorise(rights: Rights, vhost: str, kind: Kind, name: str, permission: Permission) -> None:
    """Raise ChannelError 403 unless the user has `permission` for the resource."""
    known = known_as(kind, name)
    if not rights.allows(vhost, kind, known, permission):
        raise ChannelError(
            403,
            f"{permission} access to {kind} '{known}' in vhost '{vhost}' "
            f"refused for user '{rights.user}'",
        )


def authorise_topic(
    rights: Rights, vhost: str, exchange: str, key: str, permission: TopicPermission
) -> None:
    """Raise ChannelError 403 unless the user may use a routing key of a topic exchange."""
    if not rights.allows_topic(vhost, exchange, key, permission):
        raise ChannelError(
            403,
            f"{permission} access to topic '{key}' in exchange '{exchange}' in vhost '{vhost}' "
            f"refused for user '{rights.user}'",
        )


class InternalAuthenticator:
    """Authentication backend of the broker's own users, by name and password."""

    def __init__(
        self,
        access: AccessControl,
        cache_key: bytes,
        check: Callable[[str, str, str], Awaitable[bool]],
    ) -> None:
        """Create the backend; `check(peer_host, phc, password)` verifies a password in a worker."""
        self._access = access
        self._passwords = PasswordCache(cache_key)
        self._check = check

    async def log_in(self, login: Login) -> Rights | None:
        """Check name and password; takes equally long for unknown users.

        Returns None if refused.
        """
        definition = self._access.user(login.user)
        phc = definition.password_hash if definition is not None else ""
        if login.password is None:
            accepted = definition is not None
        elif phc and self._passwords.knows(phc, login.password):
            accepted = True
        elif accepted := await self._check(login.peer_host, phc, login.password):
            self._passwords.remember(phc, login.password)
        return InternalRights(self._access, login.user) if accepted else None


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
