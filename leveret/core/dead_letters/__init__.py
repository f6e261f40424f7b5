"""Dead letters: messages on their way from a queue to its dead-letter target, and back again.

`worker` collects them, `dead_lettering` decides where they go, `packing` writes the records,
`topics` creates dead-letter queues, `publish` tracks at-least-once delivery. `letters` reads dead
letters, `redrive` moves them back.
"""
