"""Ports of a node that does not lead: it passes clients on to the node that does.

A client that comes while no node leads is held for a while, and told so then. Whoever is passed on
belongs to that leader: its end is the end of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from leveret.cluster.passed_client import PassedClient, pass_client
from leveret.errors import LeveretError
from leveret.ports.authentication import attempt_source
from leveret.ports.listening import listen, listening_error
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from leveret.cluster.links.handshake import LinkIdentity
    from leveret.cluster.passed_client import LeaderAddress

__all__ = ["ClientPort", "ClientProxy"]

logger = logging.getLogger("leveret.cluster")

BACKLOG = 1024
RETRY_SECONDS = 0.1  # before it is looked again, for all, whether somebody leads
LOOK_SECONDS = 0.2  # how late it may be noticed that another node leads
PASS_SECONDS = 5  # for the leader to take a client: connection and handshake
PASSES_MAX = 16  # at a time: a leader answers so many handshakes at once
ACCEPT_RETRY_SECONDS = 1.0  # without file descriptors left: some will be closed meanwhile
CLOSE_SECONDS = 60.0  # for one end to read what is left, and to end, when the other one has ended
REFUSAL_SECONDS = 5.0  # for a client to say its first words, and to read the answer
REFUSED_SECONDS = 60.0  # until it is logged again that there is no place
WORDS_BYTES_MAX = 4096
NONE_LEADS = "none leads"
NOT_YET = "this node leads, and does not take it yet"
BUFFERED_BYTES_MAX = 1 << 20  # that one end has not read: then the other one is not read, either


class ClientPort(NamedTuple):
    """A port for clients, and what is told to those that no leader has taken in time.

    `unled` is for them if none leads, `untaken` if one does; empty: nothing is said.
    """

    protocol: str  # see PassedClient
    host: str
    port: int
    unled: bytes
    untaken: bytes


class ClientProxy:
    """Listens on the ports of clients from `open` to `stop_listening`, and holds who comes.

    `leader` returns who leads and as whom this node shows itself there, None while nobody does.
    `hold_seconds` is how long clients are held without a leader; `clients_max` limits all of them.
    """

    def __init__(
        self,
        leader: Callable[[], tuple[LinkIdentity, LeaderAddress] | None],
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        *,
        hold_seconds: float,
        clients_max: int,
    ) -> None:
        self._leader = leader
        self._spawn = spawn
        self._hold_seconds = hold_seconds
        self._clients_max = clients_max
        self._loop = asyncio.get_running_loop()
        self._listening: list[tuple[str, socket.socket, asyncio.Task[None]]] = []
        self._holding: set[asyncio.Task[None]] = set()
        self._waiting: defaultdict[str, WaitingClients] = defaultdict(WaitingClients)  # by protocol
        self._is_waking = False
        self._passing = asyncio.Semaphore(PASSES_MAX)
        self._relays: set[ClientRelay] = set()
        self._attempts: dict[asyncio.Timeout, LeaderAddress] = {}  # by what limits their time
        self._is_looking = False
        self._quiet_until = 0.0  # refusals are not logged
        self._take: Callable[[socket.socket, PassedClient], bool] | None = None

    def serve_here(self, take: Callable[[socket.socket, PassedClient], bool]) -> None:
        """Have all who are held taken by this node, which leads; `take` says if it is too early."""
        self._take = take
        self._wake()

    @property
    def _is_led(self) -> bool:
        """Whether it is known that a node leads, this one or another."""
        return self._take is not None or self._leader() is not None

    def _wake(self) -> None:
        """Have some of those who wait ask who leads, if anybody does: the others follow them."""
        is_led = self._is_led
        for waiting in self._waiting.values():
            if is_led:
                waiting.try_one()
            else:
                waiting.problem = NONE_LEADS

    def _wake_again(self) -> None:
        self._is_waking = False
        self._wake()
        if any(waiting.count for waiting in self._waiting.values()):
            self._wake_later()

    def _wake_later(self) -> None:
        """Look who leads after a while: one timer for all who wait."""
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_later(RETRY_SECONDS, self._wake_again)

    def _look(self) -> None:
        """End all that is for one who leads no more: it may hang, and never end it itself."""
        found = self._leader()
        for relay in list(self._relays):
            if self._is_former(relay.to, found):
                relay.abort()
        for limit, leader in self._attempts.items():
            if self._is_former(leader, found) and not limit.expired():
                limit.reschedule(self._loop.time())
        self._is_looking = False
        self._look_later()

    def _look_later(self) -> None:
        if (self._relays or self._attempts) and not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_SECONDS, self._look)

    def _is_former(
        self, leader: LeaderAddress, found: tuple[LinkIdentity, LeaderAddress] | None
    ) -> bool:
        """Whether another node leads by now, `found` or this one."""
        return self._take is not None or (found is not None and found[1] != leader)

    @property
    def held_count(self) -> int:
        """Number of clients that wait for a leader."""
        return len(self._holding)

    @property
    def passed_count(self) -> int:
        """Number of clients that are connected with a leader."""
        return len(self._relays)

    async def open(self, port: ClientPort) -> tuple[str, int]:
        """Listen on a port; return its first host and port. Raises LeveretError."""
        try:
            made = await listen(port.host, port.port, BACKLOG)
        except OSError as error:
            raise listening_error(port.protocol, port.host, port.port, error) from None
        for listening in made:
            accepting = self._spawn(self._accept(listening, port))
            self._listening.append((port.protocol, listening, accepting))
        host, number = made[0].getsockname()[:2]
        return host, number

    async def release_ports(self) -> dict[str, list[socket.socket]]:
        """Return the listening sockets, by protocol, to who accepts clients from now on.

        Who is held or was passed on stays.
        """
        listening, self._listening = self._listening, []
        tasks = [task for _, _, task in listening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found: dict[str, list[socket.socket]] = {}
        for protocol, made, _ in listening:
            found.setdefault(protocol, []).append(made)
        return found

    async def stop_listening(self) -> None:
        """Accept nobody any more, and free the ports; who is held or was passed on stays."""
        for sockets in (await self.release_ports()).values():
            for made in sockets:
                made.close()

    async def close(self) -> None:
        """End all connections."""
        await self.stop_listening()
        holding = list(self._holding)
        for task in holding:
            task.cancel()
        await asyncio.gather(*holding, return_exceptions=True)
        for relay in list(self._relays):
            relay.abort()

    async def _accept(self, listening: socket.socket, port: ClientPort) -> None:
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listening)
            except OSError as error:
                logger.error("cannot accept a connection: %s", error.strerror)  # noqa: TRY400
                await asyncio.sleep(ACCEPT_RETRY_SECONDS)
                continue
            if self.held_count + self.passed_count >= self._clients_max:
                self._tell_refused(address[0])
                accepted.close()
                continue
            here = accepted.getsockname()
            client = PassedClient(port.protocol, address[:2], here[:2])
            task = self._spawn(self._bring(accepted, client, port))
            self._holding.add(task)
            task.add_done_callback(self._holding.discard)
            task.add_done_callback(self._waiting[port.protocol].ended)

    def _tell_refused(self, host: str) -> None:
        """Log that clients are refused, once a minute: there may be thousands a second."""
        now = self._loop.time()
        if now < self._quiet_until:
            return
        self._quiet_until = now + REFUSED_SECONDS
        logger.warning(
            "refused a client at %s: %d are held or passed on, as many as connections_max and open "
            "files allow (each takes two); this is not logged again for a minute",
            *(host, self._clients_max),
            extra={"source": attempt_source(host)},
        )

    async def _bring(self, accepted: socket.socket, client: PassedClient, port: ClientPort) -> None:
        """Pass a client on, or refuse it when it has waited for long enough."""
        is_taken = False
        try:
            is_taken = await self._pass_within(accepted, client)
            if not is_taken:
                refusal = port.untaken if self._is_led else port.unled
                await self._refuse(accepted, client, refusal)
        finally:
            if not is_taken:
                accepted.close()

    async def _pass_within(self, accepted: socket.socket, client: PassedClient) -> bool:
        """Have a leader take a client within the time for that; False if none did."""
        began = self._loop.time()
        deadline = began + self._hold_seconds
        waiting = self._waiting[client.protocol]
        while True:
            found = None
            try:
                if self._take is None:
                    # A leader that answers needs its time for many, however short they are held.
                    async with self._passing_slot(max(deadline, began + PASS_SECONDS)):
                        found = self._leader()  # not before: it may change meanwhile
                        if found is not None and self._take is None:
                            passed = await self._pass(*found, client)
                            await self._relay(accepted, passed, found[1])
                            waiting.taken()
                            return True
                if self._take is not None and self._take(accepted, client):
                    waiting.taken()
                    return True
                waiting.problem = NONE_LEADS if self._take is None else NOT_YET
            except LeveretError as error:
                waiting.problem = str(error)
                if found is not None and self._is_former(found[1], self._leader()):
                    continue  # the time was lost on one who leads no more
            self._wake_later()
            if not await waiting.wait(deadline):
                source = {"source": attempt_source(client.peer[0])}
                logger.warning(
                    "refused a client at %s:%s: no node took it within %g s (%s)",
                    *(*client.peer, self._hold_seconds, waiting.problem),
                    extra=source,
                )
                return False

    @contextlib.asynccontextmanager
    async def _passing_slot(self, until: float) -> AsyncIterator[None]:
        """Wait until a leader may be asked, and let others do so behind. Raises LeveretError."""
        try:
            async with asyncio.timeout_at(until):
                await self._passing.acquire()
        except TimeoutError:
            raise LeveretError("too many others wait") from None
        try:
            yield
        finally:
            self._passing.release()

    async def _pass(
        self, identity: LinkIdentity, leader: LeaderAddress, client: PassedClient
    ) -> socket.socket:
        """Return a connection to the leader that has taken a client. Raises LeveretError.

        It is given up as soon as another node leads.
        """
        try:
            async with asyncio.timeout(PASS_SECONDS) as limit:
                self._attempts[limit] = leader
                self._look_later()
                try:
                    return await pass_client(identity, leader, client, secrets.token_bytes)
                finally:
                    del self._attempts[limit]
        # Of the time limit, too; the latter are of an address.
        except (OSError, LeveretError, ValueError, OverflowError) as error:
            reason = one_line(error) or "it did not answer in time"
            raise LeveretError(f"node {leader.node}: {reason}") from error

    async def _relay(
        self, accepted: socket.socket, passed: socket.socket, leader: LeaderAddress
    ) -> None:
        relay = ClientRelay(self._relays, leader)
        self._look_later()
        await self._loop.connect_accepted_socket(relay.leader, passed)
        await self._loop.connect_accepted_socket(relay.client, accepted)

    async def _refuse(self, accepted: socket.socket, client: PassedClient, refusal: bytes) -> None:
        """Answer a client's first words."""
        if not refusal:
            return
        try:
            async with asyncio.timeout(REFUSAL_SECONDS):
                if await self._loop.sock_recv(accepted, WORDS_BYTES_MAX):
                    await self._loop.sock_sendall(accepted, refusal)
                    while await self._loop.sock_recv(accepted, WORDS_BYTES_MAX):
                        pass  # to close with unread input would take back what was sent
        except OSError as error:
            logger.debug("a client at %s:%s was not told: %s", *client.peer, error)


class WaitingClients:
    """Clients of one protocol that wait for a leader which takes them.

    One of them asks for all, each in its turn, until one is taken: then others ask behind it, no
    more than PASSES_MAX at a time. `problem` is why the last one that asked was not taken.
    """

    def __init__(self) -> None:
        self.problem = NONE_LEADS
        self._waiting: OrderedDict[asyncio.Future[bool], asyncio.Task[Any]] = OrderedDict()
        self._asking: set[asyncio.Task[Any]] = set()

    @property
    def count(self) -> int:
        """Number of those who do not ask at present."""
        return len(self._waiting)

    async def wait(self, deadline: float) -> bool:
        """Have this client's task wait, behind all others, to ask again; False: for too long."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None, "a coroutine runs"
        self.ended(task)
        if loop.time() >= deadline:
            return False
        turn: asyncio.Future[bool] = loop.create_future()
        self._waiting[turn] = task
        limit = loop.call_at(deadline, self._give, turn, False)
        try:
            return await turn
        finally:
            limit.cancel()
            self._waiting.pop(turn, None)

    def try_one(self) -> None:
        """Have the next one ask, unless somebody does."""
        self._fill(1)

    def taken(self) -> None:
        """Note that this client's task has found a leader that takes clients."""
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs"
        self.ended(task)
        self._fill(PASSES_MAX)

    def ended(self, task: asyncio.Task[Any]) -> None:
        """Note that a client's task does not ask any more."""
        self._asking.discard(task)

    def _fill(self, asking_max: int) -> None:
        while self._waiting and len(self._asking) < asking_max:
            turn, task = self._waiting.popitem(last=False)
            self._asking.add(task)
            self._give(turn, True)

    def _give(self, turn: asyncio.Future[bool], answer: bool) -> None:
        self._waiting.pop(turn, None)
        if not turn.done():
            turn.set_result(answer)


class ClientRelay:
    """Passes bytes between a client and the leader that it is connected `to`, until one ends."""

    def __init__(self, present: set[ClientRelay], to: LeaderAddress) -> None:
        self.to = to
        self._present = present
        self._ends = RelayEnd(self), RelayEnd(self)
        self._ends[0].other, self._ends[1].other = self._ends[1], self._ends[0]
        present.add(self)

    def client(self) -> RelayEnd:
        """Return the protocol of the client's connection."""
        return self._ends[0]

    def leader(self) -> RelayEnd:
        """Return the protocol of the connection to the leader."""
        return self._ends[1]

    def ended(self, end: RelayEnd) -> None:
        """End the other connection once what it was sent is written."""
        self._present.discard(self)
        end.other.close()

    def abort(self) -> None:
        """End both connections at once."""
        self._present.discard(self)
        for end in self._ends:
            end.abort()


class RelayEnd(asyncio.Protocol):
    """One of the two connections; it reads as long as the `other` one takes what it is sent."""

    other: RelayEnd

    def __init__(self, relay: ClientRelay) -> None:
        self._relay = relay
        self._transport: asyncio.Transport | None = None
        self._early = b""  # what is to be sent before there is a connection
        self._is_over = False
        self._closing: asyncio.TimerHandle | None = None
        self.is_read = False  # to its end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to pass on what comes."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        if self._is_over:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=BUFFERED_BYTES_MAX)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._early:
            self._transport.write(self._early)

    def write(self, data: bytes) -> None:
        """Send what the other end has read."""
        if self._transport is not None:
            self._transport.write(data)
        elif not self._is_over:
            self._early += data

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        self.other.write(data)

    def eof_received(self) -> bool:
        """Pass on that nothing more comes from this end; it may still be sent something."""
        self.is_read = True
        return not self.other.is_read and self.other.write_eof()

    def write_eof(self) -> bool:
        """Send the end of the input, if the connection can stay half open."""
        if self._transport is None or not self._transport.can_write_eof():
            return False
        self._transport.write_eof()
        self._limit_end()
        return True

    def pause_writing(self) -> None:
        """Have the other end read nothing."""
        self.other.pause_reading()

    def resume_writing(self) -> None:
        """Have the other end read again."""
        self.other.resume_reading()

    def pause_reading(self) -> None:
        """Read nothing for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # of either, the end
        """End the other connection, too."""
        self._is_over, self._transport = True, None
        if self._closing is not None:
            self._closing.cancel()
        self._relay.ended(self)

    def close(self) -> None:
        """End the connection once all is written, or is not read in time."""
        self._is_over = True
        if self._transport is not None:
            self._transport.close()
            self._limit_end()

    def _limit_end(self) -> None:
        """Leave some time to end: who neither reads nor ends would keep its place for ever."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()
