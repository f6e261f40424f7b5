"""Tests wait as long as a slow machine takes: the five seconds of an HTTP client are too few."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
FILES = [
    path.relative_to(REPOSITORY)
    for directory in ("tests", "interop_tests", "spark_tests", "bench")
    for path in sorted((REPOSITORY / directory).rglob("*.py"))
    if "httpx" in path.read_text()
]
CALLS = {"Client", "AsyncClient", "get", "post", "put", "patch", "delete", "request", "stream"}


def impatient_calls(source: str) -> list[int]:
    """Return the lines that make an HTTP client of the network, or ask once, without a timeout."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "httpx"
        and node.func.attr in CALLS
        and not {"timeout", "transport"} & {keyword.arg for keyword in node.keywords}
    ]


@pytest.mark.parametrize("path", FILES, ids=str)
def test_http_clients_say_how_long_they_wait(path):
    assert impatient_calls((REPOSITORY / path).read_text()) == []


def test_impatient_calls_are_seen():
    assert impatient_calls("import httpx\nhttpx.get('/')\nhttpx.Client(base_url='/')") == [2, 3]
    assert impatient_calls("import httpx\nhttpx.get('/', timeout=60)") == []
