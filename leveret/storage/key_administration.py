"""Administration of encryption keys: enable, rotate, disable, status; on a node or on files.

Keys are created, kept and removed by the keyring, whose file is written in a worker thread. Only
then do the open logs use them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leveret.errors import StorageError
from leveret.storage.encryption import key_id_text
from leveret.storage.key_usage import KeyUsage, key_usage
from leveret.storage.keyring import KeyState
from leveret.storage.master_key import MasterKeyError, read_master_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from leveret.storage.files import FileSystem
    from leveret.storage.keyring import Keyring

__all__ = ["KeyAdministration"]


class KeyAdministration:
    """Administers keys, one change at a time. `changed(vhost)` is called on the loop after each.

    `now_ms` gives milliseconds since 1970.
    """

    def __init__(
        self,
        keyring: Keyring,
        files: FileSystem,
        data: Path,
        now_ms: Callable[[], int],
        changed: Callable[[str], None] = lambda vhost: None,  # noqa: ARG005  # no log is open
    ) -> None:
        self._keyring = keyring
        self._files = files
        self._data = data
        self._now_ms = now_ms
        self._changed = changed
        self._changing = asyncio.Lock()

    def is_encrypted(self, vhost: str) -> bool:
        """Whether new batches of a virtual host are encrypted."""
        return any(key.state is KeyState.ACTIVE for key in self._keyring.of_vhost(vhost))

    async def enable(self, vhost: str) -> bool:
        """Encrypt a virtual host's new batches; return False if it is encrypted already.

        Raises StorageError, of which MasterKeyError is one.
        """
        async with self._changing:
            if self.is_encrypted(vhost):
                return False
            await self._add(vhost)
            return True

    async def rotate(self, vhost: str) -> str:
        """Encrypt a virtual host's new batches with a new key; return the key's id.

        Raises StorageError.
        """
        async with self._changing:
            if not self.is_encrypted(vhost):
                raise StorageError(
                    f"vhost '{vhost}' is not encrypted: `leveret encryption enable` begins that"
                )
            key_id = await self._add(vhost)
            await self._remove_unneeded(vhost)
            return key_id

    async def disable(self, vhost: str) -> bool:
        """Stop encrypting new batches; return False if it is off. Raises StorageError."""
        async with self._changing:
            was_encrypted = self.is_encrypted(vhost)
            if was_encrypted:
                await asyncio.to_thread(self._keyring.retire, vhost)
                self._changed(vhost)
            await self._remove_unneeded(vhost)
            return was_encrypted

    async def rotate_master(self, new_key_file: Path) -> str:
        """Wrap all keys with the master key of another file; return its fingerprint.

        Raises StorageError.
        """
        async with self._changing:
            master = await asyncio.to_thread(read_master_key, new_key_file, "")
            if master is None or self._keyring.master is None:
                raise MasterKeyError("there is no master key to be replaced")
            await asyncio.to_thread(self._keyring.rewrap, master)
            return master.fingerprint

    async def remove_unneeded(self) -> None:
        """Remove the retired keys that no file needs any more. Raises StorageError."""
        async with self._changing:
            for vhost in self._keyring.vhosts:
                await self._remove_unneeded(vhost)

    async def status(self, vhosts: Sequence[str]) -> list[dict[str, object]]:
        """Return a row for each key of the virtual hosts, and one for what is not encrypted.

        Raises StorageError.
        """
        rows: list[dict[str, object]] = []
        for vhost in vhosts:
            usage = await asyncio.to_thread(key_usage, self._files, self._data, vhost)
            rows += self._rows(vhost, usage)
        return rows

    @property
    def vhosts(self) -> list[str]:
        """Virtual hosts that have keys."""
        return self._keyring.vhosts

    def _rows(self, vhost: str, usage: KeyUsage) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = [
            {
                "vhost": vhost,
                "key": key_id_text(key.id),
                "state": key.state.value,
                "created_ms": key.created_ms,
                "segments": usage.segments[key.id],
                "removable": key.state is KeyState.RETIRED and not usage.needs(key.id),
            }
            for key in self._keyring.of_vhost(vhost)
        ]
        known = {key.id for key in self._keyring.of_vhost(vhost)} | {0}
        rows += [
            _row(vhost, key_id_text(i), "missing", usage.segments[i])
            for i in sorted(usage.segments)
            if i not in known
        ]
        if usage.unknown:
            rows.append(_row(vhost, "", "damaged", usage.unknown))
        if usage.segments[0] or not rows:
            rows.append(_row(vhost, "", "plain", usage.segments[0]))
        return rows

    async def _add(self, vhost: str) -> str:
        key = await asyncio.to_thread(self._keyring.add, vhost, self._now_ms())
        self._changed(vhost)
        return key_id_text(key.id)

    async def _remove_unneeded(self, vhost: str) -> None:
        """Remove retired keys that no file needs; logs must use the newest key before this."""
        retired = [k for k in self._keyring.of_vhost(vhost) if k.state is KeyState.RETIRED]
        if not retired:
            return
        usage = await asyncio.to_thread(key_usage, self._files, self._data, vhost)
        unneeded = [key.id for key in retired if not usage.needs(key.id)]
        if unneeded:
            await asyncio.to_thread(self._keyring.remove, unneeded)


def _row(vhost: str, key: str, state: str, segments: int) -> dict[str, object]:
    """Return a status row for something else than a key of the keyring."""
    return {
        "vhost": vhost,
        "key": key,
        "state": state,
        "created_ms": None,
        "segments": segments,
        "removable": False,
    }
