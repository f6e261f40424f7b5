"""Authentication and authorization: the interfaces of login backends and of users' rights.

An authentication backend is an `Authenticator`: the broker's own users
(`core.access.authentication`), tokens, an HTTP service (`leveret.auth`). A successful login returns
`Rights`, which decide about permissions for the lifetime of the connection.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = [
    "Authenticator",
    "Kind",
    "Login",
    "Permission",
    "Rights",
    "SecretRefusedError",
    "TooManyGuessesError",
    "TopicPermission",
    "UnansweredError",
    "attempt_source",
]

IPV6_SITE_BITS = 64  # what one subscriber gets: all addresses in the prefix count as one source

Permission: TypeAlias = Literal["configure", "write", "read"]
TopicPermission: TypeAlias = Literal["write", "read"]
Kind: TypeAlias = Literal["exchange", "queue"]


class Login(NamedTuple):
    """Claimed user name, its proof, and the peer's address."""

    user: str
    password: str | None  # None if the name is already proved, e.g. by a certificate
    peer_host: str


class UnansweredError(LeveretError):
    """Raised when a permission must be fetched first: await `ask()`, then repeat the question.

    `ask` does not raise; if no answer can be had, the repeated question is answered with no.
    """

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a permission must be asked for")
        self.ask = ask


class SecretRefusedError(LeveretError):
    """Raised for a new secret that does not prove the same user.

    The text says why, without the secret.
    """


class TooManyGuessesError(LeveretError):
    """Raised after too many failed logins; the next attempt is possible in `wait_ms`."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(wait_ms)
        self.wait_ms = wait_ms


class Rights(Protocol):
    """Rights of one logged-in user.

    Every question may raise UnansweredError. Answers hold while `generation`, which only grows,
    stays the same.
    """

    @property
    def user(self) -> str:
        """User name; it may differ from the name claimed at login."""
        ...

    @property
    def tags(self) -> tuple[str, ...]:
        """User tags as in RabbitMQ: `administrator`, `impersonator`, …."""
        ...

    @property
    def generation(self) -> int:
        """Version number that grows whenever answers may have changed."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """Time when the credentials expire, in ms since 1970; None if they do not."""
        ...

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may open connections to a virtual host."""
        ...

    def allows(self, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:
        """Whether the user has `permission` for the resource."""
        ...

    def restricts_topics(self, vhost: str, exchange: str) -> bool:
        """Whether some routing keys of a topic exchange may be forbidden to the user."""
        ...

    def allows_topic(
        self, vhost: str, exchange: str, key: str, permission: TopicPermission
    ) -> bool:
        """Whether the user may use a routing key of a topic exchange."""
        ...

    async def renewed(self, secret: str) -> Rights:
        """Return the rights that a new secret of the same user grants.

        Raises SecretRefusedError.
        """
        ...


class Authenticator(Protocol):
    """One source of users: an authentication backend."""

    async def log_in(self, login: Login) -> Rights | None:
        """Return the user's rights; None if this source does not know the user or the proof fails.

        Raises nothing but TooManyGuessesError: an unreachable backend refuses the login.
        """
        ...


def attempt_source(peer_host: str) -> str:
    """Return the source that failed logins from an address count against: a host or an IPv6 /64."""
    try:
        address = ipaddress.ip_address(peer_host.partition("%")[0])
    except ValueError:
        return peer_host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, IPV6_SITE_BITS), strict=False))
    return str(address)
