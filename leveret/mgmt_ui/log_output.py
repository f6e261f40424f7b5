"""The node's log: output, rate limits and levels, which can be changed while the node runs.

Lines go to standard error. The categories `connection` and `channel` may have levels of their own,
as in RabbitMQ; `node` is all the rest.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from leveret.mgmt_ui.log_format import formatter

if TYPE_CHECKING:
    from typing import TextIO

    from leveret.config import Configuration
    from leveret.mgmt_ui.log_budget import LineBudget

__all__ = ["CATEGORIES", "LEVELS", "LogOutput", "levels", "open_log", "set_level"]

ROOT: Final = "leveret"
CATEGORIES: Final = {
    "node": ROOT,
    "connection": f"{ROOT}.connection",
    "channel": f"{ROOT}.channel",
}
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "none": logging.CRITICAL + 1,
}


class LogOutput(logging.StreamHandler["TextIO"]):
    """Writes lines within the budget, and reports the number of suppressed ones."""

    def __init__(self, stream: TextIO, budget: LineBudget) -> None:
        super().__init__(stream)
        self._budget = budget

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or count it as suppressed."""
        category = f"{record.name} ({record.levelname.lower()})"
        allowed = self._budget.take(category, getattr(record, "source", ""))
        self.tell_left_out()
        if allowed:
            super().emit(record)

    def tell_left_out(self) -> None:
        """Write the numbers of suppressed lines, if it is time to."""
        for category, count in self._budget.left_out():
            text = f"{count} more lines of {category} were left out: see log_lines_per_second_max"
            name, level = f"{ROOT}.log", logging.WARNING
            super().emit(logging.LogRecord(name, level, "", 0, text, None, None))


def open_log(configuration: Configuration, node_name: str, budget: LineBudget) -> LogOutput:
    """Start logging as configured."""
    output = LogOutput(sys.stderr, budget)
    output.setFormatter(formatter(configuration.log_format, node_name))
    root = logging.getLogger()
    root.handlers = [output]
    root.setLevel(logging.WARNING)  # of libraries
    set_level("node", configuration.log_level)
    set_level("connection", configuration.log_connection_level)
    set_level("channel", configuration.log_channel_level)
    return output


def set_level(category: str, level: str) -> None:
    """Set the level of a category, one of LEVELS; empty for the level of `node`."""
    logging.getLogger(CATEGORIES[category]).setLevel(LEVELS[level] if level else logging.NOTSET)


def levels() -> dict[str, str]:
    """Return the level of each category."""
    names = {number: name for name, number in LEVELS.items()}
    return {
        category: names.get(logging.getLogger(name).getEffectiveLevel(), "none")
        for category, name in CATEGORIES.items()
    }
