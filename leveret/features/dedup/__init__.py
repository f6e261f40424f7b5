"""De-duplication windows and idempotent producers.

`sequences` has the headers of numbered messages. `window` and
`keys` are the window of a queue, `exchange_log` that of an exchange, `producers` the positions of
idempotent producers. `idempotent_publish` combines them with prepared messages.
"""
