"""The few errors that all packages share.

The type says whose fault an error is and how much it closes: `ChannelError` and
`ConnectionClosingError` are a peer's doing and carry AMQP's reply code and text; `StorageError` is
the world's; anything else that escapes a package is a bug of ours.
"""

from __future__ import annotations

__all__ = [
    "BROKER_ERROR",
    "AmqpError",
    "ChannelError",
    "ConnectionClosingError",
    "CorruptBatchError",
    "DiskFullError",
    "LeveretError",
    "NewerFormatError",
    "NodeRunningError",
    "NotEnoughCopiesError",
    "PermissionDeniedError",
    "StorageError",
    "ToleratedError",
]

REPLY_NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}
REPLY_TEXT_BYTES_MAX = 255  # a short string holds no more
BROKER_ERROR = "an error in the broker; its log has the details"  # of a 541


class LeveretError(Exception):
    """Root of every error the project raises on purpose."""


class AmqpError(LeveretError):
    """A peer's mistake, to be answered with `code` and `reply_text`.

    `method_ids` are class and method of the failing method where that is another than the one being
    handled: content frames fail their publish.
    """

    method_ids: tuple[int, int] | None = None

    def __init__(self, code: int, explanation: str) -> None:
        """`code` is one of the specification's reply codes; `explanation` what follows its name."""
        super().__init__(code, explanation)
        self.code = code
        self.explanation = explanation

    @property
    def reply_text(self) -> str:
        """`NAME - explanation`, cut to what a short string can carry."""
        text = f"{REPLY_NAMES[self.code]} - {self.explanation}"
        if len(text.encode()) <= REPLY_TEXT_BYTES_MAX:
            return text
        return text.encode()[: REPLY_TEXT_BYTES_MAX - 3].decode(errors="ignore") + "..."


class ChannelError(AmqpError):
    """Closes the channel it happened on; the connection lives on."""


class PermissionDeniedError(ChannelError):
    """A user's permissions do not allow it: AMQP's 403. Other users may."""


class ConnectionClosingError(AmqpError):
    """Closes the whole connection."""


class StorageError(LeveretError):
    """The disk or the file system refused; the text says what an operator can do."""


class DiskFullError(StorageError):
    """No space is left: publishers are blocked until there is."""


class CorruptBatchError(StorageError):
    """Bytes that should be a batch are not: wrong magic, length or checksum."""


class NewerFormatError(StorageError):
    """Raised for files of a newer release: they are intact, and must be left as they are."""

    def __init__(self, what: str) -> None:
        """`what` names the file, and the version that is not known here."""
        super().__init__(
            f"{what} was written by a newer release: start that release, or restore a backup from "
            "before it; nothing was changed"
        )


class NodeRunningError(StorageError):
    """The data directory belongs to a node that is running."""


class NotEnoughCopiesError(StorageError):
    """Fewer nodes are in sync than a log needs: nothing is stored, or committed, until more are."""


class ToleratedError(LeveretError):
    """A peer's mistake that was let pass, since the operator wants it so, and wants to know."""
