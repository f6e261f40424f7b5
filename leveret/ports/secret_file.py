"""Files with a secret: nobody but their owner may write them, nobody but their group read them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from leveret.errors import LeveretError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SECRET_FILE_BYTES_MAX", "SecretFileError", "read_secret_file"]

SECRET_FILE_BYTES_MAX: Final = 4096  # a longer file holds something else
# Others may do nothing with the file, its group may read it: secrets are mounted that way.
FOREIGN_MODE: Final = 0o037


class SecretFileError(LeveretError):
    """A file with a secret that cannot be read, or that others can; the text never holds it."""


def read_secret_file(file: Path, what: str) -> bytes:
    """Return the content of a file, of a longer one than allowed no more than shows that it is.

    `what` is what errors call it. Raises SecretFileError.
    """
    try:
        with file.open("rb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            if mode & FOREIGN_MODE:
                raise SecretFileError(
                    f"{what} {file} has mode {mode:04o}: others must not read it, "
                    "nor its group write it; `chmod 600` it"
                )
            return stream.read(SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecretFileError(f"cannot read {what} {file}: {error.strerror}") from None
