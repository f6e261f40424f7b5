"""What the node tells of itself and keeps of what happened."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from leveret.config.settings import Settings

__all__ = ["ObservationSettings"]


class ObservationSettings(Settings):
    """Logs, statistics, usage, alerts and the audit log."""

    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines on standard error: `text`, or `json`: an object a line."
    )
    log_exchange: bool = Field(
        False,
        description="Whether log lines are also published to `amq.rabbitmq.log`, an exchange of "
        "vhost `/` with the level as the key. Off as in RabbitMQ: who may bind it reads the log.",
    )

    statistics_interval_ms: int = Field(
        5_000,
        ge=1_000,
        le=600_000,
        description="Milliseconds between two samples of the counters: what rates are taken over.",
    )
    statistics_histories_max: int = Field(
        5_000,
        ge=0,
        le=1_000_000,
        description="Queues, exchanges, connections and channels whose samples are kept, up to "
        "20 KB each; the others have only the rate of the last interval.",
    )
    usage_interval_ms: int = Field(
        60_000,
        ge=100,
        description="Milliseconds between two writes of usage: what a crash may lose of it.",
    )
    usage_days_max: int = Field(
        400, ge=1, description="Days for which usage is kept: a year, and time to bill it."
    )
    alert_interval_ms: int = Field(
        5_000,
        ge=100,
        description="Milliseconds between two looks at what the rules of alerts watch.",
    )
    audit_days_max: int = Field(
        400, ge=1, description="Days for which it is kept who has changed what."
    )
