"""Exchanges, bindings and messages as routing sees them, and the cached routes of an exchange.

`router` is the interface of the exchange types, which are in leveret.core.exchanges; the graph of a
virtual host and the walk through it are in leveret.core.topology.
"""
