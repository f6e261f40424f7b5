"""Clients that wait for a leader longer than they are to be held."""

import asyncio

import pytest

from leveret.cluster.waiting_clients import PASSES_MAX, WaitingClients
from tests.support.waiting import eventually

NEVER_SECONDS = 3600.0


class WaitingClient:
    """A client that waits, and whether it is to ask."""

    def __init__(self, waiting):
        self.goes_on = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._ask(waiting))
        self.asks = None

    async def _ask(self, waiting):
        self.asks = await waiting.wait(asyncio.get_running_loop().time() + NEVER_SECONDS)
        await self.goes_on.wait()
        waiting.taken()


async def take(client):
    client.goes_on.set()
    await client.task


@pytest.mark.parametrize("takes_all", [True, False])
async def test_nobody_waits_for_too_long_while_a_leader_takes_others(takes_all):
    waiting = WaitingClients()
    first, *others, last = [WaitingClient(waiting) for _ in range(PASSES_MAX + 2)]
    await asyncio.sleep(0)
    waiting.try_one()
    await eventually(lambda: first.asks)
    await take(first)
    await eventually(lambda: all(client.asks for client in others))
    [turn] = waiting._waiting
    waiting._expire(turn)  # as at its deadline
    await asyncio.sleep(0)
    assert last.asks is None
    if takes_all:
        await take(others[0])
        await eventually(lambda: last.asks is True)
    else:
        failing = WaitingClient(waiting)  # the leader has not taken it
        await eventually(lambda: last.asks is False)
        failing.task.cancel()
    for client in (*others, last):
        await take(client)
    assert waiting.count == 0
