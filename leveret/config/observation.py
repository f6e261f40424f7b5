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
        description="Minimum level of log lines. `leveret node log-level` changes it while the "
        "node runs.",
    )
    log_connection_level: LogLevelName | Literal[""] = Field(
        "",
        description="The same for connections: connects, disconnects, refused logins and errors "
        "that close a connection; empty is `log_level`. `warning` leaves out connects and "
        "disconnects.",
    )
    log_channel_level: LogLevelName | Literal[""] = Field(
        "", description="The same for errors that close a channel; empty is `log_level`."
    )
    log_lines_per_second_max: int = Field(
        50,
        ge=1,
        description="Sustained rate of log lines of each kind in lines a second, a fifth of it "
        "per address; bursts may have twenty times as many. The rest is counted, and the count is "
        "logged: a client must not fill the disk by causing errors.",
    )
    log_exchange: bool = Field(
        False,
        description="Whether log lines are also published to `amq.rabbitmq.log`, an exchange of "
        "vhost `/` with the level as the key. Off as in RabbitMQ: a user who may bind to it reads "
        "the log.",
    )

    statistics_interval_ms: int = Field(
        5_000,
        ge=1_000,
        le=600_000,
        description="Milliseconds between two samples of the counters: the interval of rates.",
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
        description="Milliseconds between two writes of usage: a crash loses at most that much of "
        "it. What queues have stored is counted again.",
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
        description="Milliseconds between two evaluations of the alert rules.",
    )
    audit_days_max: int = Field(400, ge=1, description="Days for which audit records are kept.")
