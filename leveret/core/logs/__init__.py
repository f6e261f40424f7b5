"""Writing to and reading from the broker's logs, whatever their purpose.

`log_writer` is a log with waiters for its commits, `internal_topics` are logs that only the broker
writes to, `atomic` writes to several logs at once; `publish_tags` maps records to publishes.
`window` reads; `data_loss` and `error_throttle` report read errors to the operator.
"""
