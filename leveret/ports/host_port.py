"""Addresses written as `HOST:PORT`; a numeric IPv6 address stands in brackets: `[::1]:25672`."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["format_host_port", "parse_host_port"]

PORT_MAX: Final = 65_535
ADDRESS: Final = re.compile(
    r"(?:\[([0-9A-Fa-f.]*:[0-9A-Fa-f:.]*)\]|([^\s:/,\[\]]+))(?::(\d{1,5}))?", re.ASCII
)


def parse_host_port(text: str) -> tuple[str, int | None]:
    """Return host and port, None for an address without a port. Raises ValueError."""
    found = ADDRESS.fullmatch(text)
    if found is None:
        raise ValueError("expected HOST or HOST:PORT, an IPv6 address in brackets")
    numeric, name, digits = found.groups()
    port = None if digits is None else int(digits)
    if port is not None and not 0 < port <= PORT_MAX:
        raise ValueError(f"a port is a number from 1 to {PORT_MAX}")
    return numeric or name, port


def format_host_port(host: str, port: int) -> str:
    """Return an address as text that `parse_host_port` takes."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
