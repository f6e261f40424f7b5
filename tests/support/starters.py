"""Finds tests that can start a process: a node, a command, a client of somebody else's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

OURS = ("tests.", "bench.")  # packages of modules that are looked into


class Starters:
    """The modules that can start a process: they import subprocess, or one of ours that does."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def include(self, item: pytest.Item) -> bool:
        """Whether a test, or a fixture that it uses, stands in such a module."""
        return any(map(self.include_names, _names_of(item)))

    def include_names(self, names: dict[str, object]) -> bool:
        """Whether the module with these global names is one."""
        module = str(names["__name__"])
        if module not in self._known:
            self._known[module] = False  # for those that import each other
            self._known[module] = self._find(names.values())
        return self._known[module]

    def _find(self, values: Iterable[object]) -> bool:
        for value in list(values):
            name = getattr(value, "__module__", None) or getattr(value, "__name__", None)
            if name == "subprocess":
                return True
            if isinstance(name, str) and name.startswith(OURS):
                found = sys.modules.get(name)
                if found is not None and self.include_names(vars(found)):
                    return True
        return False


def _names_of(item: pytest.Item) -> Iterator[dict[str, object]]:
    yield vars(item.module)
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            yield definition.func.__globals__
