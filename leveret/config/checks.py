"""Checks of settings without starting a node: whether their files exist and are readable."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.config.loading import LoadedConfiguration

__all__ = ["unreadable_files"]

DIRECTORIES: Final = frozenset({"data_dir"})  # made at the first start


def unreadable_files(loaded: LoadedConfiguration) -> Iterator[str]:
    """Yield a sentence for each file of a setting that this user cannot read."""
    for name, value in loaded.configuration:
        if not isinstance(value, Path) or name in DIRECTORIES:
            continue
        where = f"setting '{name}' ({loaded.source(name)})"
        if not value.is_file():
            yield f"{where}: there is no file {value}"
        elif not os.access(value, os.R_OK):
            yield f"{where}: this user may not read {value}"
