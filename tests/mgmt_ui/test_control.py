import asyncio
import json
import stat
from contextlib import asynccontextmanager

import pytest

from leveret.core.definitions.model import Model
from leveret.errors import StorageError
from leveret.mgmt_ui import control
from leveret.mgmt_ui.control import COMMAND_LINE, ControlServer
from leveret.mgmt_ui.control_client import request
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.ports.definitions import Definitions
from tests.memory_metadata import MemoryMetadataStore


@asynccontextmanager
async def listening(path, answer=None):
    model = Model(Definitions(), MemoryMetadataStore(), lambda: "random")
    administration = model.administration
    administration.create_defaults("")
    node = AdminContext(administration, model.vhosts)

    async def perform_here(request):
        return await perform(node, request, COMMAND_LINE)

    async with asyncio.TaskGroup() as group:
        server = ControlServer(path, answer or perform_here, group.create_task)
        await server.start()
        try:
            yield administration
        finally:
            await server.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "control.sock"


async def test_a_directory_that_cannot_hold_the_socket_is_named(tmp_path):
    path = tmp_path / "missing" / "control.sock"
    with pytest.raises(StorageError, match=r"missing/control\.sock: .*; check .* \(data_dir\)"):
        await ControlServer(path, None, None).start()


async def exchange(path, *lines):
    """Answers to lines sent on one connection, until the node hangs up or has answered all."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"".join(lines))
    writer.write_eof()
    answers = [json.loads(line) for line in (await reader.read()).splitlines()]
    writer.close()
    await writer.wait_closed()
    return answers


async def test_request_is_answered(path):
    async with listening(path):
        answer = await asyncio.to_thread(request, path, "vhost.list", {})
    assert answer["ok"]
    assert [vhost["name"] for vhost in answer["result"]] == ["/"]


async def test_only_the_owner_may_connect(path):
    async with listening(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_socket_left_by_a_crash_is_replaced(path):
    path.write_bytes(b"")
    async with listening(path):
        assert (await asyncio.to_thread(request, path, "user.list", {}))["ok"]


async def test_path_longer_than_the_kernel_allows(tmp_path):
    path = tmp_path / ("d" * 120) / "control.sock"
    path.parent.mkdir()
    async with listening(path):
        assert (await asyncio.to_thread(request, path, "user.list", {}))["ok"]


async def test_bad_lines_are_answered_and_the_connection_lives_on(path):
    good = b'{"operation": "user.list", "parameters": {}}\n'
    async with listening(path):
        answers = await exchange(path, b"nonsense\n", b"[" * 50_000 + b"\n", b"\xff\n", good)
    assert [answer["ok"] for answer in answers] == [False, False, False, True]


@pytest.mark.parametrize("excess", [1, 64 * 1024, 200_000])
async def test_line_longer_than_any_request_is_answered_once_it_has_ended(
    path, monkeypatch, excess
):
    monkeypatch.setattr(control, "REQUEST_BYTES_MAX", 64 * 1024)
    good = b'{"operation": "user.list", "parameters": {}}\n'
    async with listening(path):
        answers = await exchange(path, b"x" * (64 * 1024 + excess) + b"\n", good)
    assert [answer["ok"] for answer in answers] == [False, True]
    assert answers[0]["explanation"] == "a request has at most 65536 bytes"


@pytest.mark.parametrize(
    "value",
    [b"1" * 4000, b"1" * 10_000, b"1e400", b"-1e400", b"NaN", b'{"a":' * 700 + b"1" + b"}" * 700],
)
async def test_absurd_values_are_answered(path, value):
    asked = [
        b'{"operation": "audit.list", "parameters": {"limit": 1, "since": %s}}\n' % value,
        b'{"operation": "parameter.set", "parameters": {"vhost": "/", "component": "c", '
        b'"name": "n", "value": %s}}\n' % value,
        b'{"operation": "user.list", "parameters": {}}\n',
    ]
    async with listening(path):
        answers = await exchange(path, *asked)
    assert len(answers) == 3
    assert answers[2]["ok"]
    assert all(answer["ok"] or answer["error"] != "internal" for answer in answers)


@pytest.mark.parametrize("error", [ZeroDivisionError, ValueError])
async def test_mistake_of_ours_stops_neither_connection_nor_node(path, monkeypatch, caplog, error):
    def fail():
        raise error

    async with listening(path) as administration:
        monkeypatch.setattr(administration, "users", fail)
        line = b'{"operation": "user.list", "parameters": {}}\n'
        answers = await exchange(path, line, line)
    assert [answer["error"] for answer in answers] == ["internal", "internal"]
    assert error.__name__ in caplog.text


async def test_forgotten_connection_is_closed(path, monkeypatch):
    monkeypatch.setattr(control, "IDLE_SECONDS_MAX", 0.01)
    async with listening(path):
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.close()


async def test_stopping_hangs_up_on_idle_clients(path):
    async with listening(path):
        reader, writer = await asyncio.open_unix_connection(path)
        await asyncio.to_thread(request, path, "user.list", {})
    assert await reader.read() == b""
    writer.close()


def test_nobody_listening_is_said_so(path):
    with pytest.raises(StorageError, match="no node answers"):
        request(path, "user.list", {})


async def test_what_is_asked_is_answered_before_a_stop(path):
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(*_):
        asked.set()
        await go.wait()
        return {"ok": True}

    async with asyncio.TaskGroup() as group, listening(path, slow):
        answers = group.create_task(exchange(path, b"{}\n", b"{}\n"))
        await asked.wait()
        asyncio.get_running_loop().call_later(0.05, go.set)
    assert answers.result() == [{"ok": True}]


async def test_a_stop_does_not_wait_for_ever(path, monkeypatch):
    asked = asyncio.Event()

    async def endless(*_):
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(control, "STOP_SECONDS_MAX", 0.05)
    async with asyncio.TaskGroup() as group, listening(path, endless):
        answers = group.create_task(exchange(path, b"{}\n"))
        await asked.wait()
    assert answers.result() == []
