"""Something to wait for, until a test lets it happen; on a loop or without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class Gate:
    """Await it: the coroutine goes on when somebody has opened it."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.is_open = is_open

    def open(self) -> None:
        self.is_open = True

    def __await__(self) -> Generator[None, None, None]:
        while not self.is_open:
            yield
