"""Telemetry as messages: events, log lines, traces and usage; and alerts.

`events`, `log_exchange` and `trace` publish to exchanges as RabbitMQ does; `usage` meters traffic
by account, and `usage_keeping` stores it.
"""
