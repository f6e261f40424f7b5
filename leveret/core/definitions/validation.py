"""Validation of names, tags and limits before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.access.limits import InvalidLimitError, checked_limits
from leveret.errors import LeveretError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from leveret.ports.definitions import Json, Limits

__all__ = ["AdministrationError", "check_name", "checked_tags", "validated_limits"]

NAME_BYTES_MAX = 255  # names are short strings
TAG_BYTES_MAX = 255
TAGS_MAX = 64  # a handful is normal; the list is copied with every login


class AdministrationError(LeveretError):
    """Raised for an operation that cannot be done.

    `code` is one of not_found, already_exists, invalid, protected, limit, elsewhere.
    """

    def __init__(self, code: str, explanation: str) -> None:
        super().__init__(explanation)
        self.code = code


def check_name(kind: str, name: str) -> None:
    """Raise AdministrationError for an invalid name of a user, a virtual host and the like."""
    if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
        raise AdministrationError(
            "invalid", f"a {kind} name has 1 to {NAME_BYTES_MAX} bytes of printable text"
        )


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return validated tags without duplicates, in order. Raises AdministrationError."""
    unique = tuple(dict.fromkeys(tags))
    if len(unique) > TAGS_MAX:
        raise AdministrationError("invalid", f"more than {TAGS_MAX} tags")
    for tag in unique:
        if not tag or "," in tag or len(tag.encode()) > TAG_BYTES_MAX:
            raise AdministrationError("invalid", f"{tag!r} is not a tag")
    return unique


def validated_limits(limits: Mapping[str, Json], known: Collection[str], name: str) -> Limits:
    """Return validated limits. Raises AdministrationError with RabbitMQ's text."""
    try:
        return checked_limits(limits, known, name)
    except InvalidLimitError as error:
        raise AdministrationError("invalid", f"Validation failed\n\n{error}\n") from None
