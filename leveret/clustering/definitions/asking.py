"""Changes of definitions in a cluster: made by the controller, for clients of all nodes.

A node answers by itself what changes nothing, as clients declare what they use on each start: also
while ZooKeeper is away, and other changes cannot be written. Everything else a node that is not the
controller sends to that one, and answers its client once it has the change itself. That others
refuse a change is told as if this node had.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.changes import apply_change, vhost_of_change
from leveret.clustering.definitions.wire import (
    ChangeMessageError,
    ChangeRequest,
    NotControllingError,
    WrittenChange,
    pack_answer,
    pack_refusal,
    pack_request,
    parse_answer,
    parse_request,
)
from leveret.core.events import acting_as, actor
from leveret.core.names import stripped
from leveret.errors import AmqpError, ChannelError, ConnectionClosingError, StorageError
from leveret.links.errors import LinkError, PeerRefusedError
from leveret.ports.coordination import VALUE_BYTES_MAX
from leveret.ports.definition_changes import (
    AddBinding,
    AddQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DropDefinition,
    KeepDefinition,
    RemoveBinding,
    RemoveQueue,
)
from leveret.ports.definitions import ExchangeDefinition, QueueDefinition
from leveret.ports.link_kinds import CHANGE_DEFINITIONS
from leveret.storage.tagged_json import encode_arguments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from leveret.broker.broker import Broker
    from leveret.clustering.definitions.following import DefinitionRole
    from leveret.clustering.definitions.owners import QueueOwners
    from leveret.clustering.definitions.visibility import DefinitionVisibility
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links
    from leveret.ports.coordination import Coordinator
    from leveret.ports.definition_changes import ChangeOutcome, DefinitionChange
    from leveret.ports.definitions import Definition, Home

__all__ = ["ChangeTimes", "ClusterChanges"]

ARGUMENTS_BYTES_MAX: Final = VALUE_BYTES_MAX * 3 // 4  # names and other columns need some, too
REFUSED_REQUEST: Final = 1  # code of a request that makes no sense


class ChangeTimes(NamedTuple):
    """How long a client waits for a change in all, and how soon what has failed is tried again."""

    answer_seconds_max: float = 10.0
    retry_seconds: float = 0.1
    removal_retry_seconds: float = 1.0


class MadeChange(NamedTuple):
    """A change that was made here, and is to be written, in a term of the node's role."""

    request: ChangeRequest
    outcome: ChangeOutcome
    term: int


class ClusterChanges:
    """`DefinitionChanges` of a node of a cluster. `spawn` starts a task."""

    writes_first = True

    def __init__(
        self,
        broker: Broker,
        role: DefinitionRole,
        owners: QueueOwners,
        coordinator: Coordinator,
        spawn: Callable[[Coroutine[object, object, None]], asyncio.Task[None]],
        *,
        visibility: DefinitionVisibility,
        times: ChangeTimes,
    ) -> None:
        self._visibility = visibility
        self.links: Links  # set once they are open: they need `serve`
        self._broker = broker
        self._role = role
        self._owners = owners
        self._coordinator = coordinator
        self._spawn = spawn
        self._times = times
        self._removing: dict[str, asyncio.Task[None]] = {}  # by incarnations of queues

    # -- for clients of this node

    def make(
        self,
        change: DefinitionChange,
        owner: object | None,
        then: Callable[[ChangeOutcome], Awaitable[None] | None],
    ) -> Awaitable[None] | None:
        """Make a change, or have it made (see DefinitionChanges)."""
        home = self._owners.home_of(owner)
        _check_size(change)
        request = ChangeRequest(_at_home(change, home), actor.get(), home)
        if self._role.is_controlling:
            is_so = self._is_so(change)
            outcome = apply_change(self._broker, request.change, owner)
            if is_so or not self._broker.metadata.pending:
                return then(outcome)
            return self._written(MadeChange(request, outcome, self._role.term), owner, then)
        known = self._known_outcome(change, owner)
        if known is not None:
            return then(known)
        return self._asked(request, owner, then)

    async def _written(
        self,
        made: MadeChange,
        owner: object | None,
        then: Callable[[ChangeOutcome], Awaitable[None] | None],
    ) -> None:
        if made.term == self._role.term and await self._is_written(made.term):
            await _completed(then(made.outcome))
        else:  # it may be undone, and another node be the controller
            await self._asked(made.request, owner, then)

    async def _asked(
        self,
        request: ChangeRequest,
        owner: object | None,
        then: Callable[[ChangeOutcome], Awaitable[None] | None],
    ) -> None:
        count = self._ready_here(request.change)
        outcome = await self.ask(request, owner)
        await _completed(then(outcome._replace(message_count=max(count, outcome.message_count))))

    def _ready_here(self, change: DefinitionChange) -> int:
        """Return how many messages are ready in a queue to be deleted, as far as is known here.

        Raises ChannelError 406 if they or consumers forbid that: the controller may know less.
        """
        vhost = self._broker.vhosts.get(vhost_of_change(change))
        if vhost is None or not isinstance(change, DeleteQueue):
            return 0
        queue = self._broker.queue_here(vhost, change.name)
        if queue is None:
            return 0
        return self._broker.check_deletion(
            queue, if_unused=change.if_unused, if_empty=change.if_empty
        )

    def _known_outcome(
        self, change: DefinitionChange, owner: object | None
    ) -> ChangeOutcome | None:
        """Return the outcome of a change that changes nothing, None for another one.

        What is refused here is asked for: the controller may have what is not here yet.
        """
        if not self._is_so(change):
            return None
        try:
            return apply_change(self._broker, change, owner)
        except (AmqpError, StorageError):
            return None

    def _is_so(self, change: DefinitionChange) -> bool:
        """Whether what a change asks for is so already, by its name, and the coordinator has it."""
        vhost = self._broker.vhosts.get(vhost_of_change(change))
        found = None if vhost is None else _unchanged(vhost, change)
        return found is not None and self._role.is_certain(found)

    def remove_queue(self, vhost: Vhost, queue: DeclaredQueue) -> Awaitable[None] | None:
        """Have a queue deleted that nobody needs any more (see DefinitionChanges)."""
        if self._role.is_controlling:
            self._broker.drop_queue(vhost, queue)
            return None
        if queue.deleted:
            return None
        incarnation = queue.definition.incarnation
        removing = self._removing.get(incarnation)
        if removing is None:
            removing = self._removing[incarnation] = self._spawn(self._remove(queue))
        return removing

    async def _remove(self, queue: DeclaredQueue) -> None:
        definition, home = queue.definition, self._owners.home_of(None)
        change = RemoveQueue(definition.vhost, definition.name, definition.incarnation)
        try:
            while not queue.deleted:
                try:
                    await self.ask(ChangeRequest(change, actor.get(), home), None)
                except (AmqpError, StorageError):
                    await asyncio.sleep(self._times.removal_retry_seconds)
                else:
                    return
        finally:
            del self._removing[definition.incarnation]

    async def forward(self, definition: Definition, is_removal: bool) -> None:
        """Tell the controller what this node has changed (see ClusterDefinitions.forward)."""
        kind = DropDefinition if is_removal else KeepDefinition
        home = self._owners.home_of(None)
        try:
            await self.ask(ChangeRequest(kind(definition), actor.get(), home), None)
        except AmqpError as error:
            raise StorageError(error.explanation) from error

    # -- asking the controller

    async def ask(self, request: ChangeRequest, owner: object | None) -> ChangeOutcome:
        """Have a change made, and wait until this node has it.

        Raises what the change raises, and 541 where nobody makes it in time.
        """
        deadline = asyncio.get_running_loop().time() + self._times.answer_seconds_max
        try:
            while True:
                written = await self._attempt(request, owner, deadline)
                if written is not None:
                    break
            while self._role.applied < written.sequence and not self._role.is_controlling:
                await self._role.progress(deadline)
        except TimeoutError:
            raise self._unavailable() from None
        return written.outcome

    def _unavailable(self) -> ConnectionClosingError:
        controller = self._coordinator.controller
        who = (
            "the cluster has no controller"
            if controller is None
            else f"the controller, node {controller}, has not answered in time"
        )
        return ConnectionClosingError(541, f"definitions cannot be changed now: {who}")

    async def _attempt(
        self, request: ChangeRequest, owner: object | None, deadline: float
    ) -> WrittenChange | None:
        """Try once to have a change made; None if it must be tried again. Raises TimeoutError."""
        controller = self._coordinator.controller
        if self._role.is_controlling:
            return await self._made_here(request.change, owner)
        if controller is None or self._coordinator.is_controller:
            await self._role.progress(deadline)
            return None
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise TimeoutError
        try:
            answer = await self.links.peer(controller).request(
                CHANGE_DEFINITIONS, pack_request(request), timeout_s=left
            )
            return parse_answer(answer)
        except (LinkError, NotControllingError, ChangeMessageError):
            # A change that was made, though nobody has told, is made again: it changes nothing.
            await asyncio.sleep(min(self._times.retry_seconds, max(left, 0)))
            return None

    async def _made_here(
        self, change: DefinitionChange, owner: object | None
    ) -> WrittenChange | None:
        """Make a change; None if this node was not the controller any more."""
        term, is_so = self._role.term, self._is_so(change)
        outcome = apply_change(self._broker, change, owner)
        if is_so:
            await self._visibility.reached(self._coordinator.sequence)
        elif not await self._is_written(term):
            return None
        return WrittenChange(self._coordinator.sequence, outcome)

    async def _is_written(self, term: int) -> bool:
        """Write what was changed in a term of the role, and have all nodes apply it.

        Returns whether the term has not ended.

        Raises 541 if it cannot be written now; it may still be later.
        """
        try:
            await self._broker.metadata.flush()
        except StorageError as error:
            if term == self._role.term:
                text = f"definitions cannot be changed now: {error}"
                raise ConnectionClosingError(541, text) from error
        if term != self._role.term:
            return False
        await self._visibility.reached(self._coordinator.sequence)
        return term == self._role.term

    # -- for other nodes

    async def serve(self, peer: NodeIdentity, payload: memoryview) -> bytes:
        """Make a change that another node asks for, and answer once it is written."""
        try:
            request = parse_request(payload)
        except ChangeMessageError as error:
            raise PeerRefusedError(REFUSED_REQUEST, str(error)) from error
        home = request.asked_by
        if (home.node, home.session) != (peer.node, peer.session):
            raise PeerRefusedError(REFUSED_REQUEST, "a node asks for its own clients")
        try:
            with acting_as(request.actor):
                return pack_answer(await self._serve(request))
        except (AmqpError, StorageError, NotControllingError) as error:
            return pack_refusal(error)

    async def _serve(self, request: ChangeRequest) -> WrittenChange:
        if not self._role.is_controlling:
            raise NotControllingError
        home = request.asked_by
        owner = self._owners.owner(home) if home.connection else None
        written = await self._made_here(_at_home(request.change, home), owner)
        if written is None:
            raise NotControllingError
        return written


async def _completed(work: Awaitable[None] | None) -> None:
    if work is not None:
        await work


def _check_size(change: DefinitionChange) -> None:
    """Raise ChannelError 406 for arguments that the coordinator would not keep.

    Escaped as they are there, some take several times the bytes that they have on the wire.
    """
    match change:
        case DeclareExchange(arguments=arguments) | DeclareQueue(arguments=arguments):
            pass
        case AddBinding(binding):
            arguments = binding.arguments
        case _:
            return
    size = len(json.dumps(encode_arguments(arguments))) if arguments else 0
    if size > ARGUMENTS_BYTES_MAX:
        raise ChannelError(
            406,
            f"arguments that take {size} bytes as they are kept: a cluster keeps at most "
            f"{ARGUMENTS_BYTES_MAX} of one queue, exchange or binding",
        )


def _at_home(change: DefinitionChange, home: Home) -> DefinitionChange:
    """Return a change with the home of the queue that it may make."""
    match change:
        case DeclareQueue(durable=durable, exclusive=exclusive) if exclusive or not durable:
            lives = home if exclusive else home._replace(connection="")
            return replace(change, home=lives)
        case AddQueue(definition) if definition.exclusive or not definition.durable:
            lives = home if definition.exclusive else home._replace(connection="")
            return AddQueue(replace(definition, home=lives))
    return change


def _unchanged(vhost: Vhost, change: DefinitionChange) -> Definition | None:
    """Return the definition that is already as a change asks for, by its name; None if none is.

    One that is gone already has only what names it.
    """
    match change:
        case DeclareExchange() | DeleteExchange():
            return _unchanged_exchange(vhost, change)
        case DeclareQueue() | AddQueue() | DeleteQueue() | RemoveQueue():
            return _unchanged_queue(vhost, change)
        case AddBinding(binding) | RemoveBinding(binding):
            is_wanted = isinstance(change, AddBinding)
            found = vhost.with_present_name(binding)
            return found if vhost.has_binding(binding) is is_wanted else None
    return None


def _unchanged_exchange(
    vhost: Vhost, change: DeclareExchange | DeleteExchange
) -> ExchangeDefinition | None:
    name = stripped(change.name)
    exchange = vhost.exchanges.get(name)
    if isinstance(change, DeclareExchange):
        return None if exchange is None else exchange.definition
    return ExchangeDefinition(vhost.name, name, "") if exchange is None else None


def _unchanged_queue(
    vhost: Vhost, change: DeclareQueue | AddQueue | DeleteQueue | RemoveQueue
) -> QueueDefinition | None:
    match change:
        case DeclareQueue(name=name) | AddQueue(QueueDefinition(name=name)):
            queue = vhost.find_queue(name)
            return None if queue is None else queue.definition
    return QueueDefinition(vhost.name, change.name) if change.name not in vhost.queues else None
