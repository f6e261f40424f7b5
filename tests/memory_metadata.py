"""A MetadataStore without a disk, for tests of whatever keeps definitions."""

from __future__ import annotations

from leveret.ports.definitions import Definition, Definitions
from leveret.storage.schema import TABLES


class MemoryMetadataStore:
    """Durable as far as a test can tell: what is put is pending until `flush`."""

    keeps_all = is_following = False

    def __init__(self) -> None:
        self.kept: dict[tuple, Definition] = {}
        self.unwritten: dict[tuple, Definition | None] = {}

    async def load(self) -> Definitions:
        await self.flush()
        definitions = Definitions()
        for kind, table in TABLES.items():
            held = [(key, kept) for (of, key), kept in self.kept.items() if of is kind]
            held.sort(key=lambda item: item[0])
            getattr(definitions, table.name).extend(kept for _, kept in held)
        return definitions

    def put(self, definition: Definition) -> None:
        self.unwritten[self._key(definition)] = definition

    def remove(self, definition: Definition) -> None:
        self.unwritten[self._key(definition)] = None

    def remove_vhost(self, name: str) -> None:
        for key in {**self.kept, **self.unwritten}:
            if TABLES[key[0]].vhost_column is not None and key[1][0] == name:
                self.unwritten[key] = None

    @property
    def pending(self) -> bool:
        return bool(self.unwritten)

    async def flush(self) -> None:
        for key, definition in self.unwritten.items():
            if definition is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = definition
        self.unwritten.clear()

    async def close(self) -> None:
        await self.flush()

    @staticmethod
    def _key(definition: Definition) -> tuple:
        return type(definition), TABLES[type(definition)].key_of(definition)
