"""Operations on staged batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from leveret.core.admin.commands import command, query
from leveret.core.admin.node import AdminNode, not_running
from leveret.core.admin.rights import IN_VHOST
from leveret.core.definitions.administration import AdministrationError
from leveret.features.staged_batches.records import WriterId
from leveret.features.staged_batches.rules import BatchRefusedError

if TYPE_CHECKING:
    from leveret.features.staged_batches.batches import BatchesOfNode
    from leveret.features.staged_batches.staged import StagedBatches


class BatchNode(AdminNode, Protocol):
    """Parts of a node that commands on staged batches use."""

    @property
    def batches(self) -> BatchesOfNode | None:
        """Staged batches of a running node, else None."""
        ...


@query("batch.list", IN_VHOST)
async def batch_list(node: BatchNode, *, vhost: str) -> list[dict[str, Any]]:
    """Return the writers of batches, by name."""
    batches = _batches(node, vhost)
    rows = [] if batches is None else [writer.row() for writer in batches.book]
    return sorted(rows, key=lambda row: (row["writer"], row["user"]))


@command("batch.delete")
async def batch_delete(
    node: BatchNode, *, vhost: str, writer: str, user: str | None = None
) -> None:
    """Forget a writer and its parts, of one user or of all: its numbers may come again."""
    batches = _batches(node, vhost)
    known = [] if batches is None else [each.id for each in batches.book]
    found = [each for each in known if each.name == writer and user in {None, each.user}]
    if batches is None or not found:
        raise AdministrationError("not_found", f"no writer '{writer}' in vhost '{vhost}'")
    for each in found:
        await _forget(batches, each)


async def _forget(batches: StagedBatches, writer: WriterId) -> None:
    try:
        await batches.forget(writer)
    except BatchRefusedError as error:
        raise AdministrationError("invalid", str(error)) from None


def _batches(node: BatchNode, vhost: str) -> StagedBatches | None:
    """Return a virtual host's batches; None if there never were any."""
    node.administration.vhost(vhost)
    if node.batches is None:
        raise not_running()
    return node.batches.find(vhost)
