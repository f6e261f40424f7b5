"""Errors of the data source, whose texts Spark shows to the user."""

from __future__ import annotations

__all__ = [
    "AccessRefusedError",
    "BatchTooLargeError",
    "BrokerUnreachableError",
    "DataLossError",
    "MalformedBodyError",
    "SourceError",
    "TopicMissingError",
    "WrongCredentialsError",
]


class SourceError(Exception):
    """A table of the data source cannot be read or written."""


class BrokerUnreachableError(SourceError):
    """No server has answered in time, or its address is not that of a management port."""


class AccessRefusedError(SourceError):
    """The user may not do this, or is not let in."""


class WrongCredentialsError(AccessRefusedError):
    """Wrong user or password."""


class TopicMissingError(SourceError):
    """A topic, a partition of it or the virtual host does not exist."""


class BatchTooLargeError(SourceError):
    """A staged batch is larger than one commit may be."""


class DataLossError(SourceError):
    """Messages that were to be read are not there any more."""


class MalformedBodyError(SourceError):
    """A body cannot be decoded, and `mode=FAILFAST` is set."""
