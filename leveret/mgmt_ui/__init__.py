"""Management: administrative operations, HTTP API, web UI, metrics, logs."""
