"""Requests about messages that other nodes of the cluster lead: their leaders answer.

    route ──► check_led_here ──► AnsweredElsewhereError ──► LeadersAnswer ──► a leader's, passed on
                                                                 │            piece by piece
                                                                 └─► several: a route's `Spread`

The node that is asked has authenticated the user and checked the permissions; the leader checks
them again, by the definitions that all nodes have. A leader forwards nothing: what it does not lead
it answers with 421, and the node that was asked looks for the next leader.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fastapi import Response
from fastapi.responses import JSONResponse

from leveret.core.access.permissions import InternalRights
from leveret.errors import LeveretError
from leveret.mgmt_ui.api.bodies import BODY_BYTES_MAX, READ_BODY, read_body
from leveret.mgmt_ui.api.listing import PRIVATE
from leveret.mgmt_ui.api.problems import ApiError
from leveret.mgmt_ui.api.reading import watching
from leveret.mgmt_ui.forwarded import (
    FORWARDED,
    MISDIRECTED,
    ForwardedRequest,
    ForwardedUser,
    LeaderFailedError,
)
from leveret.mgmt_ui.http_connections import AnswerCutError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from leveret.core.queues.declared_queue import DeclaredQueue
    from leveret.mgmt_ui.api.callers import Caller
    from leveret.mgmt_ui.forwarded import AnswerHead, ForwardedAnswer, RequestForwarding

__all__ = [
    "AnsweredElsewhereError",
    "LeaderFailedError",
    "LeaderRefusedError",
    "LeadersAsked",
    "LeadersTold",
    "MisdirectedError",
    "Shares",
    "Spread",
    "answer_elsewhere",
    "answer_misdirected",
    "check_led_here",
]

# A leader is looked for so often, ten seconds in all, as commands do it.
LEADER_POLLS: Final = 100
LEADER_POLL_SECONDS: Final = 0.1
# Of an answer that is put together of several: a receive may be of 64 MiB, in base64.
ANSWER_BYTES_MAX: Final = 96 << 20
REPEATABLE: Final = "GET"  # may be asked of another leader, whatever the last one has done
NAMES: Final = {
    429: "too_many_requests",
    500: "internal_server_error",
    503: "service_unavailable",
}

# Numbers of partitions, by the node that leads them.
Shares: TypeAlias = Mapping[int, tuple[int, ...]]
# Answers a request of which each leader has a share. Raises as LeadersAsked.told does.
Spread: TypeAlias = Callable[["LeadersAsked", Shares], Awaitable[Response]]


def _is_never_enough(_answer: dict[str, Any]) -> bool:
    return False


class AnsweredElsewhereError(LeveretError):
    """Raised by a route for messages that this node does not lead, or not all of them."""

    def __init__(
        self, caller: Caller, queue: DeclaredQueue, numbers: tuple[int, ...], spread: Spread | None
    ) -> None:
        super().__init__(f"{queue} is led by other nodes")
        self.caller = caller
        self.queue = queue
        self.numbers = numbers
        self.spread = spread


class MisdirectedError(LeveretError):
    """Raised where a node is asked for what it does not lead, or not any more."""


class LeaderRefusedError(LeveretError):
    """A leader's answer that is no success."""

    def __init__(self, head: AnswerHead, body: bytes) -> None:
        super().__init__(head.status)
        self.head = head
        self.body = body


def check_led_here(
    caller: Caller,
    request: Request,
    queue: DeclaredQueue,
    number: str | None = None,
    spread: Spread | None = None,
) -> None:
    """Check that this node leads a partition, or all of them; another number is nobody's.

    Raises AnsweredElsewhereError if it does not, MisdirectedError if another node asks.
    """
    forwarding = caller.node.forwarding
    if forwarding is None:
        return
    asked: ForwardedRequest | None = request.scope.get(FORWARDED)
    if asked is not None:
        led = {part.number for part in queue.partitions}
        if not led or not led.issuperset(asked.partitions):
            raise MisdirectedError(f"node {forwarding.node} does not lead {queue}")
        return
    places = [each for each in queue.places if number is None or str(each.number) == number]
    if not all(place.is_led_here for place in places):
        numbers = tuple(place.number for place in places)
        raise AnsweredElsewhereError(caller, queue, numbers, spread)


# -- at the node that is asked


@dataclass(frozen=True, slots=True)
class LeadersAsked:
    """A request of a client, as leaders are asked for it."""

    forwarding: RequestForwarding
    error: AnsweredElsewhereError
    method: str
    path: str
    query: str
    user: ForwardedUser
    body: bytes

    @property
    def queue(self) -> DeclaredQueue:
        """Queue that the request is about."""
        return self.error.queue

    @property
    def fields(self) -> dict[str, Any]:
        """The request's JSON object, which the route has checked."""
        return dict(json.loads(self.body)) if self.body else {}

    def shares(self) -> Shares | None:
        """Return who leads the partitions; None while one of them has no leader."""
        found: dict[int, tuple[int, ...]] = {}
        numbers = self.error.numbers
        for place in self.queue.places:
            if place.number in numbers:
                leader = self.forwarding.node if place.is_led_here else place.leading_node
                if leader is None:
                    return None
                found[leader] = (*found.get(leader, ()), place.number)
        return found

    def request(
        self, numbers: tuple[int, ...], asked: Mapping[str, Any] | None = None
    ) -> ForwardedRequest:
        """Return what is sent for some partitions: the body, or another JSON object."""
        body = self.body if asked is None else json.dumps(asked).encode()
        return ForwardedRequest(self.method, self.path, self.query, self.user, numbers, body)

    async def told(
        self,
        node: int,
        request: ForwardedRequest,
        begun: Callable[[ForwardedAnswer], object] | None = None,
    ) -> dict[str, Any]:
        """Return the JSON object that a node answers; `begun` is told of the answer to come.

        Raises MisdirectedError, LeaderRefusedError, LeaderFailedError.
        """
        async with self.forwarding.ask(node, request) as answer:
            if begun is not None:
                begun(answer)
            head = await answer.head()
            if head.status == MISDIRECTED:
                raise MisdirectedError(f"node {node} does not lead {self.queue}")
            body = bytearray()
            async for piece in answer.pieces():
                body += piece
                if len(body) > ANSWER_BYTES_MAX:
                    raise LeaderFailedError(f"node {node} answers too much", has_begun=True)
        if head.status != 200:
            raise LeaderRefusedError(head, bytes(body))
        try:
            told = json.loads(body)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise LeaderFailedError(f"node {node} answers no JSON object", has_begun=True)
        return told

    async def all_told(
        self,
        requests: Mapping[int, ForwardedRequest],
        is_enough: Callable[[dict[str, Any]], bool] = _is_never_enough,
    ) -> LeadersTold:
        """Return what nodes answer, asked at once.

        As soon as one answer is enough, the others shall end what they wait for: they answer with
        what they have by then.
        """
        under_way: list[ForwardedAnswer] = []
        has_enough = False
        found = LeadersTold({}, [])

        def begun(answer: ForwardedAnswer) -> None:
            under_way.append(answer)
            if has_enough:
                answer.hang_up()

        async def ask(node: int, request: ForwardedRequest) -> None:
            nonlocal has_enough
            try:
                answer = found.answers[node] = await self.told(node, request, begun)
            except (MisdirectedError, LeaderRefusedError, LeaderFailedError) as error:
                found.errors.append(error)
                return
            if is_enough(answer) and not has_enough:
                has_enough = True
                for each in under_way:
                    each.hang_up()

        async with asyncio.TaskGroup() as group:
            for node, request in requests.items():
                group.create_task(ask(node, request))
        return found


@dataclass(frozen=True, slots=True)
class LeadersTold:
    """Answers of nodes, and the errors of the others."""

    answers: dict[int, dict[str, Any]]
    errors: list[LeveretError]

    def check(self) -> None:
        """Raise the first error, if there is one."""
        if self.errors:
            raise self.errors[0]

    def total(self, field: str) -> int:
        """Return the sum of a number that all have answered."""
        return sum(answer[field] for answer in self.answers.values())


async def answer_elsewhere(request: Request, error: Exception) -> Response:
    """Have the leaders answer a request (see the handlers of exceptions of FastAPI)."""
    assert isinstance(error, AnsweredElsewhereError)
    caller, scope = error.caller, request.scope
    forwarding = caller.node.forwarding
    assert forwarding is not None, "a node alone leads everything"
    body = scope.get(READ_BODY)
    if body is None and request.method != REPEATABLE:
        try:
            body = await read_body(request, BODY_BYTES_MAX)
        except ApiError as refused:
            return _refusal(refused.status, refused.error, refused.reason)
    user = ForwardedUser(
        caller.name,
        tuple(caller.tags),
        isinstance(caller.rights, InternalRights),
        (caller.peer, request.client.port if request.client is not None else 0),
    )
    query = scope["query_string"].decode("latin-1")
    return LeadersAnswer(
        LeadersAsked(forwarding, error, request.method, scope["path"], query, user, body or b"")
    )


class LeadersAnswer(Response):
    """The answer of the leader, or what is made of the answers of several.

    It is sent as it comes. Where the leader is lost in the middle of its answer, the connection is
    cut, so that the client does not take a part for the whole.
    """

    def __init__(self, asked: LeadersAsked) -> None:
        super().__init__()
        self._asked = asked
        self._is_cut = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, unless the client hangs up before (see the ASGI specification)."""
        async with asyncio.TaskGroup() as group:
            answering = group.create_task(self._answer(scope, receive, send))

            def hung_up() -> None:
                answering.cancel()

            async with watching(receive, hung_up):
                await asyncio.wait([answering])
        if self._is_cut:
            raise AnswerCutError

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._led(send)
        except LeaderFailedError as error:
            response = _refusal(error.status, NAMES[error.status], str(error))
        except LeaderRefusedError as refused:
            response = Response(refused.body, refused.head.status, dict(refused.head.headers))
        if response is not None:
            await response(scope, receive, send)

    async def _led(self, send: Send) -> Response | None:
        """Ask who leads, again and again; None once the answer is sent.

        Raises LeaderFailedError, LeaderRefusedError.
        """
        asked, spread = self._asked, self._asked.error.spread
        failure = LeaderFailedError(f"{asked.queue} has no leader now", has_begun=False)
        for _ in range(LEADER_POLLS):
            shares = asked.shares()
            try:
                if shares is not None and len(shares) > 1 and spread is not None:
                    return await spread(asked, shares)
                if shares:
                    await self._pass_on(*next(iter(shares.items())), send)
                    return None
            except MisdirectedError as error:
                failure = LeaderFailedError(str(error), has_begun=False)
            except LeaderFailedError as error:
                if error.status != failure.status or self._is_over(error):
                    raise
                failure = error
            if asked.queue.deleted:
                return _refusal(404, "not_found", "queue_not_found")
            await asyncio.sleep(LEADER_POLL_SECONDS)
        raise failure

    def _is_over(self, error: LeaderFailedError) -> bool:
        """Whether a request must not be sent once more, since its leader may have begun with it."""
        return error.has_begun and self._asked.method != REPEATABLE

    async def _pass_on(self, node: int, numbers: tuple[int, ...], send: Send) -> None:
        """Send what a leader answers. Raises MisdirectedError, LeaderFailedError."""
        asked = self._asked
        async with asked.forwarding.ask(node, asked.request(numbers)) as answer:
            head = await answer.head()
            if head.status == MISDIRECTED:
                raise MisdirectedError(f"node {node} does not lead {asked.queue}")
            headers = [(name.encode(), value.encode()) for name, value in head.headers]
            await send({"type": "http.response.start", "status": head.status, "headers": headers})
            try:
                async for piece in answer.pieces():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except LeaderFailedError:
                self._is_cut = True
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _refusal(status: int, error: str, reason: str) -> Response:
    headers = dict(PRIVATE)
    if status in {429, 503}:
        headers["retry-after"] = "1"
    return JSONResponse({"error": error, "reason": reason}, status, headers)


# -- at the leader


async def answer_misdirected(_: Request, error: Exception) -> Response:
    """Answer another node that asks for what is not led here."""
    return _refusal(MISDIRECTED, "misdirected", str(error))
