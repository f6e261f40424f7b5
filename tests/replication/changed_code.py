"""Code with a change in it: a rule taken out, or a mistake of an engineer at work."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def changed(owner: type | ModuleType, name: str, old: str, new: str):
    """Replace the text `old`, which occurs once in a function of a class or module, for a while."""
    before = vars(owner)[name]
    function: Callable[..., Any] = before.fget if isinstance(before, property) else before
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}"
    made: dict[str, Any] = {}
    code = "from __future__ import annotations\n" + source.replace(old, new)
    exec(compile(code, f"<{name}, changed>", "exec"), function.__globals__, made)
    setattr(owner, name, made[name])
    try:
        yield
    finally:
        setattr(owner, name, before)
