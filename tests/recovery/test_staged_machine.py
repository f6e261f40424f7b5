"""Staged batches against a naive model, through repetitions, aborts, time and kills."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from pamqp import commands

from leveret.errors import StorageError
from leveret.features.staged_batches.chunk_rows import InvalidChunkError
from leveret.features.staged_batches.rules import BatchRefusedError
from tests.recovery.node import Node
from tests.support.batches import Batches
from tests.support.chunks import Row
from tests.support.examples import examples

WRITERS = st.sampled_from(["v", "w"])
NUMBERS = st.integers(0, 4)
PARTS = st.sampled_from(["a", "b", "c"])
NAMES = st.lists(PARTS, unique=True, max_size=3)
KEYS = st.sampled_from(["q", "r", "both", "nowhere"])
CHUNKS = st.lists(st.lists(KEYS, max_size=4), max_size=3)
QUEUES_OF = {"q": ["q"], "r": ["r"], "both": ["q", "r"], "nowhere": []}
EXPIRE_SECONDS = 86_400
MOMENTS = st.integers(1, 40)  # calls of the file system until the node dies

Message = tuple[str, bytes]  # key and body


class BatchModel:
    """Model of what ought to be there."""

    def __init__(self) -> None:
        self.committed: dict[str, int] = {}
        self.parts: dict[tuple[str, int], dict[str, list[Message]]] = defaultdict(dict)
        self.contents: dict[tuple[str, int, str], list[list[Message]]] = {}  # also of earlier parts
        self.queues: dict[str, list[bytes]] = {"q": [], "r": []}

    def is_over(self, writer: str, number: int) -> bool:
        return number <= self.committed.get(writer, -1)

    def knows(self, writer: str) -> bool:
        staged = any(known == writer and parts for (known, _), parts in self.parts.items())
        return staged or writer in self.committed

    def stage(self, writer: str, number: int, part: str, chunks: list[list[Message]]) -> str:
        if self.is_over(writer, number):
            return "already committed"
        key = writer, number, part
        if part in self.parts[writer, number]:
            return "repeated" if chunks == self.contents[key] else "conflict"
        self.contents[key] = chunks
        self.parts[writer, number][part] = [message for chunk in chunks for message in chunk]
        return "staged"

    def commit(self, writer: str, number: int, names: list[str]) -> str:
        staged = self.parts[writer, number]
        if self.is_over(writer, number):
            outcome = "already committed"
        elif any(name not in staged for name in names):
            return "not_found"
        else:
            outcome = "committed"
            for name in names:
                for key, body in staged[name]:
                    for queue in QUEUES_OF[key]:
                        self.queues[queue].append(body)
            # An empty commit of a writer that is not known is not remembered.
            if names or self.knows(writer):
                self.committed[writer] = number
        for known, lower in list(self.parts):
            if known == writer and lower <= number:
                del self.parts[known, lower]
        return outcome

    def rows(self) -> dict[tuple[str, int], dict[str, int]]:
        return {
            batch: {name: len(messages) for name, messages in parts.items()}
            for batch, parts in self.parts.items()
            if parts
        }


class StagedMachine(RuleBasedStateMachine):
    """One node and its next lives."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.node = Node(self.loop, segment_bytes_max=2000)
        self.model = BatchModel()
        self.count = 0
        for name in ("q", "r"):
            self.node.client.declare(name, durable=True)
            for key in (name, "both"):
                self.node.client.call(commands.Queue.Bind(0, name, "amq.topic", key))
        self.opened()

    def opened(self) -> None:
        self.writers = Batches(self.node)

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.restart()
            self.check()
            assert self.node.reported == []
            self.node.kill()
            self.loop.close()

    # -- what writers do

    def messages(self, chunks: list[list[str]]) -> list[list[Message]]:
        """Give each message a body of its own."""
        made = []
        for keys in chunks:
            made.append([(key, b"%d" % (self.count + at)) for at, key in enumerate(keys)])
            self.count += len(keys)
        return made

    @staticmethod
    def rows(messages: list[list[Message]]) -> list[list[Row]]:
        return [[Row(key, body, "amq.topic") for key, body in each] for each in messages]

    @rule(writer=WRITERS, number=NUMBERS, part=PARTS, chunks=CHUNKS)
    def stage(self, writer: str, number: int, part: str, chunks: list[list[str]]) -> None:
        self.stage_messages(writer, number, part, self.messages(chunks))

    @rule(writer=WRITERS, number=NUMBERS, part=PARTS)
    def stage_again(self, writer: str, number: int, part: str) -> None:
        known = self.model.contents.get((writer, number, part))
        if known is not None and part in self.model.parts[writer, number]:
            self.stage_messages(writer, number, part, known)

    def stage_messages(
        self, writer: str, number: int, part: str, messages: list[list[Message]]
    ) -> None:
        expected = self.model.stage(writer, number, part, messages)
        answer = self.writers.do(self.staged(writer, number, part, messages))
        assert answer["outcome"] == expected
        if expected in {"staged", "repeated"}:
            assert answer["rows"] == len(self.model.parts[writer, number][part])

    async def staged(
        self, writer: str, number: int, part: str, messages: list[list[Message]]
    ) -> dict[str, object]:
        """Return the answer to an upload, or the code of what refuses it as the outcome."""
        try:
            return await self.writers.staging(writer, number, part, *self.rows(messages))
        except BatchRefusedError as error:
            return {"outcome": error.code}

    @rule(writer=WRITERS, number=NUMBERS, part=PARTS, chunks=CHUNKS)
    def break_off(self, writer: str, number: int, part: str, chunks: list[list[str]]) -> None:
        """An upload that ends early leaves nothing."""
        writers, rows = self.writers, self.rows(self.messages(chunks))

        async def upload() -> str:
            try:
                await writers.staging(writer, number, part, *rows, [Row(header=b"wrong")])
            except InvalidChunkError:
                return "broken off"
            except BatchRefusedError as error:
                return error.code
            return "ignored"

        if self.model.is_over(writer, number):
            expected = "ignored"
        else:
            expected = "conflict" if part in self.model.parts[writer, number] else "broken off"
        assert writers.do(upload()) == expected

    @rule(writer=WRITERS, number=NUMBERS, one=CHUNKS, other=CHUNKS)
    def stage_twice_at_once(
        self, writer: str, number: int, one: list[list[str]], other: list[list[str]]
    ) -> None:
        both = [self.messages(one), self.messages(other)]

        async def upload() -> list[dict[str, object]]:
            return await asyncio.gather(*(self.staged(writer, number, "a", each) for each in both))

        answers = self.writers.do(upload())
        for answer, messages in sorted(
            zip(answers, both, strict=True), key=lambda pair: pair[0]["outcome"] != "staged"
        ):
            assert self.model.stage(writer, number, "a", messages) == answer["outcome"]

    @rule(writer=WRITERS, number=NUMBERS, names=NAMES)
    def commit(self, writer: str, number: int, names: list[str]) -> None:
        expected = self.model.commit(writer, number, names)
        try:
            outcome = self.writers.commit(writer, number, *names)["outcome"]
        except BatchRefusedError as error:
            outcome = error.code
        assert outcome == expected

    @rule(writer=WRITERS, number=NUMBERS)
    def commit_all(self, writer: str, number: int) -> None:
        names = list(self.model.parts[writer, number])
        staged = [m for name in names for m in self.model.parts[writer, number][name]]
        if self.model.commit(writer, number, names) == "committed":
            assert self.writers.commit(writer, number, *names) == {
                "outcome": "committed",
                "messages": len(staged),
                "unrouted": sum(key == "nowhere" for key, _ in staged),
            }

    @rule(writer=WRITERS, number=NUMBERS)
    def abort(self, writer: str, number: int) -> None:
        parts = self.model.parts.pop((writer, number), {})
        assert self.writers.abort(writer, number) == len(parts)

    @rule(writer=WRITERS)
    def forget(self, writer: str) -> None:
        assert self.writers.forget(writer) == self.model.knows(writer)
        self.model.committed.pop(writer, None)
        self.drop(writer)

    def drop(self, writer: str) -> None:
        for batch in [batch for batch in self.model.parts if batch[0] == writer]:
            del self.model.parts[batch]

    # -- what happens to the node

    def restart(self) -> None:
        self.node.kill()
        self.node = self.node.next_life()
        self.opened()

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule()
    def close(self) -> None:
        self.node.close()
        self.node = self.node.next_life()
        self.opened()

    @rule()
    def wait_long(self) -> None:
        self.node.advance(EXPIRE_SECONDS + 61)
        self.node.advance(61)
        self.model.parts.clear()

    def die_in(self, moment: int, work: object) -> object | None:
        """Return the answer to something that the node may not survive; None if it did not."""
        self.node.files.fail_at = self.node.files.calls + moment
        answer = None
        with suppress(StorageError):
            answer = self.writers.do(work)
        if self.node.files.calls < self.node.files.fail_at:
            assert answer is not None
        self.node.reported.clear()
        self.restart()
        return answer

    @precondition(lambda self: hasattr(self, "model"))
    @rule(moment=MOMENTS, writer=WRITERS, number=NUMBERS, part=PARTS, chunks=CHUNKS)
    def die_while_staging(
        self, moment: int, writer: str, number: int, part: str, chunks: list[list[str]]
    ) -> None:
        messages = self.messages(chunks)
        work = self.staged(writer, number, part, messages)
        answer = self.die_in(moment, work)
        is_new = part not in self.model.parts[writer, number]
        known = self.writers.batches.book.part((self.writers.id(writer), number, part))
        if answer is not None or (is_new and known is not None):
            outcome = self.model.stage(writer, number, part, messages)
            assert answer is None or answer["outcome"] == outcome

    @rule(moment=MOMENTS, writer=WRITERS, number=NUMBERS)
    def die_while_committing(self, moment: int, writer: str, number: int) -> None:
        names = list(self.model.parts[writer, number])
        writers, id_ = self.writers, self.writers.id(writer)
        answer = self.die_in(moment, writers.batches.commit(id_, number, names, writers.rights))
        known = self.writers.batches.book.find(id_)
        is_over = self.model.is_over(writer, number)
        has_committed = known is not None and known.has_committed(number)
        assert has_committed or answer is None or not names
        if is_over:
            # Parts that it was to drop may be there or not.
            assert answer is None or answer["outcome"] == "already committed"
            return
        if has_committed:
            assert self.model.commit(writer, number, names) == "committed"

    @rule(moment=MOMENTS, writer=WRITERS, number=NUMBERS)
    def die_while_aborting(self, moment: int, writer: str, number: int) -> None:
        writers = self.writers
        answer = self.die_in(moment, writers.batches.abort(writers.id(writer), number))
        found = self.found()
        if answer is not None or (writer, number) not in found:
            assert (writer, number) not in found
            self.model.parts.pop((writer, number), None)

    # -- what must be so

    def found(self) -> dict[tuple[str, int], dict[str, int]]:
        found: dict[tuple[str, int], dict[str, int]] = defaultdict(dict)
        for part in self.writers.batches.book.parts():
            found[part.writer.name, part.number][part.name] = part.rows
        return dict(found)

    @invariant()
    def check(self) -> None:
        if not hasattr(self, "model"):
            return
        batches = self.writers.batches
        assert self.found() == self.model.rows()
        committed = {
            writer.id.name: writer.note.number for writer in batches.book if writer.note is not None
        }
        assert committed == self.model.committed
        for queue, bodies in self.model.queues.items():
            assert self.writers.bodies(queue) == bodies
        # Nothing is kept that nobody knows.
        staged = sum(sum(parts.values()) for parts in self.model.rows().values())
        assert self.writers.stored_count == staged
        assert batches.book.part_count == sum(map(len, self.model.rows().values()))
        assert batches.staged_bytes == batches.book.part_bytes


TestStaged = StagedMachine.TestCase
TestStaged.settings = settings(max_examples=examples(60), stateful_step_count=25)
