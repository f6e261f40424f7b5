"""Broker semantics: virtual hosts, exchanges, routing, queues, access control.

Imports point one way, by the layers in pyproject.toml. The packages, from above:

    telemetry, statistics   events, log lines, traces and usage; samples and rates
    definitions             stored definitions: administration, documents, import
    topology                exchanges, queues and bindings of a `vhost`, routing through them
    exchanges, routing      the exchange types; exchanges, bindings and messages
    queues, ledgers, logs   delivery, delivery state, writing and reading of records
    settings                arguments and policies, and what follows from them
    access                  authentication, permissions, limits

Beside them stand what they share: the `turn` of the event loop, its `timers` and `chores`,
`events`, names and patterns.
"""
