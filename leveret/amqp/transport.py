"""Interface between a connection machine and the owner of its socket and clock."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from leveret.core.clients import Endpoints
    from leveret.core.logs.log_writer import Committing
    from leveret.ports.authentication import Rights


class LogLevel(IntEnum):
    """Level of a log line; the numbers are those of Python's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Transport(Protocol):
    """Owner of a connection's socket and clock."""

    @property
    def writable(self) -> bool:
        """Whether the peer keeps up with what is sent."""
        ...

    @property
    def peer_is_loopback(self) -> bool:
        """Whether the peer is on this machine."""
        ...

    @property
    def certificate_login(self) -> str:
        """User named by the peer's verified certificate; empty without one."""
        ...

    @property
    def rights(self) -> Rights | None:
        """Rights of a peer that was authenticated before it connected, else None."""
        ...

    @property
    def endpoints(self) -> Endpoints:
        """Addresses of both ends."""
        ...

    @property
    def monotonic_ns(self) -> Callable[[], int]:
        """Monotonic clock, in nanoseconds from an arbitrary moment."""
        ...

    def wall_ms(self) -> int:
        """Return the time that records get, in ms since 1970."""
        ...

    def touch(self) -> None:
        """Schedule the output to be sent at the end of the turn."""
        ...

    def defer(self) -> None:
        """Call `go_on()` in a later turn, after others were served; read nothing before."""
        ...

    async def others(self) -> None:
        """Wait until other connections have had their turn."""
        ...

    def wait_for(self, work: Awaitable[None]) -> None:
        """Read nothing until `work` is done, then call `resumed(error)`."""
        ...

    def hold(self, *, held: bool) -> None:
        """Stop reading while `held`."""
        ...

    def opened(self) -> None:
        """Note that the handshake is over: limits for strangers no longer apply."""
        ...

    def set_heartbeat(self, seconds: int) -> None:
        """Start heartbeats of this interval."""
        ...

    def set_expiry(self, at_ms: int | None) -> None:
        """Call `credential_expired()` at that time (ms since 1970), or not at all for None."""
        ...

    async def room(self) -> None:
        """Wait until the output is sent as far as the peer's reading allows."""
        ...

    async def committed(self, queues: Collection[Committing]) -> bool:
        """Wait until all publishes to `queues` so far are committed; False if some were lost."""
        ...

    def log(self, category: str, level: LogLevel, text: str, fields: Mapping[str, object]) -> None:
        """Write a log line; `fields` are the parts of `text` for programs.

        `category` is `connection` or `channel`, for which operators can set a level of their own.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Sleep for this time."""
        ...

    def close(self, *, after_seconds: float = 0) -> None:
        """Close the socket once the output is sent, at the latest after this time."""
        ...
