import asyncio
import logging
import threading

import pytest

from leveret.mgmt_ui import log_handler
from leveret.mgmt_ui.log_handler import LINE_CHARACTERS_MAX, LINES_MAX, LogExchangeHandler


class Recorder:
    def __init__(self):
        self.lines = []
        self.come = asyncio.Event()

    def publish(self, lines):
        self.lines += lines
        self.come.set()


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(log_handler, "INTERVAL_SECONDS", 0)
    return Recorder()


@pytest.fixture
async def logger(recorder):
    logger = logging.getLogger("tests.log_handler")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    logger.addHandler(LogExchangeHandler(recorder, asyncio.get_running_loop()))
    yield logger
    logger.handlers.clear()


async def test_lines_come_later_with_their_level_and_subject(recorder, logger):
    about = object()
    logger.warning("%s degrees", 40)
    logger.error("broken", extra={"subject": about})
    assert recorder.lines == []
    await recorder.come.wait()
    (first, second) = recorder.lines
    assert first[0] == "warning"
    assert first[1].endswith(" [WARNING] tests.log_handler: 40 degrees\n")
    assert first[3] is None
    assert (second[0], second[3]) == ("error", about)
    recorder.come.clear()
    logger.debug("more")
    await recorder.come.wait()
    assert recorder.lines[2][0] == "debug"


async def test_from_any_thread(recorder, logger):
    thread = threading.Thread(target=logger.info, args=("from afar",))
    thread.start()
    await recorder.come.wait()
    thread.join()
    assert recorder.lines[0][1].endswith("from afar\n")


async def test_too_much_is_left_out(recorder, logger):
    for _ in range(LINES_MAX + 10):
        logger.info("x" * 2 * LINE_CHARACTERS_MAX)
    await recorder.come.wait()
    assert len(recorder.lines) == LINES_MAX
    assert len(recorder.lines[0][1]) == LINE_CHARACTERS_MAX


def test_when_the_loop_is_closed_nobody_is_told(recorder):
    loop = asyncio.new_event_loop()
    loop.close()
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "late", (), None)
    LogExchangeHandler(recorder, loop).emit(record)
    assert recorder.lines == []


async def test_a_line_that_cannot_be_written_stops_nothing(recorder, logger, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.info("%d degrees", "hot")
    logger.info("next")
    await recorder.come.wait()
    assert [line[1].rpartition(": ")[2] for line in recorder.lines] == ["next\n"]
