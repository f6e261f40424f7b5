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
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from leveret.cluster.client_relay import ClientRelay
from leveret.cluster.passed_client import PassedClient, pass_client
from leveret.cluster.waiting_clients import NONE_LEADS, PASSES_MAX, WaitingClients
from leveret.errors import LeveretError
from leveret.ports.authentication import attempt_source
from leveret.ports.listening import listen, listening_error
from leveret.ports.log_text import one_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from typing import Any

    from leveret.cluster.links.handshake import LinkIdentity
    from leveret.cluster.passed_client import LeaderAddress

__all__ = ["ClientPort", "ClientProxy"]

logger = logging.getLogger("leveret.cluster")

BACKLOG = 1024
RETRY_SECONDS = 0.1  # before it is looked again, for all, whether somebody leads
LOOK_SECONDS = 0.2  # how late it may be noticed that another node leads
PASS_SECONDS = 5  # for the leader to take a client: connection and handshake
ACCEPT_RETRY_SECONDS = 1.0  # without file descriptors left: some will be closed meanwhile
REFUSAL_SECONDS = 5.0  # for a client to say its first words, and to read the answer
REFUSED_SECONDS = 60.0  # until it is logged again that there is no place
WORDS_BYTES_MAX = 4096
NOT_YET = "this node leads, and does not take it yet"


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
        deadline = self._loop.time() + self._hold_seconds
        waiting = self._waiting[client.protocol]
        while True:
            found = None
            try:
                if self._take is None:
                    # A leader that answers needs its time for many, however short they are held,
                    # and those past their time wait behind newcomers.
                    async with self._passing_slot(max(deadline, self._loop.time() + PASS_SECONDS)):
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
