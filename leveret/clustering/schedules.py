"""Commands about delayed messages that another node leads: `leveret.schedule` on every node.

A request and its answer are AMQP tables:

    {"ask": "cancel", "vhost": "/", "id": "a1", "owner": "app", "user": "app", "exchanges": ["x"]}
    {"ask": "reschedule", …, "due_ms": 1700000000000}
    {"ask": "exchanges", "vhost": "/", "exchange": "x", "headers": {"n": 1}, "owner": "app"}
    {"ask": "committed", "vhost": "/"}

    {"count": 3}    {"exchanges": ["x"]}    {}

Without `id` the other fields select the messages (DelayedMessageFilter). Whoever does not lead them
refuses; the next leader is looked for, as a client waits for one.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from leveret.clustering.forwarding.channel import MALFORMED, NOT_LEADING
from leveret.core.definitions.validation import AdministrationError
from leveret.core.events import acting_as, actor
from leveret.errors import StorageError
from leveret.features.delay.search import DelayedMessageFilter
from leveret.links.errors import LinkError, PeerRefusedError
from leveret.ports.link_kinds import ASK_SCHEDULES
from leveret.ports.tables import MalformedFieldError, decode_table, encode_table
from leveret.ports.waiting import ended

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from leveret.features.delay.delayed_queue import DelayedQueues
    from leveret.features.delay.schedules import Schedules
    from leveret.links.accepted import RequestHandler
    from leveret.links.identity import NodeIdentity
    from leveret.links.links import Links

__all__ = ["LedSchedules"]

LEADER_SECONDS_MAX: Final = 10.0
LEADER_POLL_SECONDS: Final = 0.1
ANSWER_SECONDS_MAX: Final = 60.0  # a million messages may be looked at
REFUSED: Final = 102  # code of a request that the leader cannot carry out, with the reason


class LedSchedules:
    """Delayed messages of all virtual hosts, at their leaders (see SchedulesOfVhosts)."""

    def __init__(self, links: Links, queues: DelayedQueues, schedules: Schedules) -> None:
        """`schedules` are those of this node."""
        self._links = links
        self._queues = queues
        self._schedules = schedules

    @property
    def requests(self) -> Mapping[int, RequestHandler]:
        """Handlers of other nodes' requests, by their kinds."""
        return {ASK_SCHEDULES: self.serve}

    # -- asking

    async def committed(self, vhost: str) -> None:
        """See SchedulesOfVhosts."""
        place = self._queues.place(vhost)
        if place is not None:
            await ended(place.await_commit)  # the leader has what was published here
        await self._ask({"ask": "committed", "vhost": vhost})

    async def exchanges(
        self, vhost: str, chosen: str | DelayedMessageFilter, *, owner: str | None = None
    ) -> set[str]:
        """See SchedulesOfVhosts."""
        question = {"ask": "exchanges", "vhost": vhost, "owner": owner, **_selection(chosen)}
        return set(map(str, (await self._ask(question))["exchanges"]))

    async def cancel(
        self,
        vhost: str,
        chosen: str | DelayedMessageFilter,
        *,
        owner: str | None = None,
        exchanges: AbstractSet[str] | None = None,
    ) -> int:
        """See SchedulesOfVhosts."""
        question = _change("cancel", vhost, chosen, owner, exchanges)
        return int((await self._ask(question))["count"])

    async def reschedule(
        self,
        vhost: str,
        chosen: str | DelayedMessageFilter,
        due_ms: int,
        *,
        owner: str | None = None,
        exchanges: AbstractSet[str] | None = None,
    ) -> int:
        """See SchedulesOfVhosts."""
        question = {**_change("reschedule", vhost, chosen, owner, exchanges), "due_ms": due_ms}
        return int((await self._ask(question))["count"])

    async def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the leader's answer. Raises AdministrationError, StorageError."""
        seconds = asyncio.get_running_loop().time
        deadline = seconds() + LEADER_SECONDS_MAX
        while True:
            place = self._queues.place(question["vhost"])
            if place is None:
                raise StorageError("the queue of delayed messages is deleted")
            if place.is_led_here:
                return await self._answer(question)
            try:
                return await self._asked(place.leading_node, question)
            except LinkError as error:
                if isinstance(error, PeerRefusedError) and error.code == REFUSED:
                    raise AdministrationError("invalid", error.text) from None
                if seconds() > deadline:
                    raise StorageError(f"no leader of the delayed messages: {error}") from error
            await asyncio.sleep(LEADER_POLL_SECONDS)

    async def _asked(self, node: int | None, question: dict[str, Any]) -> dict[str, Any]:
        if node is None:
            raise PeerRefusedError(NOT_LEADING, "no node leads")
        answer = await self._links.peer(node).request(
            ASK_SCHEDULES, encode_table(question), timeout_s=ANSWER_SECONDS_MAX
        )
        try:
            return decode_table(bytes(answer))
        except MalformedFieldError as error:
            raise PeerRefusedError(MALFORMED, f"node {node} answers with no table") from error

    # -- answering

    async def serve(self, _: NodeIdentity, payload: memoryview) -> bytes:
        """Answer another node."""
        try:
            question = decode_table(bytes(payload))
            vhost = str(question["vhost"])
            if self._schedules.leader_elsewhere(vhost) is not None:
                raise PeerRefusedError(NOT_LEADING, "this node does not lead")
            with acting_as(str(question.get("user"))):
                return encode_table(await self._answer(question))
        except (KeyError, TypeError, ValueError) as error:
            raise PeerRefusedError(MALFORMED, f"no question about schedules: {error}") from error
        except (AdministrationError, StorageError) as error:
            raise PeerRefusedError(REFUSED, str(error)) from error

    async def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        """Do what a question asks for, on this node. Raises KeyError, TypeError."""
        schedules, vhost, owner = self._schedules, question["vhost"], question.get("owner")
        if question["ask"] == "committed":
            await schedules.committed(vhost)
            return {}
        chosen = _chosen(question)
        if question["ask"] == "exchanges":
            return {"exchanges": sorted(await schedules.exchanges(vhost, chosen, owner=owner))}
        exchanges = frozenset(map(str, question["exchanges"]))
        if question["ask"] == "cancel":
            count = await schedules.cancel(vhost, chosen, owner=owner, exchanges=exchanges)
            return {"count": count}
        if question["ask"] == "reschedule":
            due_ms = int(question["due_ms"])
            count = await schedules.reschedule(
                vhost, chosen, due_ms, owner=owner, exchanges=exchanges
            )
            return {"count": count}
        raise KeyError(question["ask"])


def _change(
    ask: str,
    vhost: str,
    chosen: str | DelayedMessageFilter,
    owner: str | None,
    exchanges: AbstractSet[str] | None,
) -> dict[str, Any]:
    """Return the question for a change, on behalf of the acting user."""
    about = {"ask": ask, "vhost": vhost, "owner": owner, "user": actor.get()}
    return {**about, "exchanges": sorted(exchanges or ()), **_selection(chosen)}


def _selection(chosen: str | DelayedMessageFilter) -> dict[str, Any]:
    if isinstance(chosen, str):
        return {"id": chosen}
    fields = asdict(chosen)
    return {name: value for name, value in fields.items() if value is not None}


def _chosen(question: Mapping[str, Any]) -> str | DelayedMessageFilter:
    """Return the messages that a question is about. Raises TypeError."""
    if "id" in question:
        return str(question["id"])
    names = DelayedMessageFilter.__dataclass_fields__
    return DelayedMessageFilter(**{name: question[name] for name in names if name in question})
