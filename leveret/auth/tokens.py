"""OAuth 2: a signed token (JWT) as the password, with any user name.

The token names its user, permissions (see `leveret.auth.scopes`) and expiry; only the provider of
the keys is queried. A token is never logged, and never shown in an error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jwt

from leveret.auth.scopes import Scopes, TooManyScopesError, collect_scopes, parse_scopes
from leveret.ports.authentication import SecretRefusedError
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.auth.keys import KeySet
    from leveret.ports.authentication import Kind, Login, Permission, Rights, TopicPermission

__all__ = ["TokenAuthenticator", "TokenRules"]

logger = logging.getLogger(__name__)

TOKEN_CHARACTERS_MAX = 64 * 1024  # they come in one frame; providers' largest are some 10 KiB
USER_CHARACTERS_MAX = 255  # limit of a short string: names are sent as such
SECONDS_MAX = 10**11  # the year 5138: later is a broken clock, and milliseconds of it fit 64 bits


class InvalidTokenError(Exception):
    """The token is not valid; the text says why without quoting it."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Requirements for a token, and how to read it."""

    resource_server_id: str
    scope_prefix: str
    additional_scopes_key: str
    scope_aliases: Mapping[str, str]
    user_claims: Sequence[str]
    leeway_seconds: float


class TokenAuthenticator:
    """Accepts tokens that are signed, meant for this broker, and not expired."""

    def __init__(self, keys: KeySet, rules: TokenRules) -> None:
        self._keys = keys
        self._rules = rules

    async def log_in(self, login: Login) -> Rights | None:
        """Return the rights of a login, or None if refused (see ports.authentication)."""
        if login.password is None:
            return None
        try:
            return await self.verified(login.password)
        except InvalidTokenError as error:
            logger.info("no token of user '%s' was accepted: %s", one_line(login.user), error)
            return None

    async def verified(self, token: str) -> TokenRights:
        """Return the rights of a token. Raises InvalidTokenError."""
        claims = await self._claims(token)
        rules = self._rules
        self._check_audience(claims.get("aud"))
        scopes = collect_scopes(
            claims, rules.resource_server_id, rules.additional_scopes_key, rules.scope_aliases
        )
        try:
            granted = parse_scopes(scopes, rules.scope_prefix)
        except TooManyScopesError as error:
            raise InvalidTokenError(str(error)) from None
        # With the leeway, as for the acceptance of a token.
        expires_at_ms = int((claims["exp"] + rules.leeway_seconds) * 1000)
        return TokenRights(self, self._user(claims), granted, expires_at_ms)

    async def _claims(self, token: str) -> dict[str, Any]:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise InvalidTokenError("it is too long")
        try:
            header = jwt.get_unverified_header(token)
            algorithm = str(header.get("alg"))
            key = await self._keys.find(header.get("kid"), algorithm)
            if key is None:
                raise InvalidTokenError("no known key has signed it")
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],  # the one that this very key is kept for
                leeway=self._rules.leeway_seconds,
                options={"require": ["exp"], "verify_aud": False},  # see _check_audience
            )
        except jwt.PyJWTError as error:
            raise InvalidTokenError(_reason(error)) from None
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise InvalidTokenError("it is malformed") from None
        if not isinstance(claims["exp"], int | float) or not 0 <= claims["exp"] <= SECONDS_MAX:
            raise InvalidTokenError("its claim exp is no time")
        return claims

    def _check_audience(self, audience: object) -> None:
        """Check the audience, a list or words. Raises InvalidTokenError for other audiences."""
        names = audience.split() if isinstance(audience, str) else audience
        if not isinstance(names, list) or self._rules.resource_server_id not in names:
            raise InvalidTokenError("it is meant for another audience")

    def _user(self, claims: dict[str, Any]) -> str:
        for claim in self._rules.user_claims:
            user = claims.get(claim)
            if isinstance(user, str) and user:
                if len(user.encode()) > USER_CHARACTERS_MAX:
                    raise InvalidTokenError("its user's name is too long")
                return user
        raise InvalidTokenError("it names no user")


def _reason(error: jwt.PyJWTError) -> str:
    """Return the reason of a failure without quoting the token."""
    if isinstance(error, jwt.ExpiredSignatureError):
        return "it has expired"
    if isinstance(error, jwt.ImmatureSignatureError):
        return "it is not valid yet"
    if isinstance(error, jwt.InvalidSignatureError):
        return "its signature is wrong"
    return "it is no valid token"


class TokenRights:
    """Rights of one token; they never change."""

    generation = 0

    def __init__(
        self, source: TokenAuthenticator, user: str, scopes: Scopes, expires_at_ms: int
    ) -> None:
        self.user = user
        self.tags = scopes.tags
        self.expires_at_ms = expires_at_ms
        self._source = source
        self._scopes = scopes

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may enter a virtual host (see ports.authentication)."""
        return self._scopes.enters(vhost)

    def allows(self, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:  # noqa: ARG002  # scopes do not tell queues from exchanges
        """Whether the user has a permission (see ports.authentication)."""
        return self._scopes.allow(vhost, name, permission)

    def restricts_topics(self, vhost: str, exchange: str) -> bool:  # noqa: ARG002  # asked rarely
        """Whether some routing keys may be denied (see ports.authentication)."""
        return self._scopes.restrict_keys

    def allows_topic(
        self, vhost: str, exchange: str, key: str, permission: TopicPermission
    ) -> bool:
        """Whether the user may use a routing key (see ports.authentication)."""
        return self._scopes.allow_key(vhost, exchange, key, permission)

    async def renewed(self, secret: str) -> Rights:
        """Return the rights of a new token of the same user. Raises SecretRefusedError."""
        try:
            rights = await self._source.verified(secret)
        except InvalidTokenError as error:
            logger.info("no new token of user '%s' was accepted: %s", one_line(self.user), error)
            raise SecretRefusedError(str(error)) from None
        if rights.user != self.user:
            logger.info("a new token of user '%s' names another user", one_line(self.user))
            raise SecretRefusedError("it names another user")
        return rights
