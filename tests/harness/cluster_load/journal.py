"""Journals of clients: lines that are written at once, so that a client may hang or be killed."""

from __future__ import annotations

import time
from os import SEEK_END
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SENT, CONFIRMED, REFUSED = "sent", "confirmed", "refused"
GOT, ACKED, REJECTED = "got", "acked", "rejected"
CONNECTED, ERROR, STRANGE = "connected", "error", "strange"

NEWEST_BYTES = 32768


class Event(NamedTuple):
    """A line of a journal. `more` has what only some events have, as text."""

    at: float  # as time.time() has it
    client: str
    kind: str
    publisher: str = ""
    number: int = 0
    more: tuple[str, ...] = ()


class Journal:
    """Writes what a client does. One thread uses it."""

    def __init__(self, directory: Path, client: str) -> None:
        self._file = (directory / f"{client}.journal").open("a")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, kind: str, publisher: str = "-", number: int = 0, *more: object) -> None:
        words = " ".join(str(word) for word in more)
        self._file.write(f"{time.time():.6f} {kind} {publisher} {number} {words}\n")
        self._file.flush()

    def error(self, error: BaseException, *, kind: str = ERROR) -> None:
        """Write why something failed."""
        self.write(kind, "-", 0, " ".join(f"{type(error).__name__}: {error!r}".split())[:300])


def read_journals(directory: Path) -> list[Event]:
    """Return the events of all clients, in the order of time; those of one client as it wrote."""
    found = []
    for path in sorted(directory.glob("*.journal")):
        found += _parse(path.stem, path.read_text())
    return sorted(found, key=lambda event: event.at)


def last_events(directory: Path) -> list[Event]:
    """Return the newest events of all clients, some hundreds of each."""
    found = []
    for path in sorted(directory.glob("*.journal")):
        with path.open("rb") as file:
            size = file.seek(0, SEEK_END)
            file.seek(max(0, size - NEWEST_BYTES))
            text = file.read().decode()
        found += _parse(path.stem, text if size <= NEWEST_BYTES else text.partition("\n")[2])
    return found


def _parse(client: str, text: str) -> Iterator[Event]:
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):  # the last one may be half there
            at, kind, publisher, number, *more = line.split()
            yield Event(float(at), client, kind, publisher, int(number), tuple(more))
