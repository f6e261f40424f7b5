"""Error answers of the HTTP API, with RabbitMQ's codes and bodies.

    401 {"error": "not_authorized", "reason": "Not_Authorized"}       not authenticated
    401 {"error": "not_authorised", "reason": "Not management user"}  authenticated, not permitted
    403 {"error": "forbidden", "reason": …}                           nobody may, whoever asks

The two spellings are RabbitMQ's, and tools tell them apart. The rule is the same on all routes.
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

# HTTP status and RabbitMQ's error name, by the error of an operation.
REFUSALS = {
    "not_found": (404, "not_found"),
    "forbidden": (403, "forbidden"),
    "protected": (412, "precondition_failed"),
    "storage": (503, "service_unavailable"),
}


class ApiError(LeveretError):
    """Error that ends a request with a status, `error` and `reason`, and maybe headers."""

    def __init__(
        self, status: int, error: str, reason: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, error, reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.headers = headers


def not_authorized() -> ApiError:
    """Build the 401 for a request without valid credentials: browsers ask for a password."""
    challenge = {"www-authenticate": 'Basic realm="Leveret Management"'}
    return ApiError(401, "not_authorized", "Not_Authorized", challenge)


def not_authorised(reason: str) -> ApiError:
    """Build the 401 for an authenticated user without permission."""
    return ApiError(401, "not_authorised", reason)


def not_found(reason: str = "Object Not Found") -> ApiError:
    """Build the 404; `reason` is `queue_not_found` and the like where the kind is known."""
    return ApiError(404, "not_found", reason)


def queue_not_found(vhost: Vhost, name: str) -> ApiError:
    """Build the 404 for a missing queue; for a renamed one it gives the current name."""
    is_renamed = vhost.find_queue(name) is not None
    return not_found(vhost.no_queue(name) if is_renamed else "queue_not_found")


def bad_request(reason: str) -> ApiError:
    """Build the 400 for an invalid request."""
    return ApiError(400, "bad_request", reason)


def too_many_requests(wait_ms: int) -> ApiError:
    """Build the 429 for too many failed logins."""
    seconds = -(-wait_ms // 1000)
    reason = f"too many wrong passwords from this address: try again in {seconds} s"
    return ApiError(429, "too_many_requests", reason, {"retry-after": str(seconds)})


def refused_operation(code: str, explanation: str) -> ApiError:
    """Build the answer to a failed administrative operation (leveret.mgmt_ui.operations)."""
    status, error = REFUSALS.get(code, (400, "bad_request"))
    return ApiError(status, error, explanation)
