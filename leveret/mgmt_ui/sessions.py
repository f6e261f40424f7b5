"""Sessions of signed-in browsers: in memory, bounded, with an expiry.

Made by the sign-in page, found by `api.callers` for each request with the cookie. A session ends at
its expiry, with the user, and when the password that opened it changes. For users of other sources,
whose changes this node does not learn of, its time is short.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leveret.core.access.permissions import InternalRights

if TYPE_CHECKING:
    from leveret.core.access.permissions import AccessControl
    from leveret.ports.authentication import Rights

__all__ = ["COOKIE", "CSRF_HEADER", "SESSION_MS_MAX", "Notice", "WebSession", "WebSessions"]

COOKIE = "leveret_session"
CSRF_HEADER = "x-csrf-token"
SESSION_MS_MAX = 8 * 3600 * 1000  # a working day, as RabbitMQ has it
# For users of an external source: their tags are those of the sign-in, and the source does not
# report a deleted user or a changed password. So they sign in again twice an hour.
SESSION_MS_MAX_ELSEWHERE = 30 * 60 * 1000
SESSIONS_MAX = 1000  # about a kilobyte each; more people than ever look at one node
SESSIONS_PER_USER_MAX = 32  # so that one user cannot push out the others
NOTICES_MAX = 8  # that wait for the next page
TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True)
class Notice:
    """Notice to be shown on the next page."""

    text: str
    failed: bool = False


@dataclass(slots=True, eq=False)
class WebSession:
    """One browser of one user. `csrf_token` must come with every change."""

    token: str = field(repr=False)
    csrf_token: str = field(repr=False)
    rights: Rights
    password_hash: str | None = field(repr=False)  # None for users whom others know
    ends_at_ms: int
    notices: list[Notice] = field(default_factory=list)

    def tell(self, text: str, *, failed: bool = False) -> None:
        """Add a notice to be shown on the next page."""
        self.notices = [*self.notices, Notice(text, failed)][-NOTICES_MAX:]

    def take_notices(self) -> list[Notice]:
        """Return the notices and remove them."""
        notices, self.notices = self.notices, []
        return notices

    def has_csrf_token(self, token: str) -> bool:
        """Whether a request has this session's CSRF token."""
        return secrets.compare_digest(token.encode(), self.csrf_token.encode())


class WebSessions:
    """Sessions of a node, oldest first. `wall_ms()` is milliseconds since 1970."""

    def __init__(self, access: AccessControl, wall_ms: Callable[[], int]) -> None:
        self._access = access
        self._wall_ms = wall_ms
        self._by_token: dict[str, WebSession] = {}

    def __len__(self) -> int:
        return len(self._by_token)

    def open(self, rights: Rights) -> WebSession:
        """Open a session for a user who was just authenticated."""
        self._make_room(rights.user)
        session = WebSession(
            secrets.token_urlsafe(TOKEN_BYTES),
            secrets.token_urlsafe(TOKEN_BYTES),
            rights,
            self._password_hash(rights.user),
            self._wall_ms() + _time_ms(rights),
        )
        self._by_token[session.token] = session
        return session

    def find(self, token: str) -> WebSession | None:
        """Return the valid session of a cookie, or None."""
        session = self._by_token.get(token)
        if session is not None and not self._is_good(session):
            self.close(session)
            return None
        return session

    def close(self, session: WebSession) -> None:
        """Close a session; a second call does nothing."""
        self._by_token.pop(session.token, None)

    def _is_good(self, session: WebSession) -> bool:
        now_ms, proof_ends_ms = self._wall_ms(), session.rights.expires_at_ms
        return (
            now_ms < session.ends_at_ms
            and (proof_ends_ms is None or now_ms < proof_ends_ms)
            and self._password_hash(session.rights.user) == session.password_hash
        )

    def _password_hash(self, user: str) -> str | None:
        definition = self._access.user(user)
        return None if definition is None else definition.password_hash

    def _make_room(self, user: str) -> None:
        for session in [held for held in self._by_token.values() if not self._is_good(held)]:
            self.close(session)
        own = [held for held in self._by_token.values() if held.rights.user == user]
        if len(own) >= SESSIONS_PER_USER_MAX:
            self.close(own[0])
        elif len(self._by_token) >= SESSIONS_MAX:
            self.close(next(iter(self._by_token.values())))


def _time_ms(rights: Rights) -> int:
    """Return the duration of a session in ms: shorter for users of other sources."""
    if rights.expires_at_ms is None and not isinstance(rights, InternalRights):
        return SESSION_MS_MAX_ELSEWHERE
    return SESSION_MS_MAX
