"""What a broker tells of itself, as messages: events, log lines, traces and usage.

`events`, `log_exchange` and `trace` publish to exchanges as RabbitMQ's do; `usage` counts what was
moved for whom, and `usage_keeping` records it.
"""
