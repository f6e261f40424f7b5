"""Delayed-message stores: internal topics whose records wait, each for a moment of its own.

`store` is one of them, `stores` all of a node with their wheel and timer. `index` is what of it is
on disk, `prefetch` what is due within seconds, `reader` reads the records.
"""
