"""Dead letters: messages on their way from a queue to its dead-letter target, and back again.

`rules` is the history in their headers. `worker` collects them, `dead_lettering` decides where they
go, `packing` writes the records, `topics` creates dead-letter queues, `publish` tracks
at-least-once delivery. `scan` reads dead letters, `redrive` moves them back, by `redrive_rules`.
"""
