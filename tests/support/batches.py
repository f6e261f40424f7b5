"""Staged batches of a node whose loop is run by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.core.access.permissions import InternalRights
from leveret.features.staged_batches.records import WriterId
from tests.support.chunks import Row, chunk

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tests.recovery.node import Node

__all__ = ["Batches"]


class Batches:
    """Writers of a user on a node; what is refused is raised."""

    def __init__(self, node: Node, user: str = "guest") -> None:
        self.node = node
        self.user = user
        self.of_node = node.broker.batches
        self.vhost = node.broker.vhosts["/"]

    @property
    def batches(self):
        return self.of_node.of(self.vhost)

    @property
    def rights(self):
        return self.of_node.rights(self.vhost, InternalRights(self.node.access, self.user))

    def id(self, writer: str) -> WriterId:
        return WriterId(writer, self.user)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end, with everything that it waits for."""
        outcome: list[tuple[bool, Any]] = []

        async def noted() -> None:
            try:
                outcome.append((True, await work))
            except Exception as error:  # noqa: BLE001  # raised by `do`
                outcome.append((False, error))

        self.node.spawn(noted())
        self.node.run()
        is_done, result = outcome[0]
        if not is_done:
            raise result
        return result

    def stage(self, writer: str, number: int, part: str, *chunks: Sequence[Row]) -> dict[str, Any]:
        return self.do(self.staging(writer, number, part, *chunks))

    async def staging(
        self, writer: str, number: int, part: str, *chunks: Sequence[Row]
    ) -> dict[str, Any]:
        with self.batches.upload(self.id(writer), number, part, self.rights) as upload:
            for rows in chunks:
                await upload.take(chunk(*rows))
            return await upload.finish()

    def commit(
        self, writer: str, number: int, *parts: str, mandatory: bool = False
    ) -> dict[str, Any]:
        committed = self.batches.commit(
            self.id(writer), number, parts, self.rights, mandatory=mandatory
        )
        return self.do(committed)

    def abort(self, writer: str, number: int) -> int:
        return self.do(self.batches.abort(self.id(writer), number))

    def forget(self, writer: str) -> bool:
        return self.do(self.batches.forget(self.id(writer)))

    def bodies(self, queue: str) -> list[bytes]:
        """Bodies of the messages in a queue, in order."""
        return [record[6] for record in self.records(queue)]

    def records(self, queue: str) -> list[tuple[Any, ...]]:
        return self.do(self._records(self.node.queue(queue).log))

    @staticmethod
    async def _records(log: Any) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for first, stop in log.settled.gaps(log.first, log.committed):
            offset = first
            while offset < stop:
                for batch in await log.fetch(offset, 1000):
                    found += [each for each in batch.records() if first <= each[0] < stop]
                    offset = batch.stop_offset
        return found

    @property
    def stored_count(self) -> int:
        """Number of records that the topic of staged messages holds."""
        log = self.batches.records.log
        return log.end - log.settled.overlap(0, log.end)
