"""External sources of users: OAuth 2 tokens and an HTTP service; and fair password checks.

`node` builds them in the configured order; no other package imports this one. Its modules may use
the network, files and the event loop; `scopes` and `answers` use none of them.
"""
