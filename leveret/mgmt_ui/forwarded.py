"""Requests of HTTP clients that another node of a cluster answers: the leader of the messages.

A request begins a stream of a link: a line of JSON, and the body behind it.

    {"method": "GET", "path": "/api/leveret/…", "query": "offset=7", "user": "app", "tags": [],
     "known": true, "peer": ["10.0.0.7", 51234], "partitions": [0]}

The first message of the answer is its head, the others are its body:

    {"status": 200, "headers": [["content-type", "application/json"]]}

Whoever asks ends its side of the stream when its client hangs up and what is under way shall be
finished; it fails the stream when nobody wants the answer any more.
"""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = [
    "FORWARDED",
    "MISDIRECTED",
    "AnswerHead",
    "ForwardedAnswer",
    "ForwardedMessageError",
    "ForwardedRequest",
    "ForwardedUser",
    "LeaderFailedError",
    "RequestForwarding",
]

FORWARDED: Final = "leveret.forwarded"  # in a request's scope: the ForwardedRequest that it is
MISDIRECTED: Final = 421  # status of a node that does not lead what it is asked for
METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE"})
PATHS: Final = "/api/leveret/"  # nothing else is forwarded
HEAD_BYTES_MAX: Final = (
    256 * 1024
)  # of a request: a target has 64 KiB, a queue a thousand partitions
ANSWER_HEAD_BYTES_MAX: Final = 16 * 1024
NAME_CHARACTERS_MAX: Final = 4096  # of a user, whom a token may name at length
TAGS_MAX: Final = 256
PORT_MAX: Final = 0xFFFF
# Headers of an answer that are passed on: the server adds the others.
HEADERS: Final = frozenset(
    {"cache-control", "content-length", "content-type", "retry-after", "x-content-type-options"}
)


class ForwardedMessageError(LeveretError):
    """Another node sends what is no forwarded request, or no answer to one."""


class LeaderFailedError(LeveretError):
    """Raised where the leader gives no answer, or not all of it.

    `has_begun`: it may have done what it was asked for. `status` is what a client is told.
    """

    def __init__(self, text: str, *, has_begun: bool, status: int = 503) -> None:
        super().__init__(text)
        self.has_begun = has_begun
        self.status = status


class ForwardedUser(NamedTuple):
    """The user of a forwarded request, whom the asked node has authenticated.

    `is_known`: the cluster's definitions have the user, and the leader checks the permissions
    itself. Others are users of tokens or of a service, of whom only the asked node knows.
    """

    name: str
    tags: tuple[str, ...]
    is_known: bool
    peer: tuple[str, int]  # host and port of the client


class ForwardedRequest(NamedTuple):
    """A request. `partitions` are those that the other node must lead, else it answers 421."""

    method: str
    path: str  # as it was sent, with its escapes
    query: str
    user: ForwardedUser
    partitions: tuple[int, ...]
    body: bytes = b""

    def pack(self) -> list[bytes | memoryview]:
        """Return the buffers that begin a stream."""
        user = self.user
        head = {
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "user": user.name,
            "tags": user.tags,
            "known": user.is_known,
            "peer": user.peer,
            "partitions": self.partitions,
        }
        return [json.dumps(head, separators=(",", ":")).encode() + b"\n", self.body]

    @classmethod
    def parse(cls, payload: memoryview) -> ForwardedRequest:
        """Return the request that begins a stream. Raises ForwardedMessageError."""
        line, newline, _ = bytes(payload[:HEAD_BYTES_MAX]).partition(b"\n")
        match _json(line):
            case {
                "method": str(method),
                "path": str(path),
                "query": str(query),
                "user": str(name),
                "tags": list(tags),
                "known": bool(is_known),
                "peer": [str(host), int(port)],
                "partitions": list(partitions),
            }:
                user = ForwardedUser(name, tuple(tags), is_known, (host, port))
                body = bytes(payload[len(line) + 1 :])
                request = cls(method, path, query, user, tuple(partitions), body)
                if newline and request.is_valid:
                    return request
        raise ForwardedMessageError("no request to be forwarded")

    @property
    def is_valid(self) -> bool:
        """Whether it may be answered: what comes from another node is not trusted, either."""
        user = self.user
        return (
            self.method in METHODS
            and self.path.startswith(PATHS)
            and self.path.isascii()
            and self.query.isascii()
            and 0 < len(user.name) <= NAME_CHARACTERS_MAX
            and len(user.tags) <= TAGS_MAX
            and all(isinstance(tag, str) for tag in user.tags)
            and 0 <= user.peer[1] <= PORT_MAX
            and all(type(number) is int and number >= 0 for number in self.partitions)
        )


class AnswerHead(NamedTuple):
    """Status and headers of an answer."""

    status: int
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, message: Any) -> AnswerHead:
        """Return the head that an application sends (see the ASGI specification)."""
        told = [
            (bytes(n).decode("latin-1"), bytes(v).decode("latin-1")) for n, v in message["headers"]
        ]
        return cls(message["status"], tuple(each for each in told if each[0] in HEADERS))

    def pack(self) -> bytes:
        """Return the first message of an answer."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def parse(cls, payload: memoryview) -> AnswerHead:
        """Return what the first message of an answer says. Raises ForwardedMessageError."""
        told = _json(bytes(payload)) if len(payload) <= ANSWER_HEAD_BYTES_MAX else None
        match told:
            case {"status": int(status), "headers": list(headers)} if 200 <= status < 600:
                if all(map(_is_header, headers)):
                    return cls(status, tuple((name, value) for name, value in headers))
        raise ForwardedMessageError("no answer to a forwarded request")


class ForwardedAnswer(Protocol):
    """The answer of a leader, as it comes."""

    async def head(self) -> AnswerHead:
        """Wait for the head. Raises LeaderFailedError."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the body, after the head. Raises LeaderFailedError."""
        ...

    def hang_up(self) -> None:
        """Let the leader finish as if the client were gone: it answers with what it has."""
        ...


class RequestForwarding(Protocol):
    """The nodes of a cluster, as HTTP requests reach them."""

    @property
    def node(self) -> int:
        """Number of this node."""
        ...

    def ask(
        self, node: int, request: ForwardedRequest
    ) -> AbstractAsyncContextManager[ForwardedAnswer]:
        """Ask a node, maybe this one, for what it leads. Raises LeaderFailedError.

        What is not received of the answer at the end is not wanted: the other node stops its work.
        """
        ...


def _json(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_header(told: object) -> bool:
    if not isinstance(told, list) or not all(isinstance(each, str) for each in told):
        return False
    if len(told) != 2 or told[0] not in HEADERS:
        return False
    value = told[1]
    return bool(value.isascii() and value.isprintable())
