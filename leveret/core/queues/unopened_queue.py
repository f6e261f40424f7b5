"""Unopened queue: a durable queue without messages that nobody has used since the start.

Most of a node's queues may be idle. Such a queue is a definition, its settings and its counters; it
has no log, no delivery state and no file. It is opened when somebody uses more of it than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.logs.batching import Batching
from leveret.core.logs.publish_tags import PublishTags
from leveret.core.queues.delivering import Delivering
from leveret.core.queues.queue import Queue
from leveret.core.settings.policies import NO_POLICY
from leveret.core.turn import TouchedQueue
from leveret.ports.after_all import tell_each
from leveret.ports.counters import Counters
from leveret.ports.records import BatchBuilder
from leveret.ports.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.logs.log_writer import Waiter
    from leveret.core.queues.extensions import QueueExtension
    from leveret.core.queues.open_queue import PartOf
    from leveret.core.queues.services import QueueServices
    from leveret.core.settings.queue_settings import QueueSettings
    from leveret.ports import TopicLog
    from leveret.ports.definitions import QueueDefinition

    OpenLog = Callable[[QueueDefinition, QueueSettings, int], TopicLog]

__all__ = ["UnopenedQueue", "may_stay_unopened"]

UNOPENED_BYTES = 2_300  # with its definition and its binding to the default exchange

# Attributes of compiled bases that are set before it is opened; see `Opening`.
SET = {"builder", "_report", "_turn", "_waiting", *vars(TouchedQueue)}

# What opening does not change.
KEPT = ("policy", "gone", "rates", "opened_ms", "counters", "builder", "_waiting")


class UnopenedQueue(Queue):
    """A queue that becomes a `Queue`, the same object, with the first use of its log or its state.

    That is the first access to an attribute which is not set below. Records gather in its builder
    before: it is opened when they are flushed, since thousands of queues may get them at once.
    `open_log(definition, settings, number)` opens its log, and may raise StorageError.
    """

    __slots__ = ()  # so that instances can become queues

    def __init__(
        self,
        definition: QueueDefinition,
        settings: QueueSettings,
        services: QueueServices,
        open_log: OpenLog,
        *,
        part_of: PartOf | None = None,
    ) -> None:
        self.part_of = part_of
        self.definition = definition
        self.settings = settings
        self.services = services
        self.open_log = open_log
        self.owner = None
        self.policy = NO_POLICY
        self.gone = False
        self.rates = None
        self.opened_ms = services.timers.wall_ms()
        self.builder = BatchBuilder()
        self.builder.owner = self
        self.counters = Counters() if part_of is None else part_of.whole.counters
        self.builder.counters = self.counters
        self._waiting = []
        self._turn, self._report = services.turn, services.report
        self._follow_overflow()

    def _follow_overflow(self) -> None:
        """Have publish tags of gathered records noted if the queue may refuse some of them."""
        self.builder.publish_tags = PublishTags() if self.settings.rejects else None

    def open(self) -> None:
        """Open the log, and become a Queue. Raises StorageError; nothing has changed then."""
        kept = {name: getattr(self, name) for name in KEPT}
        log = self.open_log(self.definition, self.settings, self.number)
        log.builder = self.builder  # type: ignore[misc]  # an attribute of each log
        self.__class__ = Queue  # type: ignore[assignment]  # of the same layout
        Queue.__init__(
            self, self.definition, self.settings, None, log, self.services, part_of=self.part_of
        )
        for name, value in kept.items():
            setattr(self, name, value)
        self.builder.counters = self.counters

    def __getattr__(self, name: str) -> Any:  # called for attributes that are not set
        self.open()
        return getattr(self, name)

    def reconfigure(self, settings: QueueSettings) -> None:
        """Apply other settings, which may be of a kind that needs an open queue."""
        if self.builder.count:  # gathered under other settings
            self.open()
            self.reconfigure(settings)
            return
        self.settings = settings
        self._follow_overflow()
        if not may_stay_unopened(self.definition, settings, self.services, self.number):
            self.open()

    # -- contents

    is_opened = False

    @property
    def message_count(self) -> int:
        """Number of messages that were gathered in this turn."""
        return self.builder.count

    @property
    def position(self) -> int:
        """Number of messages that were gathered in this turn."""
        return self.builder.count

    @property
    def is_caught_up(self) -> bool:
        """Whether everything published is committed."""
        return not self.builder.count

    leased_count = delayed_count = dead_letters_waiting = consumer_count = appended_count = 0
    died_count = 0
    held_bytes = UNOPENED_BYTES

    def extension(self, kind: type[QueueExtension]) -> None:
        """Return None: it has no extensions."""

    def total_usage(self) -> Usage:
        """Return no usage."""
        return Usage()

    def used(self) -> None:
        """Do nothing: it has no expiry time."""

    # -- publishing

    def await_commit(self, waiter: Waiter) -> None:
        """Call `waiter.done` when everything published so far is committed."""
        if self.builder.count:
            self._waiting.append(waiter)
            self._turn.touch(self)
        else:
            waiter.done(failed=False)

    def flush(self) -> None:
        """Open the queue and append the gathered records; refuse them if it cannot be opened."""
        try:
            self.open()
        except Exception as error:  # noqa: BLE001  # publishers must be nacked, whatever the error
            waiting, self._waiting = self._waiting, []
            self.builder.clear()
            self._report(self, error)
            tell_each(waiting, self._report, failed=True)
        else:
            self.flush()

    def pump(self) -> bool:
        """Deliver nothing: it could not be opened."""
        return False

    # -- the end

    def mark_deleted(self) -> None:
        """Open and delete it: an earlier run may have left a log."""
        self.open()
        self.mark_deleted()


class Opening:
    """Attribute that opens an unopened queue: those of a compiled base class are never unset."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, queue: UnopenedQueue, kind: type) -> Any:
        queue.open()
        return getattr(queue, self._name)


for each in (vars(Batching) | vars(Delivering)).keys() - vars(UnopenedQueue).keys() - SET:
    if not each.startswith("__"):
        setattr(UnopenedQueue, each, Opening(each))


def may_stay_unopened(
    definition: QueueDefinition, settings: QueueSettings, services: QueueServices, number: int
) -> bool:
    """Whether a queue or partition without messages has nothing to do by itself."""
    return (
        definition.durable
        and not settings.is_stream
        and settings.expires_ms is None
        and settings.publish_rate is None
        and settings.consume_rate is None
        and not any(kind.acts_alone(definition, settings, number) for kind in services.extensions)
    )
