"""Sending once: duplicates dropped within a window, numbered publishers, half messages.

`dedup…` is the window of a queue and of an exchange, `producers` how far each numbering publisher
has come, `prepared…` keeps half messages until they are decided. `sending_once` puts all that
together for a broker, `operations` is what people may do with it.
"""
