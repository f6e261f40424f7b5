"""Delayed-message stores: internal topics of records with due times.

`store` is one of them, and all of a node with their timing wheel. `index` is the durable index,
`reader` reads what is due within seconds, and what is asked for.
"""
