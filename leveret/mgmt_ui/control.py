"""The control socket: commands on this machine reach the running node by it.

A Unix socket in the data directory that only its owner may open. Each line from a client is a
request, each line back its answer, both JSON as `operations` describes.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

from leveret.core.definitions.document import DOCUMENT_BYTES_MAX
from leveret.core.events import COMMAND_LINE_USER
from leveret.core.json_fields import decode_json
from leveret.errors import StorageError
from leveret.mgmt_ui.control_client import control_address
from leveret.mgmt_ui.yielding import in_chunks, in_pieces
from leveret.ports.audit import Actor, Way

__all__ = ["COMMAND_LINE", "ControlServer"]

log = logging.getLogger(__name__)

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]

COMMAND_LINE = Actor(COMMAND_LINE_USER, "", Way.COMMAND_LINE)
REQUEST_BYTES_MAX = DOCUMENT_BYTES_MAX  # the longest request imports definitions
IDLE_SECONDS_MAX = 60.0  # a client types one command and goes; more than this is a forgotten one
STOP_SECONDS_MAX = 1.0  # for answers under way when the node stops, as with HTTP
BACKLOG = 16
ACCEPTING_TURNS = 4  # of the loop, for whoever has connected: asyncio loses those it is accepting


class ControlServer:
    """Listens from `start` to `close`; each connection is a task made with `spawn`.

    `answer` is called with a request; it never raises for a bad one.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[object], Awaitable[dict[str, object]]],
        spawn: Spawn,
    ) -> None:
        self._path = path
        self._perform = answer
        self._spawn = spawn
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[object], asyncio.StreamWriter] = {}
        self._answering: set[asyncio.Task[object]] = set()
        self._closing = False

    async def start(self) -> None:
        """Start listening. The data directory's lock is held, so an existing socket is stale.

        Raises StorageError.
        """
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with control_address(self._path) as address:
                listener.bind(address)
            # No client can connect before `listen`, so there is no moment at which others may.
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(
                self._accept, sock=listener, limit=REQUEST_BYTES_MAX, backlog=BACKLOG
            )
        except OSError as error:
            listener.close()
            raise StorageError(
                f"cannot listen on {self._path}: {error.strerror}; check that the node may write "
                "there, and that the file system allows sockets (data_dir)"
            ) from error

    async def close(self) -> None:
        """Stop listening, answer pending requests within a moment, and close the connections."""
        self._closing = True
        if self._server is not None:
            self._path.unlink(missing_ok=True)
            for _ in range(ACCEPTING_TURNS):
                await asyncio.sleep(0)
            self._server.close()
        for task, writer in self._clients.items():
            if task not in self._answering:
                writer.close()
        if self._answering:
            _, late = await asyncio.wait(self._answering, timeout=STOP_SECONDS_MAX)
            for task in late:
                task.cancel()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._spawn(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "it was spawned"
        self._clients[task] = writer
        try:
            while not self._closing:
                line = await asyncio.wait_for(_line(reader), IDLE_SECONDS_MAX)
                if line == b"" or self._closing:
                    break
                self._answering.add(task)
                answer = await self._answer(line)
                async for chunk in in_chunks(in_pieces(answer), "\n"):
                    writer.write(chunk)
                    await writer.drain()
                self._answering.discard(task)
        except OSError:
            pass  # the client is gone, or forgot us (TimeoutError is one): nothing is lost
        finally:
            self._answering.discard(task)
            del self._clients[task]
            writer.close()

    async def _answer(self, line: bytes | None) -> dict[str, object]:
        if line is None:
            reason = f"a request has at most {REQUEST_BYTES_MAX} bytes"
            return {"ok": False, "error": "invalid", "explanation": reason}
        try:
            request = await asyncio.to_thread(decode_json, line)
        except (ValueError, RecursionError):
            return {"ok": False, "error": "invalid", "explanation": "a request is a line of JSON"}
        try:
            return await self._perform(request)
        except RecursionError:
            return {"ok": False, "error": "invalid", "explanation": "values are nested too deeply"}
        except Exception:  # a bug in one command must not stop the node
            log.exception("a control command failed")
            return {"ok": False, "error": "internal", "explanation": "see the node's log"}


async def _line(reader: asyncio.StreamReader) -> bytes | None:
    """Return the next line; empty at the end, None for a line that is too long."""
    is_too_long = False
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as overrun:
            await reader.readexactly(overrun.consumed)
            is_too_long = True
        except asyncio.IncompleteReadError:
            return b""  # a client that closed in the middle of a line waits for no answer
        else:
            return None if is_too_long else line
