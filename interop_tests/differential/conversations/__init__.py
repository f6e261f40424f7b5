"""The conversations: every public function of the modules here, by its name.

A conversation is a short function that is handed a `Talk`; what is said is the transcript.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from interop_tests.differential.talk import Talk


def all_conversations() -> dict[str, Callable[[Talk], None]]:
    """Every conversation by name, in the order of the files and of the functions in them."""
    found: dict[str, Callable[[Talk], None]] = {}
    for module_info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for name, function in vars(module).items():
            if not inspect.isfunction(function) or name.startswith("_"):
                continue
            if function.__module__ == module.__name__:
                assert name not in found, f"two conversations are called {name}"
                found[name] = function
    return found
