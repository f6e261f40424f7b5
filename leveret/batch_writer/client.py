"""Writer of staged batches: one HTTP connection, kept open between requests.

Not safe for several threads at once; each has a writer of its own. Commits and aborts are repeated
once where the kept connection turns out to be closed: a repetition changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from leveret.api_connection import ApiClient, RequestRefusedError
from leveret.batch_writer.packing import pack_chunk, repeated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["BatchWriter", "CommitResult", "WriteRefusedError"]

CHUNK_TYPE: Final = "application/vnd.leveret.chunk"


class WriteRefusedError(RequestRefusedError):
    """A batch, or a part of one, is refused."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a commit. Of one that was repeated it is not known what it has published."""

    is_repeated: bool
    messages: int = 0
    unrouted: int = 0


class BatchWriter(ApiClient):
    """Client for the batches of one virtual host. `url` is that of the management port.

    Raises OSError or http.client.HTTPException where the node cannot be reached; whether a commit
    has happened is then told by the same commit, sent again.
    """

    @property
    def _root(self) -> str:
        return f"/api/leveret/batches/{self._vhost}"

    def stage(self, writer: str, number: int, part: str, chunks: Iterable[bytes]) -> int:
        """Stage a part of a batch; return its rows when it is safe.

        A part that is there already stays as it is: the same chunks again change nothing, others
        are refused with 409. Of a batch that was committed already nothing is stored: its rows are
        0. Raises WriteRefusedError.
        """
        target = f"{self._batch(writer, number)}/parts/{quote(part, safe='')}"
        answer = self._connection.upload(target, _not_empty(chunks), CHUNK_TYPE)
        rows: int = answer["rows"]
        return rows

    def commit(
        self, writer: str, number: int, parts: Iterable[str], *, mandatory: bool = False
    ) -> CommitResult:
        """Publish the messages of these parts, all or none, and once. Raises WriteRefusedError.

        If it is `mandatory`, messages that find no queue refuse it.
        """
        target = f"{self._batch(writer, number)}/commit"
        answer = self._connection.ask(
            "POST", target, {"parts": list(parts), "mandatory": mandatory}
        )
        if answer["outcome"] != "committed":
            return CommitResult(is_repeated=True)
        return CommitResult(
            is_repeated=False, messages=answer["messages"], unrouted=answer["unrouted"]
        )

    def abort(self, writer: str, number: int) -> None:
        """Drop what is staged of a batch. Raises WriteRefusedError."""
        self._connection.ask("DELETE", self._batch(writer, number))

    def forget(self, writer: str) -> None:
        """Forget a writer and what it has staged. Raises WriteRefusedError."""
        self._connection.ask("DELETE", f"{self._root}/{quote(writer, safe='')}")

    def last_committed(self, writer: str, user: str) -> int | None:
        """Return the number of the batch that a writer has committed last, or None.

        Raises WriteRefusedError.
        """
        rows: list[dict[str, Any]] = self._connection.ask("GET", self._root)
        found = (row["committed"] for row in rows if (row["writer"], row["user"]) == (writer, user))
        return next(found, None)

    def _batch(self, writer: str, number: int) -> str:
        return f"{self._root}/{quote(writer, safe='')}/{number}"

    @staticmethod
    def _refusal(
        status: int, reason: str, retry_after_s: float | None, details: dict[str, Any]
    ) -> WriteRefusedError:
        return WriteRefusedError(status, reason, retry_after_s, details)


def _not_empty(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield chunks, one without rows if there are none.

    No chunk of HTTP may be empty, which would end the body, and nor may the body.
    """
    is_empty = True
    for chunk in chunks:
        if chunk:
            is_empty = False
            yield chunk
    if is_empty:
        none = repeated(b"", 0)
        yield pack_chunk(0, exchange=none, routing_key=none, header=none, value=none)
