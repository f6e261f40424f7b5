"""Handler that passes log lines to exchange `amq.rabbitmq.log` (core.telemetry.log_exchange)."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from leveret.mgmt_ui.log_format import LineFormatter

if TYPE_CHECKING:
    import asyncio

    from leveret.core.telemetry.log_exchange import LogExchange, LogLine

__all__ = ["LogExchangeHandler"]

LINES_MAX = 1000  # waiting: a node that logs more in one interval has other troubles
LINE_CHARACTERS_MAX = 16_384  # a traceback fits; what a peer made us quote is bounded elsewhere
# Lines gather this long. What publishing a line brings about is not published at once, so that two
# troubles which cause each other take a line in a while, not a processor.
INTERVAL_SECONDS = 0.1


class LogExchangeHandler(logging.Handler):
    """Queues records from any thread without blocking; those beyond a bound are dropped.

    A record's attribute `subject` says what it is about (see LogExchange).
    """

    def __init__(self, exchange: LogExchange, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("%(asctime)s [%(levelname)s] %(name)s: %(message)s\n"))
        self._exchange = exchange
        self._loop = loop
        self._lines: deque[LogLine] = deque()
        self._scheduled = False

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record for the next round."""
        if len(self._lines) >= LINES_MAX:
            return
        try:
            text = self.format(record)[:LINE_CHARACTERS_MAX]
        except Exception:  # noqa: BLE001  # a line that cannot be written stops nothing
            self.handleError(record)
            return
        subject = getattr(record, "subject", None)
        self._lines.append((record.levelname.lower(), text, int(record.created), subject))
        if not self._scheduled:
            self._scheduled = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node has ended
                self._loop.call_soon_threadsafe(self._loop.call_later, INTERVAL_SECONDS, self._tell)

    def _tell(self) -> None:
        self._scheduled = False
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self._exchange.publish(lines)
