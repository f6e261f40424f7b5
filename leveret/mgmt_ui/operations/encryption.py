"""Operations on the keys of encrypted virtual hosts; of keys only the ids pass through here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from leveret.core.definitions.administration import AdministrationError
from leveret.storage.master_key import MasterKeyError

if TYPE_CHECKING:
    from leveret.mgmt_ui.operations.context import AdminContext, Operations, Parameters
    from leveret.storage.key_administration import KeyAdministration

__all__ = ["ENCRYPTION"]

Rows = list[dict[str, object]]


def _keys(node: AdminContext) -> KeyAdministration:
    assert node.encryption is not None
    return node.encryption


async def _status(node: AdminContext, parameters: Parameters) -> Rows:
    keys, only = _keys(node), parameters["vhost"]
    names = {vhost.name for vhost in node.administration.vhosts()} | set(keys.vhosts)
    if only is not None and only not in names:
        raise AdministrationError("not_found", f"no vhost '{only}'")
    return await keys.status([only] if only is not None else sorted(names))


async def _enable(node: AdminContext, parameters: Parameters) -> bool:
    vhost = node.administration.vhost(parameters["vhost"]).name
    try:
        return await _keys(node).enable(vhost)
    except MasterKeyError as error:  # the operator's to mend, not the disk's
        raise AdministrationError("invalid", str(error)) from None


async def _disable(node: AdminContext, parameters: Parameters) -> bool:
    return await _keys(node).disable(_known(node, parameters["vhost"]))


async def _rotate(node: AdminContext, parameters: Parameters) -> str:
    keys, vhost = _keys(node), _known(node, parameters["vhost"])
    if not keys.is_encrypted(vhost):
        text = f"vhost '{vhost}' is not encrypted: `leveret encryption enable` begins that"
        raise AdministrationError("invalid", text)
    return await keys.rotate(vhost)


def _known(node: AdminContext, vhost: str) -> str:
    """Return a virtual host that exists, or has keys although it was deleted."""
    if vhost not in _keys(node).vhosts:
        node.administration.vhost(vhost)
    return vhost


async def _rotate_master(node: AdminContext, parameters: Parameters) -> str:
    return await _keys(node).rotate_master(Path(parameters["new_key_file"]))


ENCRYPTION: Final[Operations] = {
    "encryption.status": (_status, {"vhost": None}),
    "encryption.enable": (_enable, {"vhost": str}),
    "encryption.disable": (_disable, {"vhost": str}),
    "encryption.rotate": (_rotate, {"vhost": str}),
    "encryption.rotate_master": (_rotate_master, {"new_key_file": str}),
}
