"""Export and import of definitions, also when a node starts."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from leveret.core.admin.commands import command, query
from leveret.core.definitions.document import DefinitionsError, document, parse
from leveret.core.definitions.effects import warnings
from leveret.core.definitions.for_rabbitmq import for_rabbitmq
from leveret.core.definitions.importing import Import, add_contents, rehearse, snapshot
from leveret.mgmt_ui.operations.context import policies_followed
from leveret.mgmt_ui.yielding import OwnRows

if TYPE_CHECKING:
    from leveret.core.definitions.document import Parsed
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.definitions import Definitions, Json

__all__ = ["export_definitions", "import_definitions", "log_import"]

logger = logging.getLogger(__name__)

Summary: TypeAlias = dict[str, Any]  # see _summary

MENTIONED_MAX: Final = 20  # places in a summary: more are not useful
MORE_KEPT: Final = (
    "more queues and exchanges stay as they are; `leveret definitions import --dry-run` lists them"
)
KEPT_MAX: Final = 1000  # queues and exchanges by name, some 200 bytes each, of one answer


async def export_definitions(node: AdminContext, vhost: str | None) -> dict[str, Json]:
    """Return the document of all definitions, or of one virtual host. AdministrationError."""
    of_vhost = None if vhost is None else node.administration.vhost(vhost)
    definitions = await _definitions(node)
    return await asyncio.to_thread(document, definitions, node.product, node.version, of_vhost)


async def _definitions(node: AdminContext) -> Definitions:
    """Return all definitions, gathered in a thread as there may be a hundred thousand queues."""
    definitions = snapshot(node.administration)
    await asyncio.to_thread(add_contents, definitions, dict(node.vhosts))
    return definitions


async def import_definitions(
    node: AdminContext,
    value: Json,
    vhost: str | None,
    *,
    dry_run: bool = False,
    strict: bool = False,
) -> Summary:
    """Import a document, all of it or nothing, and return a summary.

    Settings without effect here are imported with a warning; queues and exchanges that exist with
    other settings are kept, which is reported. A `strict` import is refused for either. A dry run
    changes nothing. Raises AdministrationError, DefinitionsError and StorageError.
    """
    if vhost is not None:
        node.administration.vhost(vhost)  # raises for one that is not there
    # These steps take seconds for a large document, so they run in threads.
    parsed = await asyncio.to_thread(parse, value, vhost)
    warned = await asyncio.to_thread(warnings, parsed)
    held = await _definitions(node)
    importing = await asyncio.to_thread(rehearse, parsed, held, node.limits)
    if strict:
        _refuse([*warned, *importing.kept])
    if not dry_run:
        importing = Import(parsed, node.administration, node.vhosts)
        for _ in importing.perform():
            await asyncio.sleep(0)
        await node.administration.store.flush()
        await policies_followed(node)
    return _summary(parsed, importing, warned)


def _refuse(told: list[str]) -> None:
    """Raise DefinitionsError if there are any sentences."""
    if told:
        more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        raise DefinitionsError("", f"{told[0]}{more}")


def _summary(parsed: Parsed, importing: Import, warned: list[str]) -> Summary:
    """Return counts by section, bindings left out, and ignored keys.

    `warnings` are sentences about settings without effect, `kept` about queues and exchanges that
    exist with other settings than the document's.
    """
    counts = {
        section: len(items) - importing.skipped[section] for section, items in parsed.items.items()
    }
    return {
        "imported": {section: count for section, count in counts.items() if count},
        "left_out": importing.left_out[:MENTIONED_MAX],
        "ignored": parsed.ignored[:MENTIONED_MAX],
        "warnings": warned,
        "kept": _first(importing.kept, KEPT_MAX),
    }


def _first(sentences: list[str], count: int) -> list[str]:
    """Return the first `count` sentences, and how many more there are."""
    more = len(sentences) - count
    return [*sentences[:count], f"and {more} more"] if more > 0 else sentences


def log_import(summary: Summary, source: str) -> None:
    """Log what was imported, and what of it has no effect."""
    counts = [_counted(count, section) for section, count in summary["imported"].items()]
    logger.info("imported %s from %s", ", ".join(counts) or "nothing", source)
    for warning in summary["warnings"]:
        logger.warning("%s: %s", source, warning)
    for sentence in summary["kept"][:MENTIONED_MAX]:
        logger.warning("%s: %s", source, sentence)
    if len(summary["kept"]) > MENTIONED_MAX:
        logger.warning("%s: %s", source, MORE_KEPT)
    for place in summary["left_out"]:
        logger.warning("%s: %s is skipped: one of its ends does not exist", source, place)
    for place in summary["ignored"]:
        logger.warning("%s: %s is unknown and ignored", source, place)


def _counted(count: int, section: str) -> str:
    """Return a count with its noun: `1 queue`, `2 topic permissions`."""
    name = section.replace("_", " ")
    singular = "policy" if name == "policies" else name.removesuffix("s")
    return f"{count} {singular if count == 1 else name}"


@query("definitions.export", is_audited=True)
async def definitions_export(node: AdminContext, *, vhost: str | None = None) -> dict[str, Json]:
    """Return the document of all definitions, or of one virtual host."""
    return _given_away(await export_definitions(node, vhost))


@query("rabbitmq_definitions.export", is_audited=True)
async def rabbitmq_definitions_export(
    node: AdminContext, *, vhost: str | None = None
) -> dict[str, Any]:
    """Return the document in RabbitMQ's form, and sentences about what it leaves out."""
    exported = await export_definitions(node, vhost)
    converted, left_out = await asyncio.to_thread(for_rabbitmq, exported)
    return {"document": _given_away(converted), "left_out": left_out}


def _given_away(exported: dict[str, Json]) -> dict[str, Json]:
    """Return a document, whose lists are dropped as it is sent."""
    return {
        name: OwnRows(held) if isinstance(held, list) else held for name, held in exported.items()
    }


@query("definitions.rehearse")
async def definitions_rehearse(
    node: AdminContext, *, document: Any = None, vhost: str | None = None, strict: Any = None
) -> Summary:
    """Return what an import would do; nothing is changed."""
    return await import_definitions(node, document, vhost, dry_run=True, strict=strict is True)


@command("definitions.import")
async def definitions_import(
    node: AdminContext, *, document: Any = None, vhost: str | None = None, strict: Any = None
) -> Summary:
    """Import a document; return a summary."""
    summary = await import_definitions(node, document, vhost, strict=strict is True)
    if node.runtime is not None:  # without a node there is no log
        log_import(summary, "a document of definitions")
    return summary
