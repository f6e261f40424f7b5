"""Topology of a virtual host: its exchanges, queues and bindings, and routing through them.

`topology` keeps graph, store, counts and events in step; `graph` holds the bindings and the route
caches, and `walk` finds the queues of one message.
"""
