"""Batch leases of a queue whose partitions several nodes lead.

Each leader has a holder of the same name, and a part of each lease under its number. All of them
are always asked, so that a number that comes again has what it had. Limits are shared out evenly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.features.batch_leases.rules import BYTES_MAX, MESSAGES_DEFAULT, parse_ranges
from leveret.mgmt_ui.api.forwarding import LeaderRefusedError
from leveret.mgmt_ui.api.listing import answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import Response

    from leveret.mgmt_ui.api.forwarding import LeadersAsked, LeadersTold, Shares

__all__ = [
    "lease_again_anywhere",
    "lease_anywhere",
    "ready_anywhere",
    "release_anywhere",
    "settle_lease_anywhere",
]

GONE: Final = 410  # status of a leader that knows nothing of the lease


async def ready_anywhere(asked: LeadersAsked, shares: Shares) -> Response:
    """Return how many messages are ready, at all leaders (see Spread)."""
    found = await _all_told(asked, shares)
    return answer({**_any_of(found), "ready": found.total("ready")})


async def lease_anywhere(asked: LeadersAsked, shares: Shares) -> Response:
    """Lease what is there; where there is nothing, wait at all leaders (see Spread)."""
    wish = asked.fields
    for name, default in (("messages", MESSAGES_DEFAULT), ("bytes", BYTES_MAX)):
        wish[name] = max(wish.get(name, default) // len(shares), 1)
    found = await _all_told(asked, shares, {**wish, "wait_ms": 0})
    if wish.get("wait_ms") and not found.total("messages"):
        requests = {node: asked.request(shares[node], wish) for node in shares}
        found = await asked.all_told(requests, lambda told: bool(told["messages"]))
        found.check()
    return answer(
        {
            **_any_of(found),
            "messages": found.total("messages"),
            "bytes": found.total("bytes"),
            "ranges": _ranges(found),
        }
    )


async def lease_again_anywhere(asked: LeadersAsked, shares: Shares) -> Response:
    """Lease offsets again, each at the leader of its partition (see Spread)."""
    fields = asked.fields
    parts = {node: _part(fields["ranges"], shares[node]) for node in shares}
    meant = [node for node in shares if parts[node]] or list(shares)
    requests = {
        node: asked.request(shares[node], {**fields, "ranges": parts[node]}) for node in meant
    }
    found = await asked.all_told(requests)
    found.check()
    return answer(
        {
            "messages": found.total("messages"),
            "missing": found.total("missing") + _unknown(fields["ranges"], shares),
            "ranges": _ranges(found),
        }
    )


async def settle_lease_anywhere(asked: LeadersAsked, shares: Shares) -> Response:
    """Settle leases at all leaders (see Spread). One that knows nothing of them has none."""
    fields = asked.fields
    ranges = fields.get("ranges")
    requests = {}
    for node, numbers in shares.items():
        part = {} if ranges is None else {"ranges": _part(ranges, numbers)}
        requests[node] = asked.request(numbers, {**fields, **part})
    found = await asked.all_told(requests)
    known = [each for each in found.errors if not _is_gone(each)]
    if known or not found.answers:
        raise (known or found.errors)[0]
    missing = found.total("missing") + (0 if ranges is None else _unknown(ranges, shares))
    return answer({"settled": found.total("settled"), "missing": missing})


async def release_anywhere(asked: LeadersAsked, shares: Shares) -> Response:
    """Give back what a holder has, at all leaders (see Spread)."""
    return answer({"released": (await _all_told(asked, shares)).total("released")})


async def _all_told(
    asked: LeadersAsked, shares: Shares, fields: Mapping[str, Any] | None = None
) -> LeadersTold:
    """Ask all leaders the same; all must answer."""
    found = await asked.all_told({node: asked.request(shares[node], fields) for node in shares})
    found.check()
    return found


def _any_of(found: LeadersTold) -> dict[str, Any]:
    """Return the fields that are the same in all answers."""
    return {"log": next(iter(found.answers.values()))["log"]}


def _ranges(found: LeadersTold) -> dict[str, Any]:
    """Return the ranges of all answers, partitions ascending."""
    ranges = {
        number: each for told in found.answers.values() for number, each in told["ranges"].items()
    }
    return {number: ranges[number] for number in sorted(ranges, key=int)}


def _part(ranges: Mapping[str, Any], numbers: tuple[int, ...]) -> dict[str, Any]:
    """Return the ranges of some partitions."""
    return {number: each for number, each in ranges.items() if int(number) in numbers}


def _unknown(ranges: Mapping[str, Any], shares: Shares) -> int:
    """Return how many offsets are of partitions that the queue does not have."""
    known = {number for numbers in shares.values() for number in numbers}
    return sum(each.count for number, each in parse_ranges(ranges).items() if number not in known)


def _is_gone(error: Exception) -> bool:
    return isinstance(error, LeaderRefusedError) and error.head.status == GONE
