"""Role of this node towards the definitions: it changes them, or follows who does.

While it follows, it takes over what comes from the coordinator, write by write. As the controller
it is ahead of the coordinator, and does not look at what it has written itself. When it ceases to
be the controller, or could not write, it begins anew: it compares all that it has with all that the
coordinator has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.clustering.definitions.owners import RemoteOwner
from leveret.core.events import INTERNAL_USER, acting_as
from leveret.errors import AmqpError, StorageError
from leveret.ports.definitions import (
    BindingDefinition,
    ExchangeDefinition,
    QueueDefinition,
    VhostDefinition,
)
from leveret.replication.cluster_definitions import (
    DEFINITIONS_PREFIX,
    decode_definition,
    definition_key,
    encode_definition,
)
from leveret.storage.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    from leveret.broker.broker import Broker
    from leveret.clustering.definitions.applying import NodeDefinitions
    from leveret.clustering.definitions.owners import QueueOwners
    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.vhost import Vhost
    from leveret.ports.coordination import Coordinator, KeyChange
    from leveret.ports.definitions import Definition
    from leveret.replication.cluster_definitions import ClusterDefinitions

__all__ = ["DefinitionRole"]

logger = logging.getLogger(__name__)

# Definitions that belong to others come after those, and are removed before them.
ORDER: Final = {kind: number for number, kind in enumerate(TABLES)}
COMPARE_AGAIN_MS: Final = 5000  # after what could not be had here
LOOKED_AT: Final = 50  # definitions compared between two looks at the clock


class Followed(NamedTuple):
    """Changes of the coordinator up to a write; None: begin anew."""

    sequence: int
    changes: Sequence[KeyChange] | None


class DefinitionRole:
    """Follows the definitions of the coordinator, and knows whether this node may change them.

    `begun()` is called when it may, from then on, `advanced(sequence)` when more is applied;
    `unowned(vhost, queue)` with an exclusive queue
    of a connection of this node that has ended.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        store: ClusterDefinitions,
        node: NodeDefinitions,
        broker: Broker,
        owners: QueueOwners,
    ) -> None:
        self.is_controlling = False
        self.term = 0  # grows when it begins anew: what was changed before may not be there
        self.applied = 0  # number of the last write that this node has taken over
        self.begun: Callable[[], None] = lambda: None
        self.advanced: Callable[[int], None] = lambda _sequence: None
        self.unowned: Callable[[Vhost, DeclaredQueue], object] = lambda _vhost, _queue: None
        self._coordinator = coordinator
        self._store = store
        self._node = node
        self._broker = broker
        self._owners = owners
        self._queued: deque[Followed] = deque()
        self._is_working = False
        self._is_ahead = True  # there may be here what nobody will write
        self._compares_later = False
        self._known: dict[str, Definition] = {}  # by key, while it follows
        self._names: dict[str, str] = {}  # of those that are queues, by incarnation
        # Bindings whose ends may come with the next write: one flush may take several.
        self._dangling: dict[str, BindingDefinition] = {}
        self._progress: list[asyncio.Future[None]] = []
        self._set_role(is_controlling=False)

    def start(self) -> None:
        """Begin with what the coordinator has now."""
        self._coordinator.follow(self._changed)
        self._coordinator.follow_controller(self._look)
        self._coordinator.follow_nodes(self._clean_up)
        self._coordinator.follow_connection(self._store.retry)
        self._store.lost = self._begin_anew
        self._begin_anew()

    async def progress(self, deadline: float) -> None:
        """Wait until the role may have changed, or more is applied. Raises TimeoutError.

        `deadline` is a time of the event loop.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress.append(future)
        try:
            async with asyncio.timeout_at(deadline):
                await future
        finally:
            if future in self._progress:
                self._progress.remove(future)

    def _tell_progress(self) -> None:
        waiting, self._progress = self._progress, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def is_certain(self, definition: Definition) -> bool:
        """Whether this node has of a definition what the coordinator has, or had a moment ago."""
        return not self._is_ahead and self._store.is_written(definition)

    # -- the role

    def _begin_anew(self) -> None:
        """Follow, beginning with a comparison of everything."""
        self._set_role(is_controlling=False)
        self._is_ahead = True
        self.term += 1
        self._queued.clear()
        self._queue(Followed(self._coordinator.sequence, None))

    def _set_role(self, *, is_controlling: bool) -> None:
        self.is_controlling = is_controlling
        self._store.is_following = not is_controlling
        self._broker.events.follows_definitions = not is_controlling

    def _look(self) -> None:
        """Take the role that the coordinator says, once everything is applied."""
        if self.is_controlling and not self._coordinator.is_controller:
            self._begin_anew()
        elif not (self.is_controlling or self._is_working) and self._coordinator.is_controller:
            self._set_role(is_controlling=True)
            self._forget_known()
            self._clean_up()
            self.begun()
        self._tell_progress()

    def _changed(self, sequence: int, changes: Sequence[KeyChange]) -> None:
        """Note what was written (see ports.coordination.ChangesCallback)."""
        if self.is_controlling and not self._coordinator.is_controller:
            self._begin_anew()
        elif self.is_controlling:
            self._advance(sequence)
        else:
            ours = [each for each in changes if each.key.startswith(DEFINITIONS_PREFIX)]
            if ours or self._queued:
                self._queue(Followed(sequence, ours))
            else:
                self._advance(sequence)

    def _advance(self, sequence: int) -> None:
        self.applied = max(self.applied, sequence)
        self.advanced(self.applied)
        self._tell_progress()

    # -- what is to be applied

    def _queue(self, followed: Followed) -> None:
        self._queued.append(followed)
        if not self._is_working:
            self._is_working = True
            self._broker.chores.begin(self._work())

    def _work(self) -> Generator[None]:
        try:
            while self._queued:
                followed = self._queued.popleft()
                if followed.changes is None:
                    yield from self._compare()
                    self._is_ahead = any(each.changes is None for each in self._queued)
                else:
                    yield from self._apply(self._parsed(followed.changes))
                if not self._queued or self._queued[0].changes is not None:
                    self._advance(followed.sequence)
        finally:
            self._is_working = False
        self._look()

    def _parsed(self, changes: Iterable[KeyChange]) -> dict[str, Definition | None]:
        parsed: dict[str, Definition | None] = {}
        for change in changes:
            if change.value is None:
                parsed[change.key] = None
                continue
            try:
                parsed[change.key] = decode_definition(change.key, change.value)
            except ValueError as error:
                logger.warning("%s: it is left out", error)
        return parsed

    def _compare(self) -> Generator[None]:
        """Have what the coordinator has, whatever there is here."""
        wanted = self._store.wanted()
        self._forget_known()
        changes: dict[str, Definition | None] = {}
        for number, definition in enumerate(self._node.present()):
            key = definition_key(definition)
            self._note(key, definition)
            value = wanted.pop(key, None)
            if value is None:
                changes[key] = None
            elif value != encode_definition(definition):
                changes |= self._decoded(key, value)
            if number % LOOKED_AT == LOOKED_AT - 1:
                yield
        for number, (key, value) in enumerate(wanted.items()):
            changes |= self._decoded(key, value)
            if number % LOOKED_AT == LOOKED_AT - 1:
                yield
        yield from self._apply(changes)

    def _decoded(self, key: str, value: bytes) -> dict[str, Definition]:
        try:
            return {key: decode_definition(key, value)}
        except ValueError as error:
            logger.warning("%s: it is left out", error)
            return {}

    def _forget_known(self) -> None:
        self._known.clear()
        self._names.clear()
        self._dangling.clear()

    def _note(self, key: str, definition: Definition) -> None:
        self._known[key] = definition
        if isinstance(definition, QueueDefinition):
            self._names[definition.incarnation] = definition.name

    def _apply(self, changes: Mapping[str, Definition | None]) -> Generator[None]:
        """Apply changes in an order in which each finds what it belongs to."""
        put = [(key, each) for key, each in changes.items() if each is not None]
        put.sort(key=lambda item: ORDER[type(item[1])])
        kept = {each.incarnation for _, each in put if isinstance(each, QueueDefinition)}
        gone = [
            (key, self._known.pop(key))
            for key, each in changes.items()
            if each is None and key in self._known
        ]
        gone.sort(key=lambda item: _removal_order(item[1]))
        for _, definition in gone:
            if isinstance(definition, QueueDefinition):
                if definition.incarnation in kept:
                    continue  # it has another name
                self._names.pop(definition.incarnation, None)
            self._run(self._node.remove, definition)
            yield
        for key, definition in put:
            self._put(key, definition)
            yield

    def _put(self, key: str, definition: Definition) -> None:
        former = None
        if isinstance(definition, QueueDefinition):
            former = self._names.get(definition.incarnation)
        self._note(key, definition)
        if self._run(lambda each: self._node.put(each, former), definition):
            self._bind_again(definition)
        if isinstance(definition, BindingDefinition):
            if not self._node.has_binding(definition):
                self._dangling[key] = definition
        elif self._dangling and isinstance(definition, ExchangeDefinition | QueueDefinition):
            self._bind_dangling()
        if isinstance(definition, QueueDefinition):
            self._check_owner(definition)

    def _bind_dangling(self) -> None:
        for key, binding in list(self._dangling.items()):
            is_wanted = self._known.get(key) is binding
            if is_wanted:
                self._run(self._node.put, binding)
            if not is_wanted or self._node.has_binding(binding):
                del self._dangling[key]

    def _run(self, apply: Callable[[Definition], bool | None], definition: Definition) -> bool:
        """Apply one change; one that is impossible here is reported, and left out."""
        self._store.is_applying = True
        try:
            return bool(apply(definition))
        except AmqpError as error:
            self._broker.report(definition, error)
        except StorageError as error:  # perhaps the disk is full
            self._broker.report(definition, error)
            self._compare_later()
        finally:
            self._store.is_applying = False
        return False

    def _compare_later(self) -> None:
        if not self._compares_later:
            self._compares_later = True
            self._broker.timers.after(COMPARE_AGAIN_MS, self._compare_again)

    def _compare_again(self) -> None:
        self._compares_later = False
        if not self.is_controlling:
            self._queue(Followed(self._coordinator.sequence, None))

    def _bind_again(self, replaced: Definition) -> None:
        """Have the bindings of an object that has replaced another: they went with that."""
        assert isinstance(replaced, ExchangeDefinition | QueueDefinition), "others have none"
        for each in list(self._known.values()):
            if (
                isinstance(each, BindingDefinition)
                and each.vhost == replaced.vhost
                and replaced.name in (each.source, each.destination)
            ):
                self._run(self._node.put, each)

    # -- homes

    def _check_owner(self, definition: QueueDefinition) -> None:
        """Have an exclusive queue removed whose connection has ended before it was there."""
        home = definition.home
        if home is None or not definition.exclusive or not self._owners.is_here(home):
            return
        vhost = self._broker.vhosts.get(definition.vhost)
        queue = None if vhost is None else self._broker.queue_here(vhost, definition.name)
        if vhost is not None and queue is not None and self._is_unowned(queue):
            self.unowned(vhost, queue)

    def _is_unowned(self, queue: DeclaredQueue) -> bool:
        owner = queue.owner
        return isinstance(owner, RemoteOwner) or owner not in self._broker.connections

    def _clean_up(self) -> None:
        """As the controller, delete queues whose home is gone."""
        if self.is_controlling:
            self._broker.chores.begin(self._cleaning_up())

    def _cleaning_up(self) -> Generator[None]:
        for vhost in list(self._broker.vhosts.values()):
            for name in list(vhost.queues):
                if not self.is_controlling:
                    return
                queue = self._broker.queue_here(vhost, name)
                if queue is not None and self._is_homeless(queue):
                    with acting_as(INTERNAL_USER):
                        self._broker.drop_queue(vhost, queue)
                    yield

    def _is_homeless(self, queue: DeclaredQueue) -> bool:
        home = queue.definition.home
        if home is None:
            return False
        if self._owners.is_here(home):
            return queue.definition.exclusive and self._is_unowned(queue)
        registered = self._coordinator.nodes.get(home.node)
        return registered is None or registered.session != home.session


def _removal_order(definition: Definition) -> int:
    """Return when a definition is removed: a virtual host takes its contents along."""
    if isinstance(definition, VhostDefinition):
        return -1
    return len(ORDER) - ORDER[type(definition)]
