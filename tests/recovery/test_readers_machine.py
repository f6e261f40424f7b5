"""Readers of a queue that keeps settled messages, through closes and kills.

Groups, range reads (and so Spark) and lists have what was published, once and in order, but what an
operator has deleted, edited, moved or purged. Retries, expiry and length limits change nothing of
that; they decide about the queue's own consumers only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pamqp import commands

from leveret.features.browse.commands import (
    message_delete,
    message_edit,
    message_list,
    message_move,
)
from leveret.features.dead_letter.commands import dlq_delete
from leveret.features.range_reads.bounds import bounds_of
from leveret.features.range_reads.rules import RangeRequest
from leveret.features.retry.commands import retry_cancel
from leveret.features.retry.retrying import RetryTopic
from leveret.mgmt_ui.operations.topology import queue_purge
from leveret.range_reader import parse_chunk
from tests.recovery.node import Node
from tests.support.client import Client
from tests.support.examples import examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.core.queues.queue import Queue

RETRY_MS = 1000
TTL_MS = 500
KINDS = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "keeps order": {"x-retry-keep-order": "key"},
    "limited": {"x-max-length": 3},
}
ALL_REJECTED = {
    "offsets": [],
    "message_ids": [],
    "reason": "rejected",
    "source": None,
    "headers": {},
    "since": None,
    "until": None,
}


class ReadersMachine(RuleBasedStateMachine):
    """A node and its next lives; messages are numbers, and those that were edited say so."""

    @initialize(kind=st.sampled_from(sorted(KINDS)))
    def begin(self, kind: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.node = Node(self.loop)
        self.is_limited = kind == "limited"
        arguments = {"x-retention": "14d", "x-retry-delays": [RETRY_MS], **KINDS[kind]}
        self.node.client.declare("q", durable=True, arguments=arguments)
        for name in ("other", "q.dlq"):
            self.node.client.declare(name, durable=True, arguments={"x-retention": "14d"})
        self.published: list[bytes] = []  # in the order in which the log has them
        self.erased: set[bytes] = set()
        self.moved: list[bytes] = []
        self.number = self.groups = 0
        self.publish(5, expires=False)

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.read()
            assert self.node.reported == []
            self.node.kill()
            self.loop.close()

    @property
    def queue(self) -> Queue:
        return self.node.queue("q")

    def rows(self, **select: object) -> list[dict[str, object]]:
        answer = self.node.operate(
            message_list, queue="q", select=select, after=None, limit=None, backwards=False
        )
        return [(row["offset"], row["payload"].encode()) for row in answer["messages"]]

    # -- publishers and consumers

    @rule(count=st.integers(1, 4), expires=st.booleans())
    def publish(self, count: int, expires: bool) -> None:
        options = {"expiration": str(TTL_MS)} if expires else {}
        for _ in range(count):
            body = b"%d" % self.number
            self.number += 1
            self.node.publish("q", body, **options)
            self.published.append(body)

    @rule(count=st.integers(1, 3))
    def consume(self, count: int) -> None:
        self.settle(count, commands.Basic.Ack)

    @rule(count=st.integers(1, 3), requeue=st.booleans(), comes_back=st.booleans())
    def reject(self, count: int, requeue: bool, comes_back: bool) -> None:
        self.settle(count, lambda tag: commands.Basic.Reject(tag, requeue=requeue))
        if comes_back:
            self.wait(RETRY_MS / 1000 + 0.1)

    def settle(self, count: int, how: Callable[[int], object]) -> None:
        """Get so many messages, if there are, and settle them."""
        client = self.node.client
        for _ in range(count):
            client.send(commands.Basic.Get(queue="q"))
            answer = client.received()[0][1]
            if isinstance(answer, commands.Basic.GetOk):
                client.send(how(answer.delivery_tag))
        self.node.run()

    @rule(seconds=st.sampled_from([0.6, 1.1, 3]))
    def wait(self, seconds: float) -> None:
        self.node.advance(seconds)
        self.node.run()

    # -- operators

    @rule(data=st.data(), state=st.sampled_from(["ready", "settled", None]))
    def delete(self, data: st.DataObject, state: str | None) -> None:
        rows = self.rows(**({} if state is None else {"state": state}))
        if not rows:
            return
        offset, body = data.draw(st.sampled_from(rows))
        select = {"offsets": [offset]} | ({} if state is None else {"state": state})
        answer = self.node.operate(message_delete, queue="q", select=select, after=None, limit=None)
        assert answer["deleted"] + answer["skipped"] == 1
        if answer["deleted"]:
            self.erased.add(body)

    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        rows = self.rows(state="ready")
        if not rows or (self.is_limited and len(rows) > 2):
            return
        offset, body = data.draw(st.sampled_from(rows))
        # A message that a kill has brought back may be edited again: that makes another one.
        edited = b"%b edited %d" % (body, self.number)
        self.number += 1
        edit = {"payload": edited.decode()}
        self.node.operate(message_edit, queue="q", offset=offset, changes=edit)
        self.erased.add(body)
        self.published.append(edited)

    @rule(data=st.data())
    def move(self, data: st.DataObject) -> None:
        rows = self.rows(state="ready")
        if not rows:
            return
        offset, body = data.draw(st.sampled_from(rows))
        chosen = {"queue": "q", "select": {"offsets": [offset]}, "after": None, "limit": None}
        target = {"to_queue": "other", "exchange": None, "routing_key": None}
        answer = self.node.operate(message_move, **chosen, **target)
        assert answer["moved"] == 1
        self.erased.add(body)
        self.moved.append(body)

    @rule(by_client=st.booleans(), dies=st.booleans())
    def purge(self, by_client: bool, dies: bool) -> None:
        """Purge what is ready. Messages that wait for another one of their key stay.

        If that one is purged, they are ready again, or expire like others whose time is over:
        readers have what has expired.
        """
        gone = {body for _, body in self.rows(state="ready")}
        if by_client:
            self.node.client.call(commands.Queue.Purge(queue="q"))
        else:
            self.node.operate(queue_purge, name="q", waiting=False)
        self.node.run()
        self.erased |= gone
        if dies:
            self.kill(is_flushed=False)

    @rule(data=st.data(), dies=st.booleans())
    def cancel_retry(self, data: st.DataObject, dies: bool) -> None:
        self.reject(count=1, requeue=False, comes_back=False)
        if dies:
            self.kill(is_flushed=True)
        topic = self.queue.extension(RetryTopic)
        waiting = [] if topic is None else topic.store.scan(None, None, 1000)
        if not waiting:
            return
        _, offset = data.draw(st.sampled_from(list(waiting)))
        (record,) = self.node.ask(topic.store.read([offset]))
        if self.node.operate(retry_cancel, queue="q", ids=[str(offset)], all_=False):
            self.erased.add(record.body)

    @rule()
    def delete_dead_letters(self) -> None:
        """Delete what is a message of another queue, and stays in this one."""
        self.node.operate(dlq_delete, queue="q.dlq", **ALL_REJECTED)
        assert self.by_range("q.dlq") == []

    # -- ends

    @rule()
    def close(self) -> None:
        self.node.client.transport.lose()
        self.node.run()
        self.node.close()
        self.node = self.node.next_life()
        self.node.run()

    @rule(is_flushed=st.booleans())
    def kill(self, is_flushed: bool) -> None:
        if is_flushed:
            self.node.flush()
        self.node.kill()
        self.node = self.node.next_life()
        self.node.run()

    # -- readers

    @rule()
    def read(self) -> None:
        """Everybody reads what is left of what was published."""
        left = [body for body in self.published if body not in self.erased]
        assert self.by_group("q") == left
        assert self.by_range("q") == left
        assert self.by_group("other") == self.moved
        unsettled = {body for _, body in self.rows()}
        settled = {body for _, body in self.rows(state="settled")}
        assert settled | unsettled >= set(left)
        assert not settled & self.erased

    def by_group(self, queue: str) -> list[bytes]:
        self.groups += 1
        client = Client(self.node).open()
        client.prefetch(1000)
        client.consume(
            queue,
            "reader",
            arguments={"x-consumer-group": f"g{self.groups}", "x-stream-offset": "first"},
        )
        self.node.run()
        found = [each.body for each in client.deliveries()]
        client.transport.lose()
        self.node.run()
        return found

    def by_range(self, queue: str) -> list[bytes]:
        partition = self.node.queue(queue)
        reads = self.node.broker.range_reads
        packed = self.node.ask(reads.read(partition, RangeRequest(bounds_of(partition).first)))
        chunk = parse_chunk(b"".join(packed.parts))
        assert chunk.missing == 0
        values = chunk.columns["value"]
        return [values[row] for row in range(chunk.rows)]


TestReaders = ReadersMachine.TestCase
TestReaders.settings = settings(max_examples=examples(120), stateful_step_count=30)
