"""Commands on what a node has noted: usage, administrators' changes, losses."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from leveret.core.admin.commands import command, query
from leveret.core.admin.rights import MANAGEMENT
from leveret.core.definitions.administration import AdministrationError
from leveret.ports.audit import AuditQuery

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.ports.audit import AuditRecord
    from leveret.storage.losses import LossLedger

USAGE_ROWS_MAX: Final = 100_000  # in one answer; more need requests for fewer hours
AUDIT_ROWS_MAX: Final = 1000  # of one answer
NUMBER_MAX: Final = 2**63 - 1  # SQLite's


@query("usage.list", MANAGEMENT)
async def usage_list(
    node: AdminContext,
    *,
    since: int,
    until: int,
    subject: str | None = None,
    vhost: str | None = None,
    name: str | None = None,
) -> list[dict[str, Any]]:
    """Return the usage of the hours that begin in [since, until), in seconds since 1970."""
    assert node.usage is not None, "both a node and its files have records"
    rows = [
        {"hour": hour, **account._asdict(), **usage._asdict()}
        for hour, account, usage in await node.usage.read(since, until)
        if subject in {None, account.subject}
        and vhost in {None, account.vhost}
        and name in {None, account.name}
    ]
    if len(rows) > USAGE_ROWS_MAX:
        raise AdministrationError(
            "invalid", f"more than {USAGE_ROWS_MAX} records: ask for fewer hours"
        )
    return rows


@query("audit.list")
async def audit_list(
    node: AdminContext,
    *,
    limit: int,
    before: Any = None,
    since: Any = None,
    until: Any = None,
    user: str | None = None,
    operation: str | None = None,
) -> dict[str, Any]:
    """Return the latest records first; `before` of the answer asks for the next ones."""
    if node.audit is None:
        return {"rows": [], "before": None}
    limit = min(max(limit, 1), AUDIT_ROWS_MAX)
    wanted = AuditQuery(
        _integer("since", since),
        _integer("until", until),
        user,
        operation,
        _integer("before", before),
    )
    records = await node.audit.store.read(wanted, limit + 1)
    more, records = len(records) > limit, records[:limit]
    return {
        "rows": [_row(record) for record in records],
        "before": records[-1].number if more else None,
    }


def _integer(name: str, value: object) -> int | None:
    if value is None or (type(value) is int and abs(value) <= NUMBER_MAX):
        return value
    raise AdministrationError("invalid", f"{name} is a whole number")


def _row(record: AuditRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "at": record.at_ms,
        "user": record.actor.user,
        "peer": record.actor.peer,
        "way": record.actor.way.value,
        "operation": record.operation,
        "parameters": dict(record.parameters),
        "error": record.error,
        "explanation": record.explanation,
    }


def _ledger(node: AdminContext) -> LossLedger:
    if node.losses is None:
        raise AdministrationError("not_running", "the loss list is not available here")
    return node.losses


@query("loss.list")
async def loss_list(node: AdminContext) -> list[dict[str, Any]]:
    """Return the unacknowledged losses, oldest first."""
    return [asdict(loss) for loss in _ledger(node).unacknowledged]


@command("loss.acknowledge")
async def loss_acknowledge(node: AdminContext, *, numbers: list[str]) -> int:
    """Acknowledge losses by number; without any, all. Returns the number of them."""
    ledger = _ledger(node)
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise AdministrationError("invalid", "a loss has a number, as `leveret loss list` shows it")
    meant = {int(number) for number in numbers}
    unknown = meant - {loss.number for loss in ledger.unacknowledged}
    if unknown:
        raise AdministrationError("not_found", f"there is no loss {min(unknown)}")
    return ledger.acknowledge(meant or None)
