"""A broker on log files in memory that is closed or killed, and started again.

The state store is thrown away with each life unless a test keeps it: everything must come from the
logs.
"""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from itertools import count
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import commands

from leveret.features.celery.eta_hold import EtaHold
from leveret.features.dedup.extension import window_of
from leveret.features.delay.scheduled import own_key
from leveret.features.delay.store import PendingMessage
from leveret.features.retry.key_order import KeyOrder
from leveret.features.retry.retrying import RetryTopic
from leveret.ports import Durability
from leveret.storage.dump import dump_segment
from leveret.storage.state import MemoryStateStore
from tests.storage.faulty_files import FaultyFileSystem
from tests.storage.harness import abandon, make_store
from tests.support.client import Client
from tests.support.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

DATA = Path("/data")
ALL = 1 << 30  # more messages than any test has
PASSES_MAX = 20_000
TRANSACTIONS = count(1)
ENTRY = Struct("<16sQQ")  # key, time, offset: see SeenKeys.pack


class Fact(NamedTuple):
    """One thing that the node knows by a record of a log."""

    topic: str
    offset: int
    what: str
    value: object


class Observed(NamedTuple):
    """Everything that a node knows: facts, and the offsets of each queue in order of delivery."""

    facts: set[Fact]
    queues: dict[str, list[int]]

    def difference(self, other: Observed) -> list[object]:
        """Return all that only one of them has; empty if they are equal."""
        found: list[object] = sorted(map(str, self.facts ^ other.facts))
        names = self.queues.keys() | other.queues.keys()
        pairs = ((name, self.queues.get(name), other.queues.get(name)) for name in names)
        return found + [each for each in pairs if each[1] != each[2]]

    def without(self, lost: set[tuple[str, int]]) -> Observed:
        """Return the rest where records, given by topic and offset, cannot be read any more."""
        return Observed(
            {fact for fact in self.facts if (fact.topic, fact.offset) not in lost},
            {
                name: [offset for offset in found if (name, offset) not in lost]
                for name, found in self.queues.items()
            },
        )


class MortalFiles(FaultyFileSystem):
    """Files that take no more changes from the `fail_at`-th on, as if the process was killed."""

    def _count(self, name: str) -> bool:
        self.calls += 1
        if self.fail_at is not None and self.calls >= self.fail_at:
            raise OSError(errno.EIO, "the process was killed")
        return False


class Operator:
    """A node as commands see it."""

    def __init__(self, node: Node) -> None:
        self.broker = node.broker
        self.vhosts = node.broker.vhosts
        self.redrives = node.broker.redrives


class Node(Stage):
    """One life of the node; `next_life` is what is started after it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        before: Node | None = None,
        *,
        keeps_state: bool = False,
        **limits: object,
    ) -> None:
        self.loop = loop
        self.limits = limits or (before.limits if before is not None else {})
        self.files = FaultyFileSystem() if before is None else before.files.lose_process()
        self.files.__class__ = MortalFiles
        self.unfinished_tasks: set[asyncio.Task[None]] = set()
        self.is_over = False
        state = MemoryStateStore()
        if before is not None and keeps_state:
            state.write(before.state.scan(b""), durable=True)
        topics = loop.run_until_complete(self._store(state))
        super().__init__(Durability.OS, topics=topics, state=state)
        # Those of an earlier life must not come again: its logs may hold what was not decided.
        self.broker.atomic._random_id = partial(next, TRANSACTIONS)
        if before is not None:
            self.clock.now = before.clock.now
            self.metadata.kept = before.metadata.kept
            definitions = loop.run_until_complete(self.metadata.load())
            loop.run_until_complete(self.broker.restore(definitions))
            self.run()
        self.client = Client(self).open()

    async def _store(self, state: MemoryStateStore) -> Any:
        options = {"durability": Durability.OS, **self.limits}
        return make_store(DATA, self.files, state, **options)

    # -- the loop

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.unfinished_tasks.add(self.loop.create_task(work))

    def run(self) -> None:
        self.loop.run_until_complete(self._run())

    async def _run(self) -> None:
        for _ in range(PASSES_MAX):
            scheduled, self._scheduled = self._scheduled, []
            for callback in scheduled:
                callback()
            done = {task for task in self.unfinished_tasks if task.done()}
            self.unfinished_tasks -= done
            for task in done:
                task.result()
            if self.unfinished_tasks:
                await asyncio.wait(self.unfinished_tasks, timeout=0.001)
            elif not self._scheduled:
                return
        raise AssertionError("the node does not come to rest")

    # -- its end

    def flush(self) -> None:
        """Write what is written within a flush interval: settlements and returns."""
        self.advance(0.1)
        for log in self.topics.logs():
            log.write_settlements()

    def close(self) -> None:
        """Stop as `leveret serve` does."""
        self.run()
        self.loop.run_until_complete(self.broker.delayed_stores.close())
        self.loop.run_until_complete(self.topics.close())
        self._end()

    def kill(self) -> None:
        """End at once; what was written stays."""
        self._end()
        self.loop.run_until_complete(self._abandon())

    async def _abandon(self) -> None:
        for task in self.unfinished_tasks:
            task.cancel()
        await asyncio.gather(*self.unfinished_tasks, return_exceptions=True)
        abandon(self.topics)

    def _end(self) -> None:
        self.is_over = True
        for call in self.clock.calls:
            call.cancel()

    def next_life(self, *, keeps_state: bool = False) -> Node:
        return Node(self.loop, self, keeps_state=keeps_state)

    # -- what clients do

    def publish(self, key: str, *bodies: bytes, **options: Any) -> None:
        for body in bodies:
            self.client.publish(key, body, delivery_mode=2, **options)
        self.run()

    def declare(self, name: str, **arguments: object) -> None:
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.client.declare(name, durable=True, arguments=named)

    def get(self, queue: str, count: int = 1) -> list[int]:
        """Take messages. Returns their tags."""
        tags = []
        for _ in range(count):
            self.client.send(commands.Basic.Get(queue=queue))
            tags += [each.tag for each in self.client.deliveries()]
        return tags

    def take(self, queue: str, count: int = 1) -> None:
        for _ in range(count):
            (tag,) = self.get(queue)
            self.client.send(commands.Basic.Ack(delivery_tag=tag))

    def reject(self, queue: str, count: int = 1, *, requeue: bool = False) -> None:
        for tag in self.get(queue, count):
            self.client.send(commands.Basic.Reject(delivery_tag=tag, requeue=requeue))
        self.run()

    # -- what operators do

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have a coroutine of the broker's come to its end, and return its result."""
        found: list[Any] = []

        async def run() -> None:
            found.append(await work)

        self.spawn(run())
        self.run()
        (answer,) = found
        return answer

    def operate(self, command: Callable[..., Coroutine[Any, Any, Any]], **parameters: Any) -> Any:
        """Perform a command on an object of the virtual host, and return its answer."""
        return self.ask(command(Operator(self), vhost="/", **parameters))

    # -- what it knows

    def observe(self) -> Observed:
        self.run()
        vhost = self.broker.vhosts["/"]
        facts: set[Fact] = set()
        queues: dict[str, list[int]] = {}
        for name, queue in vhost.queues.items():
            self.loop.run_until_complete(queue.opened())
            facts |= {Fact(topic_of(queue.log), *fact) for fact in self._of_queue(queue)}
            facts |= set(self._of_extensions(queue))
            queues[name] = order_of(queue)
        messages = self.broker.delayed.find("/")
        if messages is not None:
            # A list meets damage that an index in the state store knows nothing of.
            waiting = [offset for _, offset in messages.store.scan(None, None, ALL)]
            self.loop.run_until_complete(messages.store.read(waiting))
            facts |= set(self._of_store(messages.store))
            for fact in self._of_store(messages.store):
                record = self._record(messages.store.log, fact.offset)
                key = own_key(PendingMessage(fact.offset, 0, record[0], *record[2:]))
                if key is not None:
                    facts.add(fact._replace(what="id", value=(key, messages.ids.find(key))))
        facts |= set(self._of_publishers())
        return Observed(facts, queues)

    def _of_queue(self, queue: Any) -> Iterator[tuple[int, str, object]]:
        for offset in offsets(queue.log.settled.gaps(0, queue.log.committed)):
            yield offset, "unsettled", self._record(queue.log, offset)[-1]
            count = queue.log.returns.acquired.get(offset)
            if count:
                yield offset, "returns", (count, queue.log.returns.failures.get(offset, 0))
        yield -1, "erased", tuple(queue.log.erased)
        window = window_of(queue)
        if window is not None:
            yield from keys_of(window)
        order = queue.extension(KeyOrder)
        if order is not None:
            for offset, key in order._keys.items():
                yield offset, "blocked", key

    def _of_extensions(self, queue: Any) -> Iterator[Fact]:
        for kind in (RetryTopic, EtaHold):
            extension = queue.extension(kind)
            if extension is not None and extension.store is not None:
                yield from self._of_store(extension.store)
        order, retries = queue.extension(KeyOrder), queue.extension(RetryTopic)
        if order is not None and retries is not None:
            for offset, (key, _) in order._away.items():
                yield Fact(topic_of(retries.store.log), offset, "blocked", key)

    @staticmethod
    def _of_store(store: Any) -> Iterator[Fact]:
        for due_ms, offset in store.scan(None, None, ALL):
            yield Fact(topic_of(store.log), offset, "due", due_ms)

    def _of_publishers(self) -> Iterator[Fact]:
        interceptor = self.broker.idempotency.interceptor
        for writer in interceptor.writers.values():
            for producer, known in writer.producers.items():
                value = (producer, known.position, known.time_ms)
                yield Fact(topic_of(writer.producers.log), known.offset, "position", value)
            for fact in keys_of(writer.seen.window):
                yield Fact(topic_of(writer.seen.log), *fact)
        for messages in self.broker.idempotency.prepared.kept.values():
            for pending in messages._pending.values():
                value = tuple(pending.row().items())
                yield Fact(topic_of(messages.log), pending.offset, "prepared", value)

    def _record(self, log: Any, offset: int) -> tuple[Any, ...]:
        (batch, *_) = self.loop.run_until_complete(log.fetch(offset, 1))
        return batch.record(offset)

    # -- damage

    def damage_middle(self, *, sealed_only: bool) -> set[tuple[str, int]]:
        """Flip a byte in the middle batch of each log, or of its sealed files.

        Returns the records that are lost by it, by topic and offset.
        """
        lost = set()
        for directory in {path.parent for path in self.files.files if path.suffix == ".log"}:
            entries = [
                (path, entry)
                for path in sorted(self.files.files)
                if path.parent == directory and path.suffix == ".log"
                for entry in dump_segment(self.files, path)
                if entry.batch is not None and entry.batch.count
            ]
            topic = directory.parent.name.rpartition("~~")[0]
            if sealed_only:
                entries = [each for each in entries if each[0] != entries[-1][0]]
            if not entries or topic == "leveret.transactions":
                continue
            path, entry = entries[len(entries) // 2]
            self.files.files[path].cached[entry.position + entry.batch.size - 1] ^= 0x20
            batch = entry.batch
            lost |= {(topic, offset) for offset in range(batch.base_offset, batch.stop_offset)}
        return lost


def topic_of(log: Any) -> str:
    return log.directory.parent.name.rpartition("~~")[0]


def order_of(queue: Any) -> list[int]:
    """Return the offsets of a queue's messages in order of delivery; those of blocked keys, too."""
    if queue.settings.is_stream or queue.extension(KeyOrder) is not None:
        return offsets(queue.log.settled.gaps(0, queue.log.committed))
    return offsets(queue.state.next_ranges(ALL))


def offsets(ranges: Any) -> list[int]:
    return [offset for first, stop in ranges for offset in range(first, stop)]


def keys_of(window: Any) -> Iterator[tuple[int, str, object]]:
    for key, time_ms, offset in ENTRY.iter_unpack(window._seen.pack(0, ALL)):
        yield offset, "seen", (key, time_ms)
