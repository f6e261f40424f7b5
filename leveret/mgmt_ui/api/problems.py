"""What the HTTP API answers when it cannot do what was asked: RabbitMQ's codes and bodies.

    401 {"error": "not_authorized", "reason": "Not_Authorized"}       who are you?
    401 {"error": "not_authorised", "reason": "Not management user"}  you, but not this

The two spellings are RabbitMQ's, and tools tell them apart.
"""

from __future__ import annotations

from leveret.errors import LeveretError

__all__ = ["ApiError", "not_authorised", "not_authorized", "not_found"]


class ApiError(LeveretError):
    """Ends a request with a status, a body of `error` and `reason`, and perhaps headers."""

    def __init__(
        self, status: int, error: str, reason: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, error, reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers


def not_authorized() -> ApiError:
    """Nobody we know: browsers ask for a password."""
    challenge = {"www-authenticate": 'Basic realm="Leveret Management"'}
    return ApiError(401, "not_authorized", "Not_Authorized", challenge)


def not_authorised(reason: str) -> ApiError:
    """Somebody we know, who may not."""
    return ApiError(401, "not_authorised", reason)


def not_found(reason: str = "Object Not Found") -> ApiError:
    """No such thing; `reason` is `queue_not_found` and the like where the kind is known."""
    return ApiError(404, "not_found", reason)
