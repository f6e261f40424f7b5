"""The faults: mistakes of an engineer at work, each of which a user would feel.

When the code of a fault has changed, the fault moves along. One that survives is a hole in the
tests: a test closes it, not an easier fault.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One replacement in one file, where `old` occurs once."""

    name: str
    file: str
    old: str
    new: str
    harm: str
    """What would go wrong for a user."""
    near: str
    """Folder of the tests that are most likely to notice it."""

    @property
    def is_compiled(self) -> bool:
        """Whether the modules have to be built anew."""
        return self.file.endswith((".pyx", ".pxd", ".pxi"))

    def planted_in(self, text: str) -> str:
        """Return the text of the file with the fault. Raises ValueError if it does not fit."""
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: its text must occur once in {self.file}, and change")
        return text.replace(self.old, self.new)


CORE = (
    Fault(
        name="purge-tells-no-extension",
        file="leveret/core/queues/queue.py",
        old="""\
        self._await_delayed()
        self._write_erased(ranges)
""",
        new="""\
        self._await_delayed()
        self._owned_log.erase(ranges)
""",
        harm="After a purge, messages that waited behind a purged one of their key wait for ever.",
        near="tests/features/retry",
    ),
    Fault(
        name="deleted-vhost-keeps-its-quota",
        file="leveret/core/topology/topology.py",
        old="""\
            self._quota.exchange_count -= 1
            self._emit("exchange.deleted", {"name": name, "vhost": self._vhost})
""",
        new="""\
            self._emit("exchange.deleted", {"name": name, "vhost": self._vhost})
""",
        harm="Exchanges of deleted virtual hosts count: at last no exchange can be declared.",
        near="tests/core",
    ),
    Fault(
        name="unbinding-prunes-too-much",
        file="leveret/core/exchanges/topic.pyx",
        old="or self.one is not None or self.many is not None)",
        new="or self.one is not None)",
        harm="To unbind `a.b` removes `a.b.#` of others, whose messages are lost from then on.",
        near="tests/core/exchanges",
    ),
    Fault(
        name="next-active-consumer-has-no-turn",
        file="leveret/core/queues/serving.pyx",
        old="""\
            self.active = (<ServiceLine>self.queued[0]).first() if self.queued else None
            self.active_waits = False
""",
        new="""\
            self.active = (<ServiceLine>self.queued[0]).first() if self.queued else None
""",
        harm="When a busy single active consumer goes, its successor gets nothing.",
        near="tests/core/queues",
    ),
)

STORAGE = (
    Fault(
        name="confirms-what-is-not-flushed",
        file="leveret/storage/flush.py",
        old="self._durable = flush.stop",
        new="self._durable = self.end",
        harm="Messages written during a flush are confirmed with it: a power cut loses them.",
        near="tests/storage",
    ),
    Fault(
        name="decisions-are-not-flushed",
        file="leveret/storage/decisions.py",
        old="""\
    if not segment.suspect:
        segment.flush(files)
""",
        new="",
        harm="A power cut after a crash undoes a commit in some of its queues.",
        near="tests/storage",
    ),
    Fault(
        name="cut-off-batch-counts-as-written",
        file="leveret/storage/segment_writer.pyx",
        old="return written == <ssize_t>batch.size",
        new="return written > 0",
        harm="On a nearly full disk a confirmed batch is cut off, and those behind it are lost.",
        near="tests/storage",
    ),
    Fault(
        name="segment-goes-before-its-settlements",
        file="leveret/storage/reclaimer.py",
        old=" or self.pending.overlap(segment.base, segment.stop):",
        new=":",
        harm="After a crash, messages that were acknowledged are reported as lost.",
        near="tests/storage",
    ),
    Fault(
        name="lost-batch-stays-cached",
        file="leveret/storage/tail.pyx",
        old="while tail.bases and tail.bases[len(tail.bases) - 1] >= end:",
        new="while tail.bases and tail.bases[len(tail.bases) - 1] > end:",
        harm="After a failed flush, consumers get refused messages instead of later ones.",
        near="tests/storage",
    ),
    Fault(
        name="state-loses-an-update",
        file="leveret/storage/state.py",
        old="""\
                    if self._waiting.get(key, b"") is value:
                        del self._waiting[key]
""",
        new="""\
                    self._waiting.pop(key, None)
""",
        harm="State that is changed while its former value is written stays as it was.",
        near="tests/storage",
    ),
    Fault(
        name="redelivered-messages-seem-new",
        file="leveret/storage/recovery.py",
        old="found.redelivered_stop = found.end",
        new="found.redelivered_stop = found.flushed",
        harm="After a crash, messages come again without the flag `redelivered`.",
        near="tests/storage",
    ),
)

AMQP = (
    Fault(
        name="split-of-unacked-tags-is-shifted",
        file="leveret/amqp/unacked.pyx",
        old="rest[1].offset += stop - entry.tag",
        new="rest[1].offset += stop - first",
        harm="After an ack out of order, later acks settle messages that nobody acknowledged.",
        near="tests/amqp",
    ),
    Fault(
        name="failed-publish-is-confirmed",
        file="leveret/amqp/confirms.pyx",
        old=" and group.failed == failed:",
        new=":",
        harm="A message that could not be stored is confirmed together with the next one.",
        near="tests/amqp",
    ),
    Fault(
        name="exchange-binding-needs-no-topic-right",
        file="leveret/amqp/operations/exchanges.py",
        old="""\
    channel.require_topic("read", source, method.routing_key)
    channel.vhost.bind_exchange(
""",
        new="""\
    channel.vhost.bind_exchange(
""",
        harm="A user gets messages with forbidden routing keys through an exchange of his own.",
        near="tests/amqp",
    ),
    Fault(
        name="shared-prefetch-wakes-one-only",
        file="leveret/amqp/settlements.pyx",
        old="if self.prefetch and self.in_flight + freed >= self.prefetch:",
        new="if self.prefetch and self.in_flight >= self.prefetch:",
        harm="With a prefetch for the channel, all consumers but one starve.",
        near="tests/amqp",
    ),
    Fault(
        name="exclusive-consumer-has-another-code",
        file="leveret/amqp/operations/basic.py",
        old="""\
            403, f"queue '{source.name}' in vhost '{channel.vhost.name}' in exclusive use"
""",
        new="""\
            405, f"queue '{source.name}' in vhost '{channel.vhost.name}' in exclusive use"
""",
        harm="Clients that wait for an exclusive consumer to go do not know the reply code.",
        near="tests/amqp",
    ),
)

FEATURES = (
    Fault(
        name="cancelled-retry-blocks-its-key",
        file="leveret/features/retry/retrying.py",
        old="""\
                self._cancelled(offset)
                count += 1
""",
        new="""\
                count += 1
""",
        harm="An operator deletes a retry: its key stays blocked.",
        near="tests/features/retry",
    ),
    Fault(
        name="wheel-passes-over-what-had-no-room",
        file="leveret/features/delay/wheel.pyx",
        old="if room and now_ms >= self.cursor:",
        new="if now_ms >= self.cursor:",
        harm="Of very many messages that are due together, some come late or not at all.",
        near="tests/features/delay",
    ),
    Fault(
        name="dedup-keys-go-with-the-first",
        file="leveret/features/dedup/window.py",
        old="ENTRY.unpack(packed[-ENTRY.size :])[1]",
        new="ENTRY.unpack(packed[: ENTRY.size])[1]",
        harm="After a restart, duplicates within the window are stored again.",
        near="tests/features/dedup",
    ),
    Fault(
        name="dead-letter-keeps-its-attempts",
        file="leveret/features/dead_letter/packing.pyx",
        old="~<uint32_t>(HAS_EXPIRATION | RETRIED)",
        new="~<uint32_t>HAS_EXPIRATION",
        harm="A dead-letter queue with retries counts those of the queue before: it makes none.",
        near="tests/features/retry",
    ),
    Fault(
        name="filter-overlooks-untagged-messages",
        file="leveret/features/filters/filters.pyx",
        old="CAN_FAIL if mask == 0 else UNSURE if joined else CAN_HOLD",
        new="CAN_FAIL if mask == 0 else CAN_HOLD",
        harm="A consumer of `!*` misses untagged messages that were published among tagged ones.",
        near="tests/features/filters",
    ),
)

FAULTS = CORE + STORAGE + AMQP + FEATURES
