"""Settings: serving of clients and queues."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leveret.config.settings import Settings

__all__ = ["ServiceSettings"]


class ServiceSettings(Settings):
    """How clients are served."""

    busy_poll_microseconds: int = Field(
        50,
        ge=0,
        le=10_000,
        description="Microseconds for which the node looks for the next request of a client that "
        "waits for each answer before it lets the processor sleep: about what waking up takes. 0 "
        "saves power and costs latency.",
    )
    consumer_timeout_ms: int = Field(
        1_800_000,
        ge=0,
        description="Milliseconds for which a consumer may hold a delivery before its channel is "
        "closed: RabbitMQ's half an hour. 0 lets it hold them for ever.",
    )
    consumer_check_interval_ms: int = Field(
        10_000,
        ge=10,
        description="Milliseconds between checks of consumer timeouts: a timeout is noticed this "
        "much later at most, or twice this where deliveries are rare.",
    )
    redeclare_mismatch: Literal["refuse", "warn"] = Field(
        "refuse",
        description="What follows when a queue is declared that exists with other arguments or "
        "flags: a channel error 406, as in RabbitMQ, or a warning in the log. The policy key "
        "redeclare-mismatch sets it for some queues.",
    )
    delivery_limit_counts: Literal["returns", "failures"] = Field(
        "returns",
        description="Returns that count against the delivery limit of a quorum queue: every "
        "return, as in RabbitMQ before 4.3, or only `failures`: basic.reject and lost consumers.",
    )
    http_delete: bool = Field(
        True,
        description="Whether queues can be deleted by HTTP and on the pages: by themselves, with "
        "their virtual host, by x-expires given to one that is there, or by a new policy with "
        "expires. The command line always can, and AMQP clients may as their permissions say.",
    )
