"""Rights that commands need of users who come by HTTP; the command line may do everything.

They are RabbitMQ's: a tag, that the user may enter the virtual host, and permissions for resources.
Each command states its right, and `Caller.perform` asks for it. What depends on more than the
parameters, such as the exchange of a message that waits, the routes ask for as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from leveret.ports.authentication import Kind, Permission

__all__ = ["ADMINISTRATOR", "IN_VHOST", "MANAGEMENT", "POLICYMAKER", "READ_QUEUE", "Right", "may"]


@dataclass(frozen=True)
class Right:
    """A tag that the user must have, or be an administrator; and more in the command's `vhost`.

    Each permission is for the resource that a parameter names, if it names one.
    """

    tag: Literal["administrator", "policymaker", "management"]
    in_vhost: bool = False
    permissions: tuple[tuple[Permission, Kind, str], ...] = ()


ADMINISTRATOR: Final = Right("administrator")
MANAGEMENT: Final = Right("management")  # any tag: who has none is let in nowhere
POLICYMAKER: Final = Right("policymaker", in_vhost=True)
IN_VHOST: Final = Right("management", in_vhost=True)


def may(permission: Permission, **parameters: str) -> Right:
    """Return the right to something with a permission for the `queue` or `exchange` named there."""
    kinds: tuple[Kind, ...] = ("queue", "exchange")
    wanted = tuple((permission, kind, parameters[kind]) for kind in kinds if kind in parameters)
    return Right("management", in_vhost=True, permissions=wanted)


READ_QUEUE: Final = may("read", queue="queue")
