"""Clients that wait for a leader longer than they are to be held."""

import asyncio

import pytest

from leveret.cluster.waiting_clients import PASSES_MAX, WaitingClients
from tests.support.waiting import eventually


class Client:
    """A client that waits, and whether it is to ask."""

    def __init__(self, waiting, seconds):
        self.goes_on = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._ask(waiting, seconds))
        self.asks = None

    async def _ask(self, waiting, seconds):
        self.asks = await waiting.wait(asyncio.get_running_loop().time() + seconds)
        await self.goes_on.wait()
        waiting.taken()


async def take(client):
    client.goes_on.set()
    await client.task


@pytest.mark.parametrize("takes_all", [True, False])
async def test_nobody_waits_for_too_long_while_a_leader_takes_others(takes_all):
    waiting = WaitingClients()
    first, *others = [Client(waiting, 60.0) for _ in range(PASSES_MAX + 1)]
    await asyncio.sleep(0)
    last = Client(waiting, 0.01)
    await asyncio.sleep(0)
    waiting.try_one()
    await eventually(lambda: first.asks)
    await take(first)
    await eventually(lambda: all(client.asks for client in others))
    await eventually(lambda: waiting._late)
    assert last.asks is None
    if takes_all:
        await take(others[0])
        await eventually(lambda: last.asks is True)
    else:
        failing = Client(waiting, 60.0)  # the leader has not taken it
        await eventually(lambda: last.asks is False)
        failing.task.cancel()
    for client in (*others, last):
        await take(client)
    assert waiting.count == 0
