"""Filters of consumers and bindings: by tags, by SQL, by a stream's filter values.

`tags`, `sql` and `expressions` parse the languages, `rules` the arguments of consumers and
bindings; `filters` evaluates them for each record. `filtered` delivers a queue's messages if some
consumers have filters, `search` is each filter's position in the backlog.
"""
