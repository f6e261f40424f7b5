"""The HTTP API: routes, authorization, and rows under RabbitMQ's names.

Most routes are in modules named after their resource; `callers` authenticates requests, `views` and
`listing` make rows and lists of them, `problems` has the error answers.
"""
