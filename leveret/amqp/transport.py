"""What a connection asks of the side that owns its socket and the clock."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from leveret.amqp.unfinished import Unfinished
    from leveret.core.clients import Endpoints
    from leveret.core.logs.log_writer import Committing
    from leveret.ports.authentication import Rights


class LogLevel(IntEnum):
    """How much a line of the log matters; the numbers are those of Python's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Transport(Protocol):
    """What a connection asks of the socket's side."""

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
        """The user that the peer's verified certificate names; empty where there is none."""
        ...

    @property
    def rights(self) -> Rights | None:
        """What the peer may do, where it was authenticated before it came."""
        ...

    @property
    def endpoints(self) -> Endpoints:
        """Who is connected to where."""
        ...

    @property
    def monotonic_ns(self) -> Callable[[], int]:
        """A clock that nobody sets: nanoseconds from some moment."""
        ...

    @property
    def unfinished(self) -> Unfinished:
        """What all connections have half sent."""
        ...

    def wall_ms(self) -> int:
        """The time that records get."""
        ...

    def touch(self) -> None:
        """There is output: take it at the end of the turn."""
        ...

    def defer(self) -> None:
        """Call `go_on()` in a later turn, when others were served, and read nothing before."""
        ...

    async def others(self) -> None:
        """Until others have had their turn."""
        ...

    def wait_for(self, work: Awaitable[None]) -> None:
        """Read nothing until `work` is done, then call `resumed(error)`."""
        ...

    def hold(self, *, held: bool) -> None:
        """Read nothing while `held`."""
        ...

    def opened(self) -> None:
        """The handshake is over: the peer is a client, and no stranger any more."""
        ...

    def set_heartbeat(self, seconds: int) -> None:
        """Supervise the peer from now on."""
        ...

    def set_expiry(self, at_ms: int | None) -> None:
        """Call `credential_expired()` at that time since 1970, unless told otherwise before."""
        ...

    async def room(self) -> None:
        """Until the output is sent as far as the peer's reading allows."""
        ...

    async def committed(self, queues: Collection[Committing]) -> bool:
        """Until all that was published to `queues` so far is committed; False if some was lost."""
        ...

    def log(self, category: str, level: LogLevel, text: str, fields: Mapping[str, object]) -> None:
        """Tell the operator; `fields` are the parts of `text` for programs.

        `category` is `connection` or `channel`, which the operator may log from other levels on.
        """
        ...

    async def pause(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def close(self, *, after_seconds: float = 0) -> None:
        """Close the socket once the output is sent, at the latest after this time."""
        ...
