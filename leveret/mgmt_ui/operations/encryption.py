"""Operations on the keys of encrypted virtual hosts; of keys only the ids pass through here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from leveret.core.admin.commands import command, query
from leveret.core.definitions.administration import AdministrationError
from leveret.storage.master_key import MasterKeyError

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.storage.key_administration import KeyAdministration

KEYS_OF_ONE_NODE = (
    "keys are on one node's disk: the other nodes of the cluster could not read what they encrypt"
)
Rows = list[dict[str, Any]]


def _keys(node: AdminContext) -> KeyAdministration:
    assert node.encryption is not None
    return node.encryption


@query("encryption.status")
async def encryption_status(node: AdminContext, *, vhost: str | None = None) -> Rows:
    """Return the keys, and how many segments use each."""
    keys = _keys(node)
    names = {held.name for held in node.administration.vhosts()} | set(keys.vhosts)
    if vhost is not None and vhost not in names:
        raise AdministrationError("not_found", f"no vhost '{vhost}'")
    return await keys.status([vhost] if vhost is not None else sorted(names))


@command("encryption.enable")
async def encryption_enable(node: AdminContext, *, vhost: str) -> bool:
    """Encrypt new messages; return False if that was so already."""
    name = node.administration.vhost(vhost).name
    if node.cluster is not None:
        raise AdministrationError("invalid", KEYS_OF_ONE_NODE)
    try:
        return await _keys(node).enable(name)
    except MasterKeyError as error:  # the operator's to mend, not the disk's
        raise AdministrationError("invalid", str(error)) from None


@command("encryption.disable")
async def encryption_disable(node: AdminContext, *, vhost: str) -> bool:
    """Stop encrypting new messages; return False if that was so already."""
    return await _keys(node).disable(_known(node, vhost))


@command("encryption.rotate")
async def encryption_rotate(node: AdminContext, *, vhost: str) -> str:
    """Encrypt new messages with a new key."""
    keys, vhost = _keys(node), _known(node, vhost)
    if not keys.is_encrypted(vhost):
        text = f"vhost '{vhost}' is not encrypted: `leveret encryption enable` begins that"
        raise AdministrationError("invalid", text)
    return await keys.rotate(vhost)


def _known(node: AdminContext, vhost: str) -> str:
    """Return a virtual host that exists, or has keys although it was deleted."""
    if vhost not in _keys(node).vhosts:
        node.administration.vhost(vhost)
    return vhost


@command("encryption.rotate_master")
async def encryption_rotate_master(node: AdminContext, *, new_key_file: str) -> str:
    """Replace the master key; return the new one's fingerprint."""
    return await _keys(node).rotate_master(Path(new_key_file))
