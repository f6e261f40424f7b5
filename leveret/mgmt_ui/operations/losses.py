"""Operations on the ledger of losses."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from leveret.core.definitions.administration import AdministrationError

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters
    from leveret.storage.losses import LossLedger

__all__ = ["LOSSES"]


def _ledger(node: AdminContext) -> LossLedger:
    if node.losses is None:
        raise AdministrationError("not_running", "the loss list is not available here")
    return node.losses


async def _list(node: AdminContext, _: Parameters) -> list[dict[str, Any]]:
    """Return the unacknowledged losses, oldest first."""
    return [asdict(loss) for loss in _ledger(node).unacknowledged]


async def _acknowledge(node: AdminContext, parameters: Parameters) -> int:
    """Acknowledge losses by number; without any, all. Returns the number of them."""
    ledger, asked = _ledger(node), parameters["numbers"]
    if not all(number.isascii() and number.isdigit() for number in asked):
        raise AdministrationError("invalid", "a loss has a number, as `leveret loss list` shows it")
    numbers = {int(number) for number in asked}
    unknown = numbers - {loss.number for loss in ledger.unacknowledged}
    if unknown:
        raise AdministrationError("not_found", f"there is no loss {min(unknown)}")
    return ledger.acknowledge(numbers or None)


LOSSES: Final[Operations] = {
    "loss.list": (_list, {}),
    "loss.acknowledge": (_acknowledge, {"numbers": list}),
}
