"""Definitions in and out: the operations, and the import of a node that starts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from leveret.core.definitions.document import document, parse
from leveret.core.definitions.importing import Import, add_contents, rehearse, snapshot
from leveret.mgmt_ui.operations.administered import policies_followed

if TYPE_CHECKING:
    from leveret.core.definitions.document import Parsed
    from leveret.mgmt_ui.operations.administered import Administered, Operations, Parameters
    from leveret.ports.definitions import Definitions, Json

__all__ = ["TRANSFER", "export_definitions", "import_definitions"]

MENTIONED_MAX: Final = 20  # places in a summary: whoever sees as many looks at the document


async def export_definitions(node: Administered, vhost: str | None) -> dict[str, Json]:
    """The document of everything, or of one virtual host. Raises AdministrationError."""
    of_vhost = None if vhost is None else node.administration.vhost(vhost)
    definitions = await _definitions(node)
    return await asyncio.to_thread(document, definitions, node.product, node.version, of_vhost)


async def _definitions(node: Administered) -> Definitions:
    """All there are. Of a hundred thousand queues they are gathered beside the loop."""
    definitions = snapshot(node.administration)
    await asyncio.to_thread(add_contents, definitions, dict(node.vhosts))
    return definitions


async def import_definitions(
    node: Administered, value: Json, vhost: str | None
) -> dict[str, object]:
    """Import a document, all of it or nothing, and say what became of it.

    Raises AdministrationError, DefinitionsError and StorageError.
    """
    if vhost is not None:
        node.administration.vhost(vhost)  # raises for one that is not there
    # What takes seconds for a large document does so beside the loop.
    parsed = await asyncio.to_thread(parse, value, vhost)
    held = await _definitions(node)
    await asyncio.to_thread(rehearse, parsed, held, node.limits)
    importing = Import(parsed, node.administration, node.vhosts)
    for _ in importing.perform():
        await asyncio.sleep(0)
    await node.administration.store.flush()
    await policies_followed(node)
    return _summary(parsed, importing.left_out)


def _summary(parsed: Parsed, left_out: list[str]) -> dict[str, object]:
    """How many of each section there were; bindings left out, and keys that mean nothing here."""
    return {
        "imported": {section: len(items) for section, items in parsed.items.items() if items},
        "left_out": left_out[:MENTIONED_MAX],
        "ignored": parsed.ignored[:MENTIONED_MAX],
    }


async def _export(node: Administered, parameters: Parameters) -> dict[str, Json]:
    return await export_definitions(node, parameters["vhost"])


async def _import(node: Administered, parameters: Parameters) -> dict[str, object]:
    return await import_definitions(node, parameters["document"], parameters["vhost"])


TRANSFER: Final[Operations] = {
    "definitions.export": (_export, {"vhost": None}),
    "definitions.import": (_import, {"document": object, "vhost": None}),
}
