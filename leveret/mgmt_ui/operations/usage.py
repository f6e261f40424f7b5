"""Operation of `leveret usage`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters

__all__ = ["USAGE"]

ROWS_MAX = 100_000  # in one answer; more need requests for fewer hours


async def _list(node: AdminContext, parameters: Parameters) -> list[dict[str, object]]:
    """Return the usage of the hours that begin in [since, until), in seconds since 1970."""
    assert node.usage is not None, "both a node and its files have records"
    rows = [
        {"hour": hour, **account._asdict(), **usage._asdict()}
        for hour, account, usage in await node.usage.read(parameters["since"], parameters["until"])
        if all(
            parameters[key] in {None, getattr(account, key)} for key in ("subject", "vhost", "name")
        )
    ]
    if len(rows) > ROWS_MAX:
        raise AdministrationError("invalid", f"more than {ROWS_MAX} records: ask for fewer hours")
    return rows


USAGE: Final[Operations] = {
    "usage.list": (
        _list,
        {"since": int, "until": int, "subject": None, "vhost": None, "name": None},
    ),
}
