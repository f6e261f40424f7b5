"""Who may log in, and what they may do then: asked of whoever knows.

A backend of authentication is an `Authenticator`: the broker's own users
(`core.access.authentication`), tokens, an HTTP service (`leveret.auth`). Whoever is let in gets
`Rights`, which go on deciding for the time of the connection.
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

IPV6_SITE_BITS = 64  # what one subscriber gets; whoever has one address there has them all

Permission: TypeAlias = Literal["configure", "write", "read"]
TopicPermission: TypeAlias = Literal["write", "read"]
Kind: TypeAlias = Literal["exchange", "queue"]


class Login(NamedTuple):
    """What somebody claims to be, the proof, and where from."""

    user: str
    password: str | None  # None where the name is proved already, by a certificate for one
    peer_host: str


class UnansweredError(LeveretError):
    """Rights must be asked for first: await `ask()`, then put the same question again.

    `ask` does not raise; where no answer can be had, the next one is no.
    """

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a permission must be asked for")
        self.ask = ask


class SecretRefusedError(LeveretError):
    """A new secret that does not prove the same user; the text says why, without the secret."""


class TooManyGuessesError(LeveretError):
    """Somebody has guessed too often, and may log in again in `wait_ms`."""

    def __init__(self, wait_ms: int) -> None:
        super().__init__(wait_ms)
        self.wait_ms = wait_ms


class Rights(Protocol):
    """What one user who has logged in may do.

    Every question may raise UnansweredError. Answers hold while `generation`, which only grows,
    stays the same.
    """

    @property
    def user(self) -> str:
        """The name; it need not be the one that was claimed."""
        ...

    @property
    def tags(self) -> tuple[str, ...]:
        """As users of RabbitMQ have them: `administrator`, `impersonator`."""
        ...

    @property
    def generation(self) -> int:
        """Other than before where answers may have changed."""
        ...

    @property
    def expires_at_ms(self) -> int | None:
        """When the proof ends, since 1970; None for never."""
        ...

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may open connections to a virtual host."""
        ...

    def allows(self, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:
        """Whether the user has `permission` for the resource."""
        ...

    def restricts_topics(self, vhost: str, exchange: str) -> bool:
        """Whether some routing keys of a topic exchange may be closed to the user."""
        ...

    def allows_topic(
        self, vhost: str, exchange: str, key: str, permission: TopicPermission
    ) -> bool:
        """Whether the user may use a routing key of a topic exchange."""
        ...

    async def renewed(self, secret: str) -> Rights:
        """The rights that a new secret of the same user gives. Raises SecretRefusedError."""
        ...


class Authenticator(Protocol):
    """One source of users."""

    async def log_in(self, login: Login) -> Rights | None:
        """What the user may do; None where this source does not know the user or the proof fails.

        Raises nothing but TooManyGuessesError: who cannot be asked lets nobody in.
        """
        ...


def attempt_source(peer_host: str) -> str:
    """Whom an address belongs to, as far as it shows."""
    try:
        address = ipaddress.ip_address(peer_host.partition("%")[0])
    except ValueError:
        return peer_host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, IPV6_SITE_BITS), strict=False))
    return str(address)
