"""Shovels move messages from one broker to another, or from one queue to another, by themselves.

A shovel is a parameter of a virtual host, as in RabbitMQ: `parameters` checks it, `uris` reads its
addresses, `transfer` decides about each message, `rewriting` changes their properties. `commands`
are what administrators do; leveret.shovels connects and moves.
"""
