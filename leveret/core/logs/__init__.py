"""How the broker writes to its logs and reads them back, whatever they are for.

`log_writer` is a log with the callbacks that wait for its commits, `internal_topics` are logs that
only the broker writes to, `atomic` writes to several at once; `publish_tags` says which publisher
each record of a batch came from. `window` and `reading` read; `data_loss` and `error_throttle` are
what the operator is told when that fails.
"""
