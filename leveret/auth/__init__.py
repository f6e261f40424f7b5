"""Sources of users that live outside the broker: tokens and an HTTP service; and whose turn it is.

`node` builds them in the operator's order; nobody else imports this room. Its modules may touch the
network, files and the event loop; `scopes` and `answers` touch nothing.
"""
