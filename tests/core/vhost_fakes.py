"""A queue that only gathers records, and a store that remembers what it was told."""

from __future__ import annotations

from itertools import count
from random import Random

from leveret.core.access.limits import Quota
from leveret.core.routing.message import MadeMessage, Message
from leveret.core.settings.policies import NO_POLICY, Policies
from leveret.core.vhost import Vhost
from leveret.ports.definitions import Definition, QueueDefinition, VhostDefinition
from leveret.ports.records import BatchBuilder


class FakeQueue:
    message_count = 0
    consumer_count = 0
    gone = False
    policy = NO_POLICY

    def __init__(self, definition: QueueDefinition, owner: object | None = None) -> None:
        self.definition = definition
        self.owner = owner
        self.builder = BatchBuilder(self)
        self.taken: list[Message] = []

    def take(self, message: Message) -> None:
        self.taken.append(message)

    def __repr__(self) -> str:
        return f"FakeQueue({self.definition.name!r})"


class FakeStore:
    keeps_all = is_following = False

    def __init__(self) -> None:
        self.kept: list[Definition] = []

    def put(self, definition: Definition) -> None:
        self.kept.append(definition)

    def remove(self, definition: Definition) -> None:
        self.kept.remove(definition)

    def remove_vhost(self, name: str) -> None:
        self.kept = []


def make_vhost(
    store: FakeStore | None = None,
    default_queue_type: str = "classic",
    policies: Policies | None = None,
    quota: Quota | None = None,
) -> Vhost:
    numbers = count(1)
    return Vhost(
        VhostDefinition("/", default_queue_type=default_queue_type),
        open_queue=FakeQueue,
        store=store or FakeStore(),
        random_name=lambda: f"random{next(numbers)}",
        random_below=Random(1).randrange,
        deposit=lambda queues, message: [queue.take(message) for queue in queues],
        policies=policies,
        quota=quota,
    )


def declare(vhost: Vhost, name: str, owner: object | None = None, **options: object):
    fields = {"durable": False, "exclusive": False, "auto_delete": False, "arguments": {}}
    return vhost.declare_queue(name, owner=owner, **{**fields, **options})


def exchange(vhost: Vhost, name: str, type_: str = "direct", **options: object):
    fields = {"durable": False, "auto_delete": False, "internal": False, "arguments": {}}
    return vhost.declare_exchange(name, type_, **{**fields, **options})


def with_headers(headers: dict[str, object] | None) -> MadeMessage:
    """A message of which only the headers matter."""
    return MadeMessage(b"", b"", headers or {})


def follow_policies(vhost: Vhost) -> None:
    for each in list(vhost.exchanges.values()):
        vhost.follow_policy(each)


def names(queues: list) -> list[str]:
    return [queue.definition.name for queue in queues]
