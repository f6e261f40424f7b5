"""The sources of users in the configured order."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leveret.config import AuthBackend, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from leveret.auth.keys import KeySet
    from leveret.config import AuthenticationSettings
    from leveret.ports.authentication import Authenticator

__all__ = ["AuthenticatorChain"]

JWKS_BYTES_MAX = 1024 * 1024  # 64 keys of RSA are some 40 kB
JWKS_TIMEOUT_SECONDS = 5.0  # half the time of a handshake, which may be waiting for it
SECRET_BYTES_MIN = 32  # RFC 7518: as long as what HS256 makes of it


class AuthenticatorChain:
    """All sources, in order, and the resources to be closed with them.

    Their libraries take a while to import: only those of configured sources are imported.
    """

    def __init__(
        self, settings: AuthenticationSettings, internal: Authenticator, cache_key: bytes
    ) -> None:
        """Build the sources. Raises ConfigurationError where a setting is missing."""
        self._settings = settings
        self._cache_key = cache_key
        self._closing: list[Callable[[], Awaitable[None]]] = []
        makers = {
            AuthBackend.INTERNAL: lambda: internal,
            AuthBackend.OAUTH2: self._tokens,
            AuthBackend.HTTP: self._http,
        }
        self.authenticators = tuple(makers[backend]() for backend in settings.auth_backends)

    async def close(self) -> None:
        """Close the sources' connections."""
        for close in self._closing:
            await close()

    def _http(self) -> Authenticator:
        from leveret.auth.http import HttpAuthenticator, HttpRules  # noqa: PLC0415  # see above

        settings = self._settings
        for setting in ("auth_http_user_path", "auth_http_vhost_path", "auth_http_resource_path"):
            self._require(setting, "http")
        authenticator = HttpAuthenticator(
            HttpRules(
                user_path=settings.auth_http_user_path,
                vhost_path=settings.auth_http_vhost_path,
                resource_path=settings.auth_http_resource_path,
                topic_path=settings.auth_http_topic_path,
                method=settings.auth_http_method,
                timeout_seconds=settings.auth_http_timeout_seconds,
            ),
            self._cache_key,
            settings.auth_cache_ttl_seconds,
            time.monotonic,
        )
        self._closing.append(authenticator.close)
        return authenticator

    def _tokens(self) -> Authenticator:
        from leveret.auth.tokens import TokenAuthenticator, TokenRules  # noqa: PLC0415  # see above

        settings = self._settings
        server = self._require("auth_oauth2_resource_server_id", "oauth2")
        prefix = settings.auth_oauth2_scope_prefix
        rules = TokenRules(
            resource_server_id=server,
            scope_prefix=f"{server}." if prefix is None else prefix,
            additional_scopes_key=settings.auth_oauth2_additional_scopes_key,
            scope_aliases=settings.auth_oauth2_scope_aliases,
            user_claims=settings.auth_oauth2_preferred_username_claims,
            leeway_seconds=settings.auth_oauth2_leeway_seconds,
        )
        return TokenAuthenticator(self._keys(), rules)

    def _keys(self) -> KeySet:
        from leveret.auth.keys import KeySet  # noqa: PLC0415  # see above

        settings = self._settings
        url, file = settings.auth_oauth2_jwks_url, settings.auth_oauth2_jwks_file
        secret_file = settings.auth_oauth2_hs256_key_file
        if not (url or file or secret_file):
            raise ConfigurationError(
                "auth_backends has 'oauth2', which needs one of 'auth_oauth2_jwks_url', "
                "'auth_oauth2_jwks_file' and 'auth_oauth2_hs256_key_file'"
            )
        fetch = self._url_fetcher(url) if url else _file_fetcher(file) if file else None
        secret = _read_secret(secret_file) if secret_file else None
        refresh_seconds = settings.auth_oauth2_jwks_refresh_seconds
        return KeySet(fetch, secret, refresh_seconds, time.monotonic)

    def _url_fetcher(self, url: str) -> Callable[[], Awaitable[bytes]]:
        import httpx  # noqa: PLC0415  # see above

        client = httpx.AsyncClient(timeout=JWKS_TIMEOUT_SECONDS, trust_env=False)
        self._closing.append(client.aclose)

        async def fetch() -> bytes:
            try:
                async with (
                    asyncio.timeout(JWKS_TIMEOUT_SECONDS),
                    client.stream("GET", url) as response,
                ):
                    response.raise_for_status()
                    content = b""
                    async for part in response.aiter_bytes():
                        content += part
                        if len(content) > JWKS_BYTES_MAX:
                            raise OSError(f"{url} has more than {JWKS_BYTES_MAX} bytes")
                    return content
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise OSError(f"{url}: {error or type(error).__name__}") from None

        return fetch

    def _require(self, setting: str, backend: str) -> str:
        value: str = getattr(self._settings, setting)
        if not value:
            raise ConfigurationError(f"auth_backends has {backend!r}, which needs {setting!r}")
        return value


def _file_fetcher(file: Path) -> Callable[[], Awaitable[bytes]]:
    async def fetch() -> bytes:
        def read() -> bytes:
            with file.open("rb") as stream:
                return stream.read(JWKS_BYTES_MAX)

        return await asyncio.to_thread(read)

    return fetch


def _read_secret(file: Path) -> bytes:
    try:
        secret = file.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    if len(secret) < SECRET_BYTES_MIN:
        raise ConfigurationError(f"{file} holds a secret of less than {SECRET_BYTES_MIN} bytes")
    return secret
