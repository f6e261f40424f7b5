"""Settings: logs, statistics, usage, alerts and the audit log."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from leveret.config.settings import Settings

__all__ = ["ObservationSettings"]

LogLevelName: TypeAlias = Literal["debug", "info", "warning", "error", "none"]


class ObservationSettings(Settings):
    """Logs, statistics, usage, alerts and the audit log."""

    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines on standard error: `text`, or `json`: an object a line."
    )
    log_level: LogLevelName = Field(
        "info",
        description="From which level on lines are logged. `leveret node log-level` changes it "
        "while the node runs.",
    )
    log_connection_level: LogLevelName | Literal[""] = Field(
        "",
        description="The same of connections: who comes and goes, refused logins, errors that "
        "close a connection; empty is `log_level`. `warning` leaves out those that come and go.",
    )
    log_channel_level: LogLevelName | Literal[""] = Field(
        "", description="The same of errors that close a channel; empty is `log_level`."
    )
    log_lines_per_second_max: int = Field(
        50,
        ge=1,
        description="Lines a second of each kind that are logged for long, and a fifth of it about "
        "each address; twenty times as many may come at once. The rest is counted, and the count "
        "is logged: a client must not fill the disk by making errors.",
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
    usage_stream: bool = Field(
        True,
        description="Whether the usage of each hour is also published to the stream "
        "`leveret.usage` of vhost `/`, which is created for it. Hours that end while it is off are "
        "not published later.",
    )
    alert_interval_ms: int = Field(
        5_000,
        ge=100,
        description="Milliseconds between two looks at what the rules of alerts watch.",
    )
    audit_days_max: int = Field(
        400, ge=1, description="Days for which it is kept who has changed what."
    )
