"""Delayed-message stores: internal topics of records with due times.

`store` is one of them, `stores` are all of a node with their timing wheels and timers. `index` is
the durable index, `prefetch` the prefetch buffer for what is due within seconds, `reader` reads the
records.
"""
