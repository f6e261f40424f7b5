"""Loops on which tests of links run: the node's own, and Python's."""

from __future__ import annotations

import asyncio

import pytest
import uvloop


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> dict[str, object]:
    """Run each test on both."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
