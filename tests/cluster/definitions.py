"""The log of definitions in tests, in a store of its own."""

from __future__ import annotations

from contextlib import asynccontextmanager

from leveret.cluster.definition_log import DefinitionLog, open_definition_log, share_definitions
from tests.storage.harness import store_at


@asynccontextmanager
async def definition_log(path, **limits):
    """Open the log below a path."""
    async with store_at(path, **limits) as store:
        yield DefinitionLog(await open_definition_log(store), lambda: 1_700_000_000_000)


@asynccontextmanager
async def definitions_shared(path, metadata):
    """Have a database's changes go through the log below a path."""
    async with definition_log(path) as log:
        await share_definitions(metadata, log)
        try:
            yield log
            await metadata.flush()
        finally:
            metadata.write_ahead = None
