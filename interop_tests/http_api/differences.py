"""Answers of Leveret's HTTP API that are meant to differ from RabbitMQ 3.10's, and why.

An entry that no step needs fails the test: the lists cannot go stale.
"""

from __future__ import annotations

# Whatever has no row: 404. RabbitMQ 3.10 has the two words the other way round (B-441).
NO_OBJECT = ("Object Not Found", "Not Found")

NAMED = "B-441: the kind that is missing is named, as RabbitMQ does where it looks itself"
CLOSED = "what a virtual host holds is closed to whom it is not opened, not an empty list"
SHOWN = "who sees a virtual host in the list sees it alone"

# Step → (status, reason) of RabbitMQ, of Leveret, and why.
DIFFERENCES: dict[str, tuple[tuple[int, object], tuple[int, object], str]] = {
    "guest: PUT user-limits/x/max-nonsense": (
        (400, 'Unrecognised terms [{<<"max-nonsense">>,5}] in user-limits'),
        (400, 'Validation failed\n\nUnrecognised terms [{<<"max-nonsense">>,5}] in user-limits\n'),
        "the words that limits of virtual hosts are refused with",
    ),
    "guest: PUT queues/v/e": (
        (400, ["not_boolean", "perhaps"]),
        (400, "{not_boolean,'perhaps'}"),
        "reasons are text",
    ),
    "guest: PUT exchanges/v/amq.e": (
        (401, "Access refused."),
        (403, "exchange name 'amq.e' contains reserved prefix 'amq.*'"),
        "it says what is refused, and not that nobody knows the caller",
    ),
    "guest: POST bindings/v/e/e/q/none": (
        (404, "no queue 'none' in vhost 'v'"),
        (404, "Object Not Found"),
        "found out before anything is tried",
    ),
    "guest: POST exchanges/v/amq.direct/publish": (
        (
            400,
            (
                "[{key_missing,routing_key},\n {key_missing,properties},\n {key_missing,payload},\n"
                " {key_missing,payload_encoding}]"
            ),
        ),
        (400, "[{key_missing,payload}]"),
        "the first that is missing; properties may be left out",
    ),
    "administrator: GET aliveness-test/v": (
        (401, "Access refused."),
        (200, ""),
        "RabbitMQ 4 makes no queue for this any more",
    ),
    "monitoring: GET vhosts/v": ((401, "Not administrator user"), (200, ""), SHOWN),
    **{
        f"{tag}: GET vhosts/v": (
            (401, "Not administrator user"),
            (401, "User not authorised to access virtual host"),
            SHOWN,
        )
        for tag in ("management", "policymaker")
    },
    **{
        f"{tag}: GET consumers/v": (
            (200, ""),
            (401, "User not authorised to access virtual host"),
            CLOSED,
        )
        for tag in ("management", "policymaker", "monitoring")
    },
}

# What is told that no RabbitMQ of today says, and what only an Erlang machine has: by path, or by
# the beginning of one with a star. Details are rates and come with the first sample.
ERLANG = "of Erlang's machine, or of how RabbitMQ 3.10 stores"
MISSING: dict[str, tuple[set[str], str]] = {
    "overview": (
        {"erlang_version", "erlang_full_version", "release_series_support_status"},
        ERLANG,
    ),
    "extensions": ({"javascript"}, "the pages have no extensions"),
    "exchanges/*": (
        {"outgoing", "user_who_performed_action"},
        "who made an exchange is in the audit log; exchanges are not counted by queue",
    ),
}
# Keys that only make sense with Erlang or are not kept, where rows differ by what runs.
UNLIKE = ("nodes", "queues/v")


def missing(path: str) -> set[str]:
    """The keys that Leveret does not say below a path."""
    for beginning, (keys, _) in MISSING.items():
        if path == beginning or (beginning.endswith("*") and path.startswith(beginning[:-1])):
            return keys
    return {"user_who_performed_action"} if path == "exchanges/v" else set()
