"""Waiting rooms: internal topics whose records wait, each for a moment of its own.

`room` is one of them, `rooms` all of a node with their wheel and timer. `index` is what of it is on
disk, `stage` what is due within seconds, `reader` reads the records.
"""
