"""A node whose process is stopped: it accepts bytes, and answers nothing."""

import asyncio
import signal
import sys

import pytest

from leveret.links.breaker import BreakerState
from leveret.links.errors import PeerUnavailableError, Unavailable
from leveret.links.settings import LinkSettings
from tests.links.nodes import ECHO, WAIT, Node
from tests.support.waiting import eventually


async def test_a_stopped_process_is_noticed_and_dialed_again():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.links.nodes", stdout=asyncio.subprocess.PIPE
    )
    try:
        port = int(await process.stdout.readline())
        async with Node(1, LinkSettings(handshake_ms_max=500)) as one:
            one.links.set_address(2, "localhost", port)
            peer = one.links.peer(2)
            await peer.request(ECHO, b"", timeout_s=60)
            asked = one.spawn(peer.request(WAIT, b"", timeout_s=60))
            await asyncio.sleep(0)
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(PeerUnavailableError) as lost:
                await asked
            assert lost.value.why is Unavailable.LOST
            assert peer.breaker.state is not BreakerState.CLOSED
            with pytest.raises(PeerUnavailableError) as caught:
                await peer.request(ECHO, b"", timeout_s=60)
            assert caught.value.why is Unavailable.BREAKER_OPEN
            process.send_signal(signal.SIGCONT)
            await eventually(lambda: peer.is_connected)
            assert bytes(await peer.request(ECHO, b"on", timeout_s=60)) == b"on"
    finally:
        process.kill()
        await process.wait()
