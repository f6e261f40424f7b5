"""Connections to a broker for one conversation, names of its own, and the transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from interop_tests.differential.client import Channel, Connection, Observer, Wire
from interop_tests.differential.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Callable

    from interop_tests.brokers import Address


class Talk:
    """One conversation with one broker; names are prefixed so that conversations do not meet."""

    def __init__(self, address: Address, prefix: str) -> None:
        self.address = address
        self.prefix = prefix
        self.transcript = Transcript(prefix)
        self._wires: list[Wire] = []
        self._names: list[str] = []

    def name(self, word: str) -> str:
        """A queue or exchange name of this conversation; removed when it ends."""
        name = f"{self.prefix}{word}"
        if name not in self._names:
            self._names.append(name)
        return name

    def wire(self) -> Connection:
        """A fresh socket on which nothing was said yet."""
        label = "ABCDEFGH"[len(self._wires)]
        connection = Connection(self.address, self.transcript, label)
        self._wires.append(connection)
        return connection

    def connection(self, **options: Any) -> Connection:
        """An open connection."""
        connection = self.wire()
        connection.handshake(**options)
        return connection

    def channel(self, **options: Any) -> Channel:
        """Channel 1 of a new connection."""
        return self.connection(**options).channel()

    def note(self, text: str) -> None:
        """Write something the test found out itself."""
        self.transcript.add(f"* {text}")

    def await_messages(self, queue: str, ready: int) -> None:
        """Wait until so many messages are ready: for effects that no reply announces."""
        with Observer(self.address) as observer:
            seen = observer.await_counts(
                queue, lambda counts: counts is not None and counts[0] == ready
            )
        self.note(f"{queue} has {ready} ready" if seen else f"{queue} never had {ready} ready")

    def await_gone(self, queue: str) -> None:
        """Wait until there is no such queue."""
        with Observer(self.address) as observer:
            seen = observer.await_counts(queue, lambda counts: counts is None)
        self.note(f"{queue} is gone" if seen else f"{queue} is still there")

    def finish(self) -> list[str]:
        """Close the sockets, remove the names and return the transcript."""
        for wire in self._wires:
            wire.socket.close()
        with Observer(self.address) as observer:
            observer.delete(self._names, self._names)
        return self.transcript.lines


def hold(conversation: Callable[[Talk], None], address: Address, run: int) -> list[str]:
    """Hold a conversation with a broker and return its transcript."""
    talk = Talk(address, f"{conversation.__name__}.{run}.")
    try:
        conversation(talk)
    except Exception as error:  # noqa: BLE001 - a broken answer is a line to compare, too
        talk.note(f"the conversation broke off: {type(error).__name__}: {error}")
    return talk.finish()
