import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from leveret.config import Configuration
from leveret.errors import DiskFullError, StorageError, ToleratedError
from leveret.node.process import Process
from tests.support.waiting import LIMIT_SECONDS

BEGINNING_ANEW = """
import asyncio, logging, sys
from leveret.config import Configuration
from leveret.node.process import Process

logging.basicConfig()
sys.orig_argv = [sys.executable, "-c", "print('it began anew')"]

async def begin_anew():
    async with asyncio.TaskGroup() as tasks:
        process = Process(Configuration(), tasks)
        print("before")
        {}
        process.begin_anew("its lease is over")

try:
    asyncio.run(begin_anew())
finally:
    print("it went on", flush=True)
"""


async def with_process(use):
    async with asyncio.TaskGroup() as tasks:
        process = Process(Configuration(), tasks)
        await use(process)
        process.cancel_tasks()


async def test_a_background_task_that_fails_is_reported_and_stops_nobody_else(caplog):
    async def fail():
        raise StorageError("no such file")

    async def use(process):
        going_on = asyncio.Event()

        async def go_on():
            await asyncio.sleep(0)
            going_on.set()

        process.spawn(fail())
        process.spawn(go_on())
        await going_on.wait()

    await with_process(use)
    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.ERROR, "background task: no such file")
    ]


async def test_what_is_left_in_the_background_ends_with_the_node():
    ended = []

    async def use(process):
        async def wait():
            try:
                await process.stopping.wait()
            finally:
                ended.append(True)

        process.spawn(wait())
        await asyncio.sleep(0)

    await with_process(use)
    assert ended == [True]


async def test_a_full_disk_is_told_at_once(caplog):
    told = []

    async def use(process):
        process.report("a log", DiskFullError("no space"))  # nobody is there to be told yet
        process.on_disk_full = lambda: told.append("disk")
        process.report("a log", StorageError("gone"))
        process.report("a log", DiskFullError("no space"))

    await with_process(use)
    assert told == ["disk"]
    assert [each.getMessage() for each in caplog.records] == [
        "a log: no space",
        "a log: gone",
        "a log: no space",
    ]


async def test_our_own_mistakes_are_reported_with_their_traces(caplog):
    async def use(process):
        process.report("a queue", ToleratedError("inequivalent"))
        process.report("a queue", ZeroDivisionError("division by zero"))

    await with_process(use)
    warning, error = caplog.records
    assert (warning.levelno, warning.exc_info) == (logging.WARNING, None)
    assert "report this as a bug" in error.getMessage()
    assert error.exc_info[0] is ZeroDivisionError


def begun_anew(prepare, stderr):
    """Have a process begin anew; return its exit status, and what it has printed."""
    command = [sys.executable, "-c", BEGINNING_ANEW.format(prepare)]
    # Without PYTHONUNBUFFERED: what could not be written stays, and fails at each further flush.
    ended = subprocess.run(
        command,
        env={"PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return ended.returncode, ended.stdout


@pytest.mark.usefixtures("processes")
def test_a_log_that_cannot_be_written_keeps_no_process_from_beginning_anew():
    with Path("/dev/full").open("w") as full:
        assert begun_anew("pass", full) == (0, "before\nit began anew\n")


@pytest.mark.usefixtures("processes")
def test_a_process_that_cannot_be_replaced_ends():
    gone = "sys.executable = '/nowhere/python'"
    assert begun_anew(gone, subprocess.DEVNULL) == (1, "before\n")
    assert begun_anew("process.stopping.set()", subprocess.DEVNULL) == (1, "before\n")
