"""Rights of users whom only another node of the cluster knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.core.access.all_rights import AllRights
from leveret.ports.authentication import SecretRefusedError

if TYPE_CHECKING:
    from leveret.ports.authentication import Rights

__all__ = ["VouchedRights"]


class VouchedRights(AllRights):
    """Rights of a user whom only the node that was asked knows: it has checked them."""

    async def renewed(self, _secret: str) -> Rights:
        """Raise SecretRefusedError: the source of the user is not known here."""
        raise SecretRefusedError("the user is another node's")
