"""One shovel at work: connects, moves messages, and connects again after its delay.

States are RabbitMQ's: `starting`, `running` (shown as `blocked` or `flow` where the destination
takes nothing), `terminated` with a reason, until the next attempt.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pamqp import commands

from leveret.amqp.client import ClientError
from leveret.amqp.methods import build
from leveret.features.shovels.rewriting import MessageRewriter
from leveret.features.shovels.transfer import (
    Block,
    Complete,
    Delivered,
    ForwardMessage,
    Settle,
    ShovelTransfer,
    TransferError,
)
from leveret.features.shovels.uris import AmqpUri, InvalidUriError, without_credentials
from leveret.ports.log_text import one_line, quoted
from leveret.shovels.ends import CHANNEL, consume, prepare_destination, prepare_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.amqp.client import AmqpClient, ClientEvents
    from leveret.amqp.client_frames import Content
    from leveret.features.shovels.parameters import ShovelDefinition, ShovelEnd
    from leveret.features.shovels.transfer import Effect
    from leveret.shovels.dialing import ShovelDialer

__all__ = ["ShovelRunner"]

logger = logging.getLogger("leveret.shovel")

RECONNECT_SECONDS_MIN: Final = 0.05  # attempts cost both brokers something
PENDING_AT_ONCE: Final = 50  # pending deliveries that are published before others have their turn


class _Ended(Exception):  # noqa: N818  # it is no error that the last message is moved
    """All is moved that should be."""


class ShovelRunner:
    """Runs one shovel. `wall_ms()` is the clock; `changed(runner)` is told of each state."""

    def __init__(
        self,
        shovel: ShovelDefinition,
        dialer: ShovelDialer,
        cluster_name: Callable[[], str],
        wall_ms: Callable[[], int],
        changed: Callable[[ShovelRunner], None],
    ) -> None:
        self.shovel = shovel
        self._dialer = dialer
        self._cluster_name = cluster_name
        self._wall_ms = wall_ms
        self._changed = changed
        self._state = "starting"
        self.reason = ""  # of the termination
        self.since_ms = wall_ms()
        self.uris = ("", "")  # of source and destination, without credentials
        self.transfer: ShovelTransfer | None = None
        self._forwarded = 0  # of earlier transfers

    @property
    def state(self) -> str:
        """State as lists show it."""
        return self.transfer.state if self.transfer is not None else self._state

    @property
    def forwarded(self) -> int:
        """Number of messages published since the shovel was started here."""
        current = self.transfer.forwarded if self.transfer is not None else 0
        return self._forwarded + current

    async def run(self) -> bool:
        """Move messages until all is moved that should be.

        Returns False where it has ended and must not be tried again (reconnect-delay 0).
        """
        while True:
            self._be("starting")
            try:
                await self._attempt()
            except _Ended:
                return True
            except (ClientError, TransferError, TimeoutError, ValueError, OverflowError) as error:
                # The last two: arguments, or properties, that no frame can hold.
                reason = str(error) or "the broker did not answer in time"
                self._be("terminated", reason)
                logger.error(  # noqa: TRY400  # the text says all there is to say
                    "Shovel %s in virtual host %s has ended: %s",
                    quoted(self.shovel.name),
                    quoted(self.shovel.vhost),
                    one_line(reason),
                )
            if not self.shovel.reconnect_seconds:
                return False
            await asyncio.sleep(max(self.shovel.reconnect_seconds, RECONNECT_SECONDS_MIN))

    def _be(self, state: str, reason: str = "") -> None:
        self._state, self.reason, self.since_ms = state, reason, self._wall_ms()
        self._changed(self)

    async def _attempt(self) -> NoReturn:
        """Connect and move messages. Raises _Ended, ClientError, TransferError, TimeoutError."""
        ends = _ShovelEnds()
        clients: list[AmqpClient] = []
        try:
            source, source_uri = await self._connect(self.shovel.source, ends.source, "source")
            clients.append(source)
            destination, destination_uri = await self._connect(
                self.shovel.destination, ends.destination, "destination"
            )
            clients.append(destination)
            self.uris = (source_uri, destination_uri)
            await prepare_destination(destination, self.shovel)
            queue, remaining = await prepare_source(source, self.shovel)
            if remaining == 0:
                raise _Ended
            rewriter = MessageRewriter(self.shovel, self._cluster_name(), *self.uris)
            transfer = ShovelTransfer(self.shovel, rewriter, remaining)
            work = _Mover(transfer, source, destination, self._wall_ms)
            ends.follow(work)
            await consume(source, self.shovel, queue)
            self.transfer = transfer
            self._be("running")
            await work.ended
            # What was acknowledged last must be so before the shovel is no more.
            await source.close()
            raise _Ended
        finally:
            if self.transfer is not None:
                self._forwarded += self.transfer.forwarded
                self.transfer = None
            for client in clients:
                await asyncio.shield(client.close())

    async def _connect(
        self, end: ShovelEnd, events: ClientEvents, what: str
    ) -> tuple[AmqpClient, str]:
        """Return a connection by the first URI that works, in random order, and that URI.

        Raises ClientError.
        """
        name = f"Shovel {self.shovel.name}"
        uris: list[AmqpUri] = [AmqpUri("", 0, self.shovel.vhost)]
        texts = [""]
        if end.uris:
            texts = random.sample(end.uris, len(end.uris))  # as RabbitMQ does
            uris = [_parsed(text) for text in texts]
        failures = []
        for text, uri in zip(texts, uris, strict=True):
            shown = without_credentials(text)
            try:
                return await self._dialer.connect(uri, name, events), shown
            except ClientError as error:
                failures.append(f"{shown}: {error}" if len(uris) > 1 else f"{error}")
                logger.warning(
                    "Shovel %s in vhost %s failed to connect (URI: %s): %s",
                    quoted(self.shovel.name),
                    quoted(self.shovel.vhost),
                    one_line(shown),
                    one_line(error),
                )
        raise ClientError(f"could not connect to {what}: {'; '.join(failures)}")


def _parsed(text: str) -> AmqpUri:
    try:
        return AmqpUri.parse(text)
    except InvalidUriError as error:
        raise ClientError(f"not a valid URI: {error}") from None


class _Mover:
    """Carries out what a transfer says, on both connections. Events may not raise: `ended` does."""

    def __init__(
        self,
        transfer: ShovelTransfer,
        source: AmqpClient,
        destination: AmqpClient,
        wall_ms: Callable[[], int],
    ) -> None:
        self._transfer = transfer
        self._source = source
        self._destination = destination
        self._wall_ms = wall_ms
        self._loop = asyncio.get_running_loop()
        # Its result: all is moved.
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.ended.add_done_callback(_seen)

    def fail(self, error: Exception) -> None:
        """End the transfer."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def delivered(self, content: Content) -> None:
        """Forward a message."""
        method = content.method
        message = Delivered(
            method.delivery_tag, method.exchange, method.routing_key, content.header, content.body
        )
        self._do(lambda: self._transfer.delivered(message, self._wall_ms()))

    def confirmed(self, method: commands.Basic.Ack | commands.Basic.Nack) -> None:
        """Settle what the destination has answered for."""
        refused = isinstance(method, commands.Basic.Nack)
        settle = self._transfer.refused if refused else self._transfer.confirmed
        number = method.delivery_tag or 0
        self._do(lambda: settle(number, multiple=bool(method.multiple)))

    def returned(self) -> None:
        """End: a message had nowhere to go."""
        self._do(self._lost_queue)

    def _lost_queue(self) -> list[Effect]:
        self._transfer.returned()
        return []

    def block(self, block: Block, *, is_blocked: bool) -> None:
        """Stop publishing and reading, or go on."""
        if is_blocked:
            self._transfer.blocked(block)
            self._source.pause()
        elif self._transfer.unblocked(block):
            self._go_on()
        elif self._transfer.accepts:
            self._source.resume()

    def _go_on(self) -> None:
        """Publish some of what is pending, the rest in later turns; then read again."""
        for _ in range(PENDING_AT_ONCE):
            if self.ended.done() or not self._transfer.accepts:
                return
            if not self._transfer.pending_count:
                self._source.resume()
                return
            self._do(lambda: self._transfer.next_pending(self._wall_ms()))
        self._loop.call_soon(self._go_on)

    def _do(self, decide: Callable[[], list[Effect]]) -> None:
        if self.ended.done():
            return
        try:
            for effect in decide():
                self._perform(effect)
        except (TransferError, ValueError) as error:  # ValueError: what no frame can hold
            self.fail(error if isinstance(error, TransferError) else TransferError(str(error)))

    def _perform(self, effect: Effect) -> None:
        match effect:
            case ForwardMessage(exchange, routing_key, header, body, mandatory):
                method = build(
                    commands.Basic.Publish,
                    ticket=0,
                    exchange=exchange,
                    routing_key=routing_key,
                    mandatory=mandatory,
                    immediate=False,
                )
                self._destination.publish(method, header, body, CHANNEL)
            case Settle(tag, multiple, requeue):
                settle: Any = commands.Basic.Ack(tag, multiple)
                if requeue:
                    settle = commands.Basic.Nack(tag, multiple, True)
                self._source.send(settle, CHANNEL)
            case Complete():
                self.ended.set_result(None)


def _seen(ended: asyncio.Future[None]) -> None:
    """Look at the error of an end that nobody waits for any more."""
    if not ended.cancelled():
        ended.exception()


class _ShovelEnds:
    """Events of both connections, until the transfer takes them and afterwards."""

    def __init__(self) -> None:
        self.source = _EndEvents("source")
        self.destination = _EndEvents("destination")

    def follow(self, mover: _Mover) -> None:
        """Tell a transfer of all that comes from now on, and of what has come."""
        self.source.follow(mover)
        self.destination.follow(mover)


class _EndEvents:
    """`ClientEvents` of one end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._mover: _Mover | None = None
        self._before: list[Callable[[_Mover], None]] = []  # a few: nothing is consumed yet

    def follow(self, mover: _Mover) -> None:
        """Tell `mover` of everything."""
        self._mover = mover
        for told in self._before:
            told(mover)
        self._before.clear()

    def _tell(self, told: Callable[[_Mover], None]) -> None:
        if self._mover is None:
            self._before.append(told)
        else:
            told(self._mover)

    def delivered(self, content: Content) -> None:
        """Take a message of a consumer."""
        if self._mover is not None:
            self._mover.delivered(content)

    def confirmed(self, method: commands.Basic.Ack | commands.Basic.Nack) -> None:
        """Take a confirm, or a refusal."""
        if self._mover is not None:
            self._mover.confirmed(method)

    def returned(self) -> None:
        """Take that a mandatory message was not routed."""
        if self._mover is not None:
            self._mover.returned()

    def blocked(self, *, is_blocked: bool) -> None:
        """Take that the broker reads no more publishes, or reads them again."""
        if self._name == "destination":
            self._tell(lambda mover: mover.block(Block.BLOCKED, is_blocked=is_blocked))

    def writable(self, *, is_writable: bool) -> None:
        """Take that the connection should be sent no more, or may be again."""
        if self._name == "destination":
            self._tell(lambda mover: mover.block(Block.FLOW, is_blocked=not is_writable))

    def ended(self, reason: str) -> None:
        """Take that the connection, a channel or a consumer has ended."""
        error = TransferError(f"{self._name} connection failed: {reason}")
        self._tell(lambda mover: mover.fail(error))
