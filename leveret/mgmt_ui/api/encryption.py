"""/api/leveret/encryption: encryption at rest of virtual hosts, and their keys.

    GET    …                        keys, and unencrypted segments, of all virtual hosts
    GET    …/VHOST                  of one: [{"vhost", "key", "state", "created_ms", "segments",
                                    "removable"}]
    POST   …/VHOST/enable           encrypt new data; …/disable
    POST   …/VHOST/rotate           encrypt new data with a new key → {"key": "ID"}

For administrators. No key passes through here, only its id; the master key is a file on the node's
machine, so `leveret encryption rotate-master` replaces it there.
"""

from __future__ import annotations

from fastapi import Response

from leveret.core.admin.commands import AnyCommand
from leveret.mgmt_ui.api.callers import AdministratorHere
from leveret.mgmt_ui.api.listing import READ, ObjectKind, QueryHere, Segment, answer, done, listed
from leveret.mgmt_ui.api.own import own_router
from leveret.mgmt_ui.api.problems import not_found
from leveret.mgmt_ui.api.views import Row
from leveret.mgmt_ui.operations.encryption import (
    encryption_disable,
    encryption_enable,
    encryption_rotate,
    encryption_status,
)

__all__ = ["VERBS", "router"]

VERBS: dict[str, AnyCommand] = {
    "enable": encryption_enable,
    "disable": encryption_disable,
    "rotate": encryption_rotate,
}
KEYS: ObjectKind[Row] = ObjectKind(
    lambda row: (row["vhost"], row["key"]), lambda row: row, ("vhost", "key")
)

router = own_router("/encryption", tags=["encryption"])


@router.api_route("", methods=READ)
async def list_keys(caller: AdministratorHere, query: QueryHere) -> Response:
    """The keys of all virtual hosts, and the number of segments that need each."""
    return await listed(await caller.perform(encryption_status, vhost=None), KEYS, query)


@router.api_route("/{vhost}", methods=READ)
async def list_keys_of_vhost(
    caller: AdministratorHere, query: QueryHere, vhost: Segment
) -> Response:
    """The keys of one virtual host, which may be deleted already."""
    return await listed(await caller.perform(encryption_status, vhost=vhost), KEYS, query)


@router.post("/{vhost}/{verb}")
async def change(caller: AdministratorHere, vhost: Segment, verb: Segment) -> Response:
    """Enable or disable encryption of new data, or rotate the key."""
    if verb not in VERBS:
        raise not_found()
    result = await caller.perform(VERBS[verb], vhost=vhost)
    return answer({"key": result}) if verb == "rotate" else done()
