"""Telemetry as messages: events, log lines and traces; and usage.

`event_exchange`, `log_exchange` and `trace` publish to exchanges as RabbitMQ does; `usage` meters
traffic by account.
"""
