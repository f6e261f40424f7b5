"""Prepared messages: stored, and published or dropped when their producer decides.

`rules` decides when the producer is asked, `prepared` stores them, `prepared_interceptor` takes
them and their commands from publishers.
"""
