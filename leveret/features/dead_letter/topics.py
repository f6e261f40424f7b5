"""Dead-letter topics: the queue `<queue>.dlq` for dead messages of a queue without an exchange.

Each is created when it is first needed, with its queue's type, durable, and an ordinary queue from
then on. That of an exclusive queue is deleted with the connection, as its queue is. An existing
queue of that name is used as it is. A new topic gets at-least-once messages only when its
definition is on disk: a restart must find it again. In a cluster the controller creates it, which
takes a moment: at-least-once messages wait, others are dropped, as without a topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from leveret.core.events import INTERNAL_USER, acting_as
from leveret.core.names import topic_beside
from leveret.core.settings.arguments import QUEUE_TYPE, type_of
from leveret.core.settings.queue_settings import TOPIC_SUFFIX
from leveret.errors import AmqpError, StorageError
from leveret.ports.definition_changes import AddQueue, ChangeOutcome, DefinitionChange
from leveret.ports.definitions import QueueDefinition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.core.queues.queue import Queue
    from leveret.core.vhost import Vhost
    from leveret.ports import MetadataStore

# Takes a change, the connection that asks for it, and what to do then (see DefinitionChanges.make).
MakeChange: TypeAlias = (
    "Callable[[DefinitionChange, object | None, Callable[[ChangeOutcome], None]], "
    "Awaitable[None] | None]"
)

__all__ = ["DeadLetterTopics", "dead_letter_topic"]


def dead_letter_topic(queue: str) -> str:
    """Return the name of a queue's dead-letter topic."""
    return topic_beside(queue, TOPIC_SUFFIX)


def _go_on(_outcome: ChangeOutcome) -> None:
    """Do nothing more: the topic is there, or will be found."""


class DeadLetterTopics:
    """Creates a node's dead-letter topics, and tracks which of them would survive a crash.

    `make` is that of the node's DefinitionChanges.
    """

    def __init__(
        self,
        vhosts: Mapping[str, Vhost],
        store: MetadataStore,
        make: MakeChange,
        *,
        spawn: Callable[[Coroutine[object, object, None]], object],
        report: Callable[[object, Exception], None],
    ) -> None:
        self._vhosts = vhosts
        self._store = store
        self._make = make
        self._spawn = spawn
        self._report = report
        # Topics whose definitions are not on disk yet, with the queues that wait for them.
        self._unkept: dict[DeclaredQueue, set[Queue]] = {}
        self._keeping: set[DeclaredQueue] = set()
        # Topics that another node has been asked for, with the queues that wait for them.
        self._asked: dict[tuple[str, str], set[Queue]] = {}

    def is_open(self, queue: Queue, *, safely: bool) -> bool:
        """Whether the dead-letter topic of `queue` can take messages; created if it is missing.

        With `safely`, only if it would survive a crash; otherwise the queue retries its dead
        letters as soon as it would.
        """
        vhost = self._vhosts[queue.definition.vhost]
        name = dead_letter_topic(queue.name)
        if vhost.find_queue(name) is None and not self._create(vhost, name, queue):
            if safely and (vhost.name, name) in self._asked:
                self._asked[vhost.name, name].add(queue)
            return False
        topic = cast("DeclaredQueue", vhost.find_queue(name))
        if topic in self._unkept and safely:
            self._unkept[topic].add(queue)
            self._keep(topic)
            return False
        return True

    def _create(self, vhost: Vhost, name: str, queue: Queue) -> bool:
        """Create a topic, or ask for it. Returns whether it is there."""
        if (vhost.name, name) in self._asked:
            return False
        kind, is_exclusive = type_of(queue.definition.arguments), queue.definition.exclusive
        definition = QueueDefinition(
            vhost.name, name, not is_exclusive, is_exclusive, arguments={QUEUE_TYPE: kind}
        )
        try:
            with acting_as(INTERNAL_USER):
                asked = self._make(AddQueue(definition), queue.owner, _go_on)
        except (AmqpError, StorageError) as error:
            self._report(queue, error)
            return False
        if asked is not None:
            self._asked[vhost.name, name] = set()
            self._spawn(self._await(asked, vhost.name, name))
            return False
        topic = cast("DeclaredQueue", vhost.queues[name])
        self._unkept[topic] = set()
        self._keep(topic)
        return True

    async def _await(self, asked: Awaitable[None], vhost: str, name: str) -> None:
        """Let the waiting queues go on once a topic is there."""
        waiting: set[Queue] = set()
        try:
            await asked
            waiting = self._asked[vhost, name]
        except (AmqpError, StorageError) as error:
            self._report(f"queue {name!r} in vhost {vhost!r}", error)
        finally:
            del self._asked[vhost, name]
        for queue in waiting:
            queue.retry_dead_letters()

    def _keep(self, topic: DeclaredQueue) -> None:
        if topic not in self._keeping:
            self._keeping.add(topic)
            self._spawn(self._flush(topic))

    async def _flush(self, topic: DeclaredQueue) -> None:
        try:
            await self._store.flush()
        except StorageError as error:
            self._report(topic, error)  # waiting queues try again
            return
        finally:
            self._keeping.discard(topic)
        for queue in self._unkept.pop(topic):
            queue.retry_dead_letters()
