"""Export of definitions for RabbitMQ: without what only this broker supports.

RabbitMQ refuses a file with a single unknown parameter or policy setting, and it cannot check
passwords hashed with Argon2id. Omissions are reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.core.access.passwords import ARGON2_ALGORITHM, RABBITMQ_DEFAULT_ALGORITHM
from leveret.core.settings.replication import ACKS, IN_SYNC_MIN, REPLICAS
from leveret.core.settings.retry_policy import RETRY_ARGUMENTS
from leveret.features.alerts.rules import COMPONENT as ALERT
from leveret.ports.log_text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.ports.definitions import Json

__all__ = ["for_rabbitmq"]

OWN_SETTINGS: Final = frozenset(
    {
        "celery-eta",
        "consume-burst",
        "consume-rate",
        "dead-letter-topic",
        "dedup-window",
        "group-ordering",
        "publish-burst",
        "publish-rate",
        "redeclare-mismatch",
        "visibility-timeout",
        ACKS,
        IN_SYNC_MIN,
        REPLICAS,
        *RETRY_ARGUMENTS,
    }
)
OWN_QUEUE_KEYS: Final = ("aliases", "paused", "partitions")


def for_rabbitmq(document: dict[str, Json]) -> tuple[dict[str, Json], list[str]]:
    """Return the document for RabbitMQ, and a sentence for each omission.

    The rows of queues are changed in place: a hundred thousand may be many to copy and free.
    """
    told: list[str] = []
    sections: dict[str, Any] = dict(document)
    for section, convert in CONVERSIONS.items():
        if section in sections:
            sections[section] = list(convert(sections[section], told))
    return sections, told


def _users(rows: list[dict[str, Any]], told: list[str]) -> Iterator[dict[str, Any]]:
    """Yield users; those with another hash cannot log in until a password is set there."""
    for row in rows:
        if row["hashing_algorithm"] != ARGON2_ALGORITHM:
            yield row
            continue
        told.append(
            f"user {quoted(row['name'])} is exported without a password, as RabbitMQ cannot check "
            "its hash: set one there, or here with --password-hash from `leveret hash-password`"
        )
        yield {**row, "password_hash": "", "hashing_algorithm": RABBITMQ_DEFAULT_ALGORITHM}


def _parameters(rows: list[dict[str, Any]], told: list[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["component"] == ALERT:
            told.append(f"alert {quoted(row['name'])} is left out")
        elif "definition" in (row["value"] if isinstance(row["value"], dict) else ()):
            value = _without_own(row["value"], f"operator policy {quoted(row['name'])}", told)
            if value["definition"]:
                yield {**row, "value": value}
        else:
            yield row


def _policies(rows: list[dict[str, Any]], told: list[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        policy = _without_own(row, f"policy {quoted(row['name'])}", told)
        if policy["definition"]:  # RabbitMQ refuses empty policies
            yield policy


def _without_own(policy: dict[str, Any], what: str, told: list[str]) -> dict[str, Any]:
    own = sorted(OWN_SETTINGS & policy["definition"].keys())
    if not own:
        return policy
    told.append(f"{what} is exported without {', '.join(own)}")
    kept = {key: value for key, value in policy["definition"].items() if key not in OWN_SETTINGS}
    return {**policy, "definition": kept}


def _queues(rows: list[dict[str, Any]], told: list[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        left_out = [key for key in OWN_QUEUE_KEYS if key in row]
        left_out += [key for key in row["arguments"] if key.removeprefix("x-") in OWN_SETTINGS]
        if left_out:
            told.append(f"queue {quoted(row['name'])} is exported without {', '.join(left_out)}")
            for key in left_out:
                row.pop(key, None)
                row["arguments"].pop(key, None)
        yield row


CONVERSIONS: Final = {
    "users": _users,
    "parameters": _parameters,
    "policies": _policies,
    "queues": _queues,
}
