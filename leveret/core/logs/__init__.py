"""How the broker writes to its logs and reads them back, whatever they are for.

`log_writer` is a log with those who wait for it, `internal_topics` are logs that only the broker
writes to, `atomic` writes to several at once; `origins` knows whose publishes are being written.
`window` and `reading` read; `loss` and `complaints` are what the operator hears when that fails.
"""
