"""Broker semantics: virtual hosts, exchanges, routing, queues, consumers, access control.

The modules here connect them: `broker` and its `vhost`s with their `topology`, the
`intake` of messages, the `turn` of the event loop and its `timers`. The packages are:

    routing, exchanges      finding the queues of a message
    queues, ledgers, logs   delivery, delivery state, reading and writing of records
    filtering               filters of consumers
    waiting, delay, retry   delayed messages and retries
    dead_letters            messages that are rejected, expired, or exceed a limit
    once                    de-duplication, idempotent producers, prepared messages
    definitions, access     stored definitions; authentication, permissions, limits
    telemetry               events, traces, usage, alerts
"""
