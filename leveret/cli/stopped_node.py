"""Administrative requests performed on the files of a stopped node.

Imported only where no node runs: it brings most of the broker.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import typer

from leveret.core.definitions.model import Model, NullStore
from leveret.errors import StorageError
from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations.access import create_defaults
from leveret.mgmt_ui.operations.audit import Audit
from leveret.mgmt_ui.operations.context import AdminContext
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.ports.definitions import Definitions
from leveret.storage.audit import SqliteAuditStore
from leveret.storage.cluster_file import refuse_member
from leveret.storage.files import RealFileSystem
from leveret.storage.key_administration import KeyAdministration
from leveret.storage.keyring import Keyring
from leveret.storage.lineage import has_shared_definitions, open_definitions
from leveret.storage.losses import LossLedger
from leveret.storage.master_key import read_master_key
from leveret.storage.usage import SqliteUsageStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["perform_on_files"]


async def perform_on_files(
    data_dir: Path, operation: str, parameters: dict[str, object], key_file: Path | None
) -> dict[str, Any]:
    """Return the answer to a request. The caller holds the directory's lock. Raises StorageError.

    The master key is read from `key_file`, or the environment, for operations on keys.
    """
    is_of_losses = operation.startswith("loss.")
    if not is_of_losses:
        refuse_member(data_dir, "start it, and run the command where the node is that leads")
        if has_shared_definitions(data_dir):
            raise StorageError(
                f"{data_dir} was in a cluster, and has not made its definitions its own: start the "
                "node, and run the command then"
            )
    losses = LossLedger(RealFileSystem(), data_dir, _wall_ms, _complain)
    audited = SqliteAuditStore(data_dir / "audit.db", losses)
    # What was lost can be looked at even where the definitions are lost.
    context = _of_losses if is_of_losses else _of_definitions
    of_keys = operation.startswith("encryption.")
    encryption = _keys(data_dir, key_file) if of_keys else None
    request = {"operation": operation, "parameters": parameters}
    try:
        async with context(data_dir, Audit(audited, _wall_ms), losses, encryption) as node:
            return await perform(node, request, COMMAND_LINE)
    finally:
        await audited.close()


@asynccontextmanager
async def _of_losses(
    _data_dir: Path, audit: Audit, losses: LossLedger, _encryption: KeyAdministration | None
) -> AsyncIterator[AdminContext]:
    """Yield a node without definitions."""
    nothing = Model(Definitions(), NullStore(), str).administration
    yield AdminContext(nothing, {}, audit=audit, losses=losses)


@asynccontextmanager
async def _of_definitions(
    data_dir: Path, audit: Audit, losses: LossLedger, encryption: KeyAdministration | None
) -> AsyncIterator[AdminContext]:
    """Yield a node with the definitions and the usage of the directory, until they are closed."""
    async with asyncio.TaskGroup() as group:
        store = await open_definitions(data_dir, group.create_task, losses)
        usage = SqliteUsageStore(data_dir / "usage.db", losses)
        try:
            is_first_start = await store.is_new()
            model = Model(await store.load(), store, lambda: secrets.token_urlsafe(16))
            if is_first_start:
                await create_defaults(model.administration)
            yield AdminContext(
                model.administration,
                model.vhosts,
                usage=usage,
                encryption=encryption,
                audit=audit,
                losses=losses,
            )
        finally:
            await usage.close()
            await store.close()


def _keys(data_dir: Path, key_file: Path | None) -> KeyAdministration:
    """Return the keys of a stopped node. Raises StorageError."""
    files = RealFileSystem()
    master = read_master_key(key_file, os.environ.get("LEVERET_ENCRYPTION_KEY", ""))
    return KeyAdministration(Keyring(files, data_dir, master), files, data_dir, _wall_ms)


def _complain(text: str) -> None:
    typer.echo(f"leveret: {text}", err=True)


def _wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000
