"""Format of log lines: text for people, or one JSON object per line for log collectors.

    {"time": "2026-03-01T09:30:00.125Z", "level": "error", "logger": "leveret.node",
     "message": "…", "node": "leveret@host", "exception": "Traceback …"}

`exception` is there only when there was one; lines about clients have `connection`, `user`,
`vhost`, `channel` and `code` (AMQP's reply code), as far as they are known. However long or hostile
a message is, it is one line in either format: what clients choose, such as names of groups and
arguments, may have line breaks in it, and must not pass for lines of the node.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from leveret.ports.log_text import one_line

__all__ = ["JsonFormatter", "LineFormatter", "formatter"]

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def formatter(log_format: str, node_name: str) -> logging.Formatter:
    """Return the formatter for the setting `log_format`: `text` or `json`."""
    return JsonFormatter(node_name) if log_format == "json" else LineFormatter(TEXT)


class LineFormatter(logging.Formatter):
    """Formats a record as text in which unprintable characters of the message are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # its base's name
        """Return the text of a record without its traceback (see logging.Formatter)."""
        record.message = one_line(record.message, len(record.message))
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line."""

    def __init__(self, node_name: str) -> None:
        super().__init__()
        self._node_name = node_name

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record (see logging.Formatter)."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "node": self._node_name,
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)
