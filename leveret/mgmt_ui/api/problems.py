"""What the HTTP API answers when it cannot do what was asked: RabbitMQ's codes and bodies.

    401 {"error": "not_authorized", "reason": "Not_Authorized"}       who are you?
    401 {"error": "not_authorised", "reason": "Not management user"}  you, but not this

The two spellings are RabbitMQ's, and tools tell them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.errors import LeveretError

if TYPE_CHECKING:
    from leveret.core.vhost import Vhost

__all__ = [
    "ApiError",
    "bad_request",
    "not_authorised",
    "not_authorized",
    "not_found",
    "queue_not_found",
    "refused_operation",
    "too_many_requests",
]

# What an operation's refusal is called in HTTP: the status and RabbitMQ's word for it.
REFUSALS = {
    "not_found": (404, "not_found"),
    "forbidden": (403, "forbidden"),
    "protected": (412, "precondition_failed"),
    "storage": (503, "service_unavailable"),
}


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


def queue_not_found(vhost: Vhost, name: str) -> ApiError:
    """No queue has this name; if one had it, what it is called now is said."""
    is_renamed = vhost.find_queue(name) is not None
    return not_found(vhost.no_queue(name) if is_renamed else "queue_not_found")


def bad_request(reason: str) -> ApiError:
    """What was asked makes no sense."""
    return ApiError(400, "bad_request", reason)


def too_many_requests(wait_ms: int) -> ApiError:
    """Somebody has guessed too often."""
    seconds = -(-wait_ms // 1000)
    reason = f"too many wrong passwords from this address: try again in {seconds} s"
    return ApiError(429, "too_many_requests", reason, {"retry-after": str(seconds)})


def refused_operation(code: str, explanation: str) -> ApiError:
    """An administrative operation said no; see leveret.mgmt_ui.operations."""
    status, error = REFUSALS.get(code, (400, "bad_request"))
    return ApiError(status, error, explanation)
