"""Writing to and reading from the broker's logs, whatever their purpose.

`log_writer` is a log with waiters for its commits, `internal_topics` are logs that only the broker
writes to, `atomic` writes to several logs at once; `publish_tags` maps records to publishes.
`window` reads, `log_scan` reads again what an earlier run has left and says what is lost,
`log_restore` does so until all of it is read; `error_throttle` reports read errors to the operator
once.
"""
