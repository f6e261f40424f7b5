"""Pulling from a queue whose partitions several nodes lead.

A receive takes what one leader has. Where none has anything, it waits at all of them, and ends at
the others once one has messages. Handles name their partition, and go to its leader.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from leveret.features.pull.pull import Outcome, Wanted
from leveret.features.pull.receipts import parse_receipt, queue_digest
from leveret.mgmt_ui.api.forwarding import LeaderFailedError
from leveret.mgmt_ui.api.listing import answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fastapi import Response

    from leveret.mgmt_ui.api.forwarding import LeadersAsked, Shares

__all__ = ["receive_anywhere", "settle_anywhere"]

RECEIVE, NACK = "/receive", "/nack"
turns: Final = itertools.count()  # so that each receive begins with another leader


async def receive_anywhere(asked: LeadersAsked, shares: Shares) -> Response:
    """Receive messages from any of the leaders (see Spread)."""
    fields = asked.fields
    nodes = sorted(shares)
    first = next(turns) % len(nodes)
    at_once = {**fields, "wait_ms": 0}
    for node in (*nodes[first:], *nodes[:first]):
        told = await asked.told(node, asked.request(shares[node], at_once))
        if told["messages"] or (not fields.get("wait_ms") and node == nodes[first - 1]):
            return answer(told)
    requests = {node: asked.request(shares[node]) for node in nodes}
    found = await asked.all_told(requests, lambda told: bool(told["messages"]))
    count = fields.get("count", Wanted().count)
    messages: list[Any] = []
    for node, told in found.answers.items():
        room = count - len(messages)
        messages += told["messages"][:room]
        if told["messages"][room:]:
            handles = [each["receipt_handle"] for each in told["messages"][room:]]
            await _give_back(asked, node, shares[node], handles)
    if not messages:
        found.check()
    return answer({"messages": messages})


async def _give_back(
    asked: LeadersAsked, node: int, numbers: tuple[int, ...], handles: list[str]
) -> None:
    """Return messages that are more than was asked for, as two leaders had some at once."""
    request = asked.request(numbers, {"receipt_handles": handles})
    path = request.path.removesuffix(RECEIVE) + NACK
    # Where that fails, they come back when their time is over.
    await asked.all_told({node: request._replace(path=path)})


async def settle_anywhere(asked: LeadersAsked, shares: Shares) -> Response:
    """Settle, return or extend by receipt handles (see Spread)."""
    handles = asked.fields["receipt_handles"]
    places = _by_leader(asked, shares, handles)
    requests = {
        node: asked.request(
            tuple(sorted({number for number, _ in found})),
            {**asked.fields, "receipt_handles": [handles[at] for _, at in found]},
        )
        for node, found in places.items()
    }
    found = await asked.all_told(requests)
    found.check()
    results = [{"receipt_handle": each, "result": Outcome.INVALID.value} for each in handles]
    for node, told in found.answers.items():
        if len(told["results"]) != len(places[node]):
            raise LeaderFailedError(f"node {node} answers something else", has_begun=True)
        for (_, at), result in zip(places[node], told["results"], strict=True):
            results[at] = result
    return answer({"results": results})


def _by_leader(
    asked: LeadersAsked, shares: Shares, handles: Iterable[object]
) -> Mapping[int, list[tuple[int, int]]]:
    """Return the partition and the place of each handle, by the leader of the partition."""
    definition = asked.queue.definition
    owners = {
        queue_digest(definition.vhost, definition.topic, definition.incarnation, number): (
            node,
            number,
        )
        for node, numbers in shares.items()
        for number in numbers
    }
    places: dict[int, list[tuple[int, int]]] = {}
    for at, receipt in enumerate(map(parse_receipt, handles)):
        owner = None if receipt is None else owners.get(receipt.queue)
        if owner is not None:
            node, number = owner
            places.setdefault(node, []).append((number, at))
    return places
