"""Clients of a node's HTTP API, and their connection: one, kept open between requests.

What the clients for jobs stand on: `leveret.range_reader` and `leveret.batch_writer`. It needs
nothing but the standard library. Not safe for several threads at once.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Self

__all__ = ["ApiClient", "ApiConnection", "RequestRefusedError", "WrongPortError"]

TIMEOUT_S: Final = 90.0  # longer than the longest wait and answer
TLS_ALERT: Final = "\x15\x03"  # how a server of TLS may answer what is none
REASON_BYTES_MAX: Final = 1 << 20  # of an answer that refuses; ours have some hundred
# What the HTTP API says in one word, as RabbitMQ does and for programs, in words for people.
SENTENCES: Final = {
    "Not_Authorized": "wrong user or password",
    "vhost_not_found": "there is no such virtual host: create it, or name another one",
    "queue_not_found": "there is no such queue or stream: declare it, or name another one",
    "partition_not_found": "there is no such partition: it was removed, or never there",
}


class RequestRefusedError(Exception):
    """An answer that is no success: its HTTP status, and the reason as a sentence.

    `retry_after_s` is set where the same request may be sent again after that time. `details` is
    the answer's JSON object, empty if it has none: where its `reason` is one word, it is that word.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        retry_after_s: float | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.details = details or {}


class WrongPortError(OSError):
    """The port has another protocol than its URL says: to try again does not help."""


class ApiConnection:
    """Sends requests of one user to the node at `url`, that of its management port.

    `refusal` makes the error for an answer that is no success. Besides it, requests raise OSError
    or http.client.HTTPException where the node cannot be reached.
    """

    def __init__(
        self,
        url: str,
        user: str,
        password: str,
        *,
        refusal: Callable[[int, str, float | None, dict[str, Any]], RequestRefusedError],
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
        self._refusal = refusal

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        self._connection.close()

    def ask(self, method: str, target: str, body: object = None) -> Any:
        """Return the JSON of the answer to a request that may be repeated; None if it has no body.

        `body` is sent as JSON, unless it is None.
        """
        with self.answered(method, target, body) as answer:
            told = answer.read()
        return json.loads(told) if told else None

    @contextmanager
    def answered(
        self, method: str, target: str, body: object = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request that may be repeated.

        It is repeated once where the kept connection turns out to be closed. What is not read of
        the answer closes the connection.
        """
        with self._closing_on_failure():
            data = None if body is None else json.dumps(body).encode()
            answer = self._answer(method, target, data)
            self._check(answer)
            yield answer
        if not answer.isclosed():
            self._connection.close()

    def upload(self, target: str, chunks: Iterable[bytes], content_type: str) -> Any:
        """Send a body of any length by POST, not empty chunks; return the JSON of the answer."""
        headers = {
            **self._headers,
            "Content-Type": content_type,
            "Transfer-Encoding": "chunked",
        }
        with self._closing_on_failure():
            # Where the node has refused it before all was sent, it says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._connection.request("POST", target, chunks, headers, encode_chunked=True)
            answer = self._connection.getresponse()
            try:
                self._check(answer)
            except RequestRefusedError:
                self._connection.close()  # it may not have read all
                raise
            return json.loads(answer.read())

    @contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Close the connection on any error but a refusal, which was read to its end.

        Raises WrongPortError for an answer in another protocol.
        """
        try:
            yield
        except RequestRefusedError:
            raise
        except (http.client.BadStatusLine, ssl.SSLError) as error:
            self._connection.close()
            spoken = _protocol_of(error)
            if spoken is None:
                raise
            host, port = self._connection.host, self._connection.port
            raise WrongPortError(f"port {port} of {host} {spoken}") from error
        except BaseException:
            self._connection.close()
            raise

    def _answer(self, method: str, target: str, body: bytes | None) -> http.client.HTTPResponse:
        is_kept = self._connection.sock is not None
        kind = {} if body is None else {"Content-Type": "application/json"}
        headers = {**self._headers, **kind}
        try:
            self._connection.request(method, target, body, headers)
            return self._connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            self._connection.close()
            if not is_kept:
                raise
        self._connection.request(method, target, body, headers)
        return self._connection.getresponse()

    def _check(self, answer: http.client.HTTPResponse) -> None:
        """Raise a RequestRefusedError for an answer that is no success."""
        if answer.status < 300:
            return
        told = answer.read(REASON_BYTES_MAX)
        if not answer.isclosed():
            self._connection.close()
        after = answer.getheader("retry-after") or ""
        details = _json_object(told)
        reason = str(details.get("reason", answer.reason))
        seconds = float(after) if after.isdigit() else None
        raise self._refusal(answer.status, SENTENCES.get(reason, reason), seconds, details)


class ApiClient:
    """Client for one virtual host; what it asks for is in the classes made of it.

    `url` is that of the management port. Raises OSError or http.client.HTTPException where the
    node cannot be reached.
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
        self._connection = ApiConnection(
            url, user, password, refusal=self._refusal, context=context, timeout_s=timeout_s
        )
        self._vhost = quote(vhost, safe="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        self._connection.close()

    @staticmethod
    def _refusal(
        status: int, reason: str, retry_after_s: float | None, details: dict[str, Any]
    ) -> RequestRefusedError:
        """Return the error for an answer that is no success."""
        return RequestRefusedError(status, reason, retry_after_s, details)


def _protocol_of(error: http.client.BadStatusLine | ssl.SSLError) -> str | None:
    """Return what is spoken at the port of a failed request, None if that is not known."""
    if isinstance(error, ssl.SSLError):  # the first bytes of an answer have no version of TLS
        return "has no TLS: write http://" if error.reason == "WRONG_VERSION_NUMBER" else None
    line = str(error)
    if line.startswith("AMQP"):
        return "is for AMQP: write that of the management port, such as http://HOST:15672"
    return "has TLS: write https://" if line.startswith(TLS_ALERT) else None


def _json_object(text: bytes) -> dict[str, Any]:
    """Return the object of a JSON text, an empty one if it has none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
