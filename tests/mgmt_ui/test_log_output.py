import io
import json
import logging

import pytest

from leveret.config import Configuration
from leveret.mgmt_ui.log_budget import LineBudget
from leveret.mgmt_ui.log_output import CATEGORIES, levels, open_log, set_level


@pytest.fixture
def output(monkeypatch):
    """Make the output of a node's log and what it writes to; all loggers are as before then."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers, root.level, [logging.getLogger(x).level for x in CATEGORIES.values()]
    now = [0.0]

    def made(**settings):
        monkeypatch.setattr("sys.stderr", stream)
        configuration = Configuration(**settings)
        budget = LineBudget(configuration.log_lines_per_second_max, lambda: now[0])
        return open_log(configuration, "leveret@test", budget), stream, now

    yield made
    root.handlers, root.level = before[:2]
    for name, level in zip(CATEGORIES.values(), before[2], strict=True):
        logging.getLogger(name).setLevel(level)


def test_category_may_have_a_level_of_its_own(output):
    output(log_level="error", log_connection_level="debug")
    assert levels() == {"node": "error", "connection": "debug", "channel": "error"}
    set_level("node", "warning")
    set_level("connection", "none")
    assert levels() == {"node": "warning", "connection": "none", "channel": "warning"}


def test_levels_decide_what_is_written(output):
    _, stream, _ = output(log_connection_level="warning")
    logging.getLogger("leveret.connection").info("comes")
    logging.getLogger("leveret.connection").warning("fails")
    logging.getLogger("leveret.node").info("starts")
    assert [line.split(": ", 1)[1] for line in stream.getvalue().splitlines()] == [
        "fails",
        "starts",
    ]


def test_flood_is_cut_and_told(output):
    handler, stream, now = output(log_lines_per_second_max=1)
    for _ in range(120):
        logging.getLogger("leveret.channel").warning("closed", extra={"source": ""})
    now[0] += 10
    handler.tell_left_out()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 21
    assert "100 more lines of leveret.channel (warning) were left out" in lines[-1]


def test_lines_of_json_have_the_parts_of_what_they_say(output):
    _, stream, _ = output(log_format="json")
    fields = {"connection": "a -> b", "user": "x", "code": 406}
    logging.getLogger("leveret.channel").warning("closed", extra={"fields": fields})
    line = json.loads(stream.getvalue())
    assert fields.items() <= line.items()
    assert line["message"] == "closed"
