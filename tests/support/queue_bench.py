"""A queue between a log that commits on demand and consumers that only count."""

from contextlib import suppress

from pamqp import commands, header

from leveret.core.queues.expiry_and_limits import ExpiryAndLimits
from leveret.core.queues.queue import Queue
from leveret.core.queues.sending import send_each
from leveret.core.queues.services import QueueServices
from leveret.core.settings.queue_settings import QueueSettings
from leveret.core.timers import Timers
from leveret.core.turn import Turn
from leveret.features.dead_letter.counters import DeadLetterCounters
from leveret.features.dead_letter.worker import DeadLetterWorkers
from leveret.features.filters.filtered import ConsumerFilters
from leveret.ports import Durability
from leveret.ports.definitions import QueueDefinition
from leveret.ports.records import RecordFlag
from tests.support.clock import FakeClock
from tests.support.memory_log import MemoryTopicLog
from tests.support.spawning import spawner

PLAIN = QueueSettings()


class Waiter:
    def __init__(self):
        self.fates = []

    def done(self, *, failed):
        self.fates.append(failed)


class Consumer:
    priority = 0
    arguments = {}

    def __init__(self, limit=1 << 30, *, no_ack=False, at_once=1 << 30):
        self.limit, self.no_ack, self.at_once = limit, no_ack, at_once
        self.got = []
        self.runs = []  # of each call that had several
        self.gone = False
        self.room = 1 << 30  # what its socket takes

    def capacity(self):
        return min(self.credit(), self.room)

    def credit(self):
        return self.limit - len(self.got)

    def send(self, batches, first, stop, *, redelivered):
        assert batches[0].base_offset <= first < batches[-1].stop_offset
        stop = min(stop, first + self.at_once, batches[-1].stop_offset)
        self.room -= stop - first
        self.got += [(offset, redelivered) for offset in range(first, stop)]
        return stop

    def send_runs(self, batches, runs, *, redelivered):
        assert runs[-1][1] <= batches[-1].stop_offset
        self.runs.append(runs)
        return send_each(self.send, batches, runs, redelivered=redelivered)

    def queue_gone(self):
        self.gone = True


class Bench:
    """A queue with what is around it."""

    def __init__(self, durability=Durability.OS, settings=PLAIN, kinds=()):
        self.reported, self.tasks, self.scheduled = [], [], []
        self.log = MemoryTopicLog(durability)
        self.turn = Turn(self.scheduled.append, lambda *report: self.reported.append(report))
        self.clock = FakeClock()
        self.unused = []
        self.dead = []
        self.services = QueueServices(
            self.turn,
            Timers(self.clock.wall_ms, self.clock.call_later, self.clock.seconds),
            spawner(self.tasks),
            lambda *report: self.reported.append(report),
            str,
            int,
            self.unused.append,
            lambda: None,
            DeadLetterWorkers(self.dead_letter, DeadLetterCounters(), None),
            extensions=(ExpiryAndLimits, ConsumerFilters(), *kinds),
        )
        self.queue = Queue(
            QueueDefinition("/", "q"),
            settings,
            None,
            self.log,
            self.services,
        )

    def dead_letter(self, queue, windows, reason, publish=None):
        for batch, first, stop in windows:
            self.dead += [(offset, str(reason)) for offset in range(first, stop)]
            assert batch.base_offset <= first < stop <= batch.stop_offset
        return ()

    def publish(self, count=1, size=1, **properties):
        """`size`, `priority` and `expiration` of each; now."""
        flags, header = content_header(size, **properties)
        for _ in range(count):
            self.queue.builder.add(flags, self.clock.now, b"", b"q", header, b"x" * size)

    def store(self, count=1, size=1, **properties):
        self.publish(count, size, **properties)
        self.queue.flush()
        if self.queue.is_caught_up:
            self.queue.touch()

    def reopen(self, settings=None):
        """The queue after a restart."""
        self.turns()
        self.queue.deleted = True  # its timers are those of another process
        self.queue = Queue(
            self.queue.definition, settings or self.queue.settings, None, self.log, self.services
        )

    def advance(self, milliseconds):
        """Let time pass."""
        self.clock.advance(milliseconds)
        self.run()

    @property
    def ready(self):
        return self.queue.state.ready_count

    def turns(self):
        """Turns without the reads they ask for."""
        while self.scheduled:
            self.scheduled.pop()()

    def lost(self):
        """The first words of what was reported."""
        reported, self.reported[:] = list(self.reported), []
        return [str(error).partition(";")[0] for _, error in reported]

    def run(self):
        """Turns and reads until nothing moves."""
        for _ in range(100):
            scheduled, self.scheduled[:] = list(self.scheduled), []
            for callback in scheduled:
                callback()
            tasks, self.tasks[:] = list(self.tasks), []
            for task in tasks:
                with suppress(StopIteration):
                    task.send(None)
                    self.tasks.append(task)
            if not scheduled and not tasks:
                return
        raise AssertionError("no rest")

    def consume(self, *arguments, **options):
        consumer = Consumer(*arguments, **options)
        self.queue.add_consumer(consumer)
        self.run()
        return consumer


def content_header(size, **properties):
    """(record flags, content header payload) of a message with these properties."""
    flags = 0
    if "expiration" in properties:
        flags |= RecordFlag.HAS_EXPIRATION
    if "priority" in properties:
        flags |= RecordFlag.HAS_PRIORITY
    if "headers" in properties:
        flags |= RecordFlag.HAS_HEADERS
    payload = header.ContentHeader(0, size, commands.Basic.Properties(**properties)).marshal()
    return flags, payload
