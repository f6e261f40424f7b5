"""Filters of consumers and bindings: by tags, by SQL, by a stream's filter values.

`arguments` parses them, `filters` evaluates them for each record. `filtered` delivers a queue's
messages if some consumers have filters, `search` is each filter's position in the backlog.
"""
