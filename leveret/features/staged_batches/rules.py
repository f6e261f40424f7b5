"""Rules of staged batches: names, numbers, limits, and what refuses a request.

A writer is a program that publishes its batches in the order of their numbers, each once; a part
is what one of its processes has uploaded of one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import hexdigits
from typing import Final

from leveret.errors import LeveretError

__all__ = [
    "NAME_BYTES_MAX",
    "NUMBER_MAX",
    "BatchLimits",
    "BatchRefusedError",
    "check_name",
    "checksum_text",
    "parse_checksum",
    "parse_number",
    "parse_parts",
]

NAME_BYTES_MAX: Final = 255
NUMBER_MAX: Final = (1 << 63) - 1
PARTS_OF_COMMIT_MAX: Final = 10_000
CHECKSUM_DIGITS: Final = 8


class BatchRefusedError(LeveretError):
    """Raised for a request about a batch that changes nothing: `code` says of which kind.

    invalid        the request makes no sense
    not_found      a part, an exchange or a writer is not there
    too_large      a smaller part or batch is needed
    full           limits of the virtual host or of its user: other batches must be committed or
                   aborted first
    busy           the writer has another request under way
    aborted        the batch was aborted meanwhile
    refused        a queue or a feature has refused a message
    conflict       the part is there with other content
    """

    def __init__(self, code: str, explanation: str) -> None:
        super().__init__(explanation)
        self.code = code


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits, each explained in the configuration."""

    staged_bytes_max: int = 4 << 30
    commit_bytes_max: int = 256 << 20
    parts_max: int = 100_000
    writers_max: int = 10_000
    parts_per_user_max: int = 50_000
    writers_per_user_max: int = 1_000
    expire_ms: int = 86_400_000
    writer_idle_ms: int = 2_592_000_000
    message_bytes_max: int = 16 << 20

    @property
    def chunk_bytes_max(self) -> int:
        """Bytes of one chunk: it is held in memory, and any message must find room in one."""
        return self.message_bytes_max + (1 << 20)


def check_name(name: str, what: str) -> None:
    """Raise BatchRefusedError unless a name may be a writer's or a part's."""
    size = len(name.encode(errors="surrogateescape"))
    if not 1 <= size <= NAME_BYTES_MAX:
        raise BatchRefusedError("invalid", f"a {what} has 1 to {NAME_BYTES_MAX} bytes")


def parse_number(text: str) -> int:
    """Return the number of a batch. Raises BatchRefusedError."""
    if text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX)):
        number = int(text)
        if number <= NUMBER_MAX:
            return number
    raise BatchRefusedError("invalid", f"a batch's number is 0 to {NUMBER_MAX}")


def parse_checksum(text: str) -> int:
    """Return the checksum that an upload is said to have. Raises BatchRefusedError."""
    if len(text) == CHECKSUM_DIGITS and set(text.lower()) <= set(hexdigits):
        return int(text, 16)
    raise BatchRefusedError(
        "invalid", f"checksum is the CRC-32C of the body, {CHECKSUM_DIGITS} hexadecimal digits"
    )


def checksum_text(checksum: int | None) -> str | None:
    """Return a checksum as answers have it; None for one that is not known."""
    return None if checksum is None else f"{checksum:0{CHECKSUM_DIGITS}x}"


def parse_parts(names: object) -> list[str]:
    """Return the names of a commit's parts. Raises BatchRefusedError."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BatchRefusedError("invalid", "parts is a list of names")
    if len(names) > PARTS_OF_COMMIT_MAX:
        raise BatchRefusedError("too_large", f"a batch has at most {PARTS_OF_COMMIT_MAX} parts")
    if len(set(names)) < len(names):
        raise BatchRefusedError("invalid", "parts names one of them twice")
    return names
