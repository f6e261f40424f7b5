"""The HTTP API: its routes, who may call them, and what is shown under RabbitMQ's names.

The routes are `overview`, `resources`, `health` and `pull`; `callers` says who asks, `views` and
`listing` how things and lists of them are shown, `problems` what is answered when something fails.
"""
