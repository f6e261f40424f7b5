"""Writer of staged batches: one HTTP connection, kept open between requests.

Not safe for several threads at once; each has a writer of its own. Commits and aborts are repeated
once where the kept connection turns out to be closed: a repetition changes nothing.
"""

from __future__ import annotations

import base64
import http.client
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable
    from typing import Self

__all__ = ["BatchWriter", "CommitResult", "WriteRefusedError"]

TIMEOUT_S: Final = 90.0  # longer than the longest answer
REASON_BYTES_MAX: Final = 1 << 20  # of an answer that refuses; ours have some hundred
CHUNK_TYPE: Final = "application/vnd.leveret.chunk"


class WriteRefusedError(Exception):
    """An answer that is no success: its HTTP status, and the reason.

    `retry_after_s` is set where the same request may be sent again after that time.
    """

    def __init__(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class CommitResult:
    """Result of a commit. Of one that was repeated it is not known what it has published."""

    is_repeated: bool
    messages: int = 0
    unrouted: int = 0


class BatchWriter:
    """Client for the batches of one virtual host. `url` is that of the management port.

    Raises OSError or http.client.HTTPException where the node cannot be reached; whether a commit
    has happened is then told by the same commit, sent again.
    """

    def __init__(
        self,
        url: str,
        user: str,
        password: str,
        vhost: str = "/",
        *,
        context: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        place = urlsplit(url)
        if place.scheme not in {"http", "https"} or place.hostname is None:
            raise ValueError(f"no URL of a management port: {url!r}")
        self._connection: http.client.HTTPConnection
        if place.scheme == "https":
            self._connection = http.client.HTTPSConnection(
                place.hostname, place.port, timeout=timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(
                place.hostname, place.port, timeout=timeout_s
            )
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}"}
        self._root = f"/api/leveret/batches/{quote(vhost, safe='')}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        self._connection.close()

    def stage(self, writer: str, number: int, part: str, chunks: Iterable[bytes]) -> int:
        """Stage a part of a batch; return its rows when it is safe.

        A part that is there already stays as it is, and of a batch that was committed already
        nothing is stored: its rows are 0. Raises WriteRefusedError.
        """
        target = f"{self._batch(writer, number)}/parts/{quote(part, safe='')}"
        # No chunk of HTTP may be empty: it would end the body.
        answer = self._upload(target, (chunk for chunk in chunks if chunk))
        rows: int = answer["rows"]
        return rows

    def commit(self, writer: str, number: int, parts: Iterable[str]) -> CommitResult:
        """Publish the messages of these parts, all or none, and once. Raises WriteRefusedError."""
        asked = json.dumps({"parts": list(parts)}).encode()
        answer = self._asked("POST", f"{self._batch(writer, number)}/commit", asked)
        if answer["outcome"] != "committed":
            return CommitResult(is_repeated=True)
        return CommitResult(
            is_repeated=False, messages=answer["messages"], unrouted=answer["unrouted"]
        )

    def abort(self, writer: str, number: int) -> None:
        """Drop what is staged of a batch. Raises WriteRefusedError."""
        self._asked("DELETE", self._batch(writer, number))

    def last_committed(self, writer: str, user: str) -> int | None:
        """Return the number of the batch that a writer has committed last, or None.

        Raises WriteRefusedError.
        """
        rows: list[dict[str, Any]] = self._asked("GET", self._root)
        found = (row["committed"] for row in rows if (row["writer"], row["user"]) == (writer, user))
        return next(found, None)

    def _batch(self, writer: str, number: int) -> str:
        return f"{self._root}/{quote(writer, safe='')}/{number}"

    def _upload(self, target: str, chunks: Iterable[bytes]) -> Any:
        headers = {
            **self._headers,
            "Content-Type": CHUNK_TYPE,
            "Transfer-Encoding": "chunked",
        }
        try:
            # Where the node has refused it before all was sent, it says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._connection.request("POST", target, chunks, headers, encode_chunked=True)
            return _read(self._connection.getresponse())
        except WriteRefusedError:
            self._connection.close()  # it may not have read all
            raise
        except BaseException:
            self._connection.close()
            raise

    def _asked(self, method: str, target: str, body: bytes | None = None) -> Any:
        try:
            return _read(self._answer(method, target, body))
        except WriteRefusedError:
            raise
        except BaseException:
            self._connection.close()
            raise

    def _answer(self, method: str, target: str, body: bytes | None) -> http.client.HTTPResponse:
        is_kept = self._connection.sock is not None
        headers = self._headers if body is None else {
            **self._headers, "Content-Type": "application/json"
        }  # fmt: skip
        try:
            self._connection.request(method, target, body, headers)
            return self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()
            if not is_kept:
                raise
        self._connection.request(method, target, body, headers)
        return self._connection.getresponse()


def _read(answer: http.client.HTTPResponse) -> Any:
    """Return the JSON of an answer; None if it has no body. Raises WriteRefusedError."""
    if answer.status >= 300:
        raise _refusal(answer)
    told = answer.read()
    return json.loads(told) if told else None


def _refusal(answer: http.client.HTTPResponse) -> WriteRefusedError:
    told = answer.read(REASON_BYTES_MAX)
    try:
        reason = str(json.loads(told)["reason"])
    except (ValueError, KeyError, TypeError):
        reason = answer.reason
    after = answer.getheader("retry-after") or ""
    return WriteRefusedError(answer.status, reason, float(after) if after.isdigit() else None)
