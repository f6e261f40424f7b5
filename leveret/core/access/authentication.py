"""Authentication: who logs in, by the backends that may know the user.

The broker's own users are one backend (`ports.authentication.Authenticator`) among those that
the operator has configured in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leveret.config import AuthBackend
from leveret.core.access.passwords import PasswordCache
from leveret.core.access.permissions import InternalRights
from leveret.ports.authentication import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from leveret.core.access.permissions import AccessControl
    from leveret.ports.authentication import (
        Authenticator,
        Login,
        Rights,
    )

__all__ = [
    "InternalAuthenticator",
    "answered",
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
