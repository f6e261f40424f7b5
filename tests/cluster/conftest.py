"""Loops of tests of clients that are passed on: the node's own, and Python's."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

BOTH = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, object]:
    """Run these tests on both; the others on Python's."""
    if item.path.name == "test_client_proxy.py":
        return BOTH
    return {"asyncio": asyncio.SelectorEventLoop}
