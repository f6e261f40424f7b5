"""Rules of batch leases: names, numbers, ranges, limits, and what refuses a request.

A holder is a job that consumes a queue, by a name that it keeps over restarts. Its leases have
ascending numbers; settling one settles all up to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.errors import LeveretError
from leveret.ports.ranges import RangeSet

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BYTES_MAX",
    "IDLE_MS_DEFAULT",
    "MESSAGES_DEFAULT",
    "RANGES_MAX",
    "LeaseLimits",
    "LeaseRefusedError",
    "LeaseWish",
    "PartRanges",
    "check_holder",
    "parse_idle",
    "parse_lease_number",
    "parse_ranges",
    "parse_wish",
    "ranges_row",
]

NAME_BYTES_MAX: Final = 255
NUMBER_MAX: Final = (1 << 63) - 1
OFFSET_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = 1 << 20  # no queue has so many
MESSAGES_DEFAULT: Final = 100_000
MESSAGES_MAX: Final = 100_000_000  # the node's limit of a holder is lower
BYTES_MAX: Final = 1 << 40  # also what a lease has without a limit of its own
WAIT_MS_MAX: Final = 20_000  # as in the pull API: shorter than the idle timeouts of proxies
IDLE_MS_DEFAULT: Final = 10 * 60_000  # longer than a job takes to be started again
IDLE_MS_MIN: Final = 1_000
IDLE_MS_MAX: Final = 24 * 60 * 60_000
# Ranges of a lease. Where other consumers take messages in between it has one for each of theirs;
# a lease ends at this number, since the ranges are sent, and kept by the job, with each request.
RANGES_MAX: Final = 5_000

# Offsets by the number of the partition.
PartRanges: TypeAlias = dict[int, RangeSet]


class LeaseRefusedError(LeveretError):
    """Raised for a request about leases that changes nothing: `code` says of which kind.

    invalid     the request makes no sense
    not_found   the lease is not known: the node was restarted, or the holder was idle too long
    settled     the lease was settled already
    another     the queue was deleted and declared again: its offsets are others
    full        a limit: earlier leases must be settled first, or other holders must end
    busy        another request is under way, or the queue delivers nothing now: try again
    """

    def __init__(self, code: str, explanation: str) -> None:
        super().__init__(explanation)
        self.code = code


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """Limits, each explained in the configuration."""

    messages_max: int = 1_000_000
    bytes_max: int = 4 << 30
    holders_max: int = 1_000


@dataclass(frozen=True, slots=True)
class LeaseWish:
    """Parameters of a lease: up to so many messages and, about, bytes."""

    messages_max: int = MESSAGES_DEFAULT
    bytes_max: int = BYTES_MAX
    wait_ms: int = 0  # for the first message
    idle_ms: int = IDLE_MS_DEFAULT


def check_holder(name: str) -> None:
    """Raise LeaseRefusedError unless a name may be a holder's."""
    if not 1 <= len(name.encode(errors="surrogateescape")) <= NAME_BYTES_MAX:
        raise LeaseRefusedError("invalid", f"a holder has 1 to {NAME_BYTES_MAX} bytes")


def parse_lease_number(text: str) -> int:
    """Return the number of a lease. Raises LeaseRefusedError."""
    if text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX)):
        number = int(text)
        if number <= NUMBER_MAX:
            return number
    raise LeaseRefusedError("invalid", f"a lease's number is 0 to {NUMBER_MAX}")


def parse_wish(asked: Mapping[str, object]) -> LeaseWish:
    """Return the parameters of a lease. Raises LeaseRefusedError."""
    return LeaseWish(
        messages_max=_whole(asked, "messages", 1, MESSAGES_MAX, MESSAGES_DEFAULT),
        bytes_max=_whole(asked, "bytes", 1, BYTES_MAX, BYTES_MAX),
        wait_ms=_whole(asked, "wait_ms", 0, WAIT_MS_MAX, 0),
        idle_ms=parse_idle(asked),
    )


def parse_idle(asked: Mapping[str, object]) -> int:
    """Return after how many ms without a request a holder is given up. LeaseRefusedError."""
    return _whole(asked, "idle_ms", IDLE_MS_MIN, IDLE_MS_MAX, IDLE_MS_DEFAULT)


def _whole(asked: Mapping[str, object], name: str, low: int, high: int, default: int) -> int:
    value = asked.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise LeaseRefusedError("invalid", f"{name} is a whole number from {low} to {high}")
    return value


def parse_ranges(told: object) -> PartRanges:
    """Return ranges like {"0": [[10, 20], [25, 26]]}. Raises LeaseRefusedError."""
    wrong = LeaseRefusedError("invalid", 'ranges are like {"0": [[10, 20], [25, 26]]}')
    if not isinstance(told, dict):
        raise wrong
    found: PartRanges = {}
    count = 0
    for number, ranges in told.items():
        is_number = number.isascii() and number.isdigit() and len(number) <= len(str(PARTITION_MAX))
        if not is_number or int(number) > PARTITION_MAX or not isinstance(ranges, list):
            raise wrong
        count += len(ranges)
        if count > RANGES_MAX:
            raise LeaseRefusedError("invalid", f"a lease has at most {RANGES_MAX} ranges")
        if not all(_is_range(each) for each in ranges):
            raise wrong
        found[int(number)] = RangeSet((first, stop) for first, stop in ranges)
    return found


def _is_range(told: object) -> bool:
    if not isinstance(told, list) or [type(each) for each in told] != [int, int]:
        return False
    first, stop = told
    return bool(0 <= first < stop <= OFFSET_MAX)


def ranges_row(parts: Mapping[int, RangeSet]) -> dict[str, list[list[int]]]:
    """Return ranges as JSON has them, partitions ascending, without empty ones."""
    return {
        str(number): [[first, stop] for first, stop in parts[number]]
        for number in sorted(parts)
        if parts[number]
    }
