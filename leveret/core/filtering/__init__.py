"""Consumers and bindings that want only some messages: by tags, by SQL, by a stream's filter value.

`arguments` is how they say so, `filters` what runs for each record. `filtered` offers a queue's
messages where some consumers have filters, `search` is each one's place in the backlog.
"""
