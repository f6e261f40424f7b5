"""Who looks at a page: a user with a session. Everybody else is shown the sign-in page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from leveret.mgmt_ui.api.callers import Caller, of_session, require_manager, session_of
from leveret.mgmt_ui.api.problems import not_authorized
from leveret.mgmt_ui.sessions import Session
from leveret.ports.audit import Way
from leveret.ports.authentication import UnansweredError

if TYPE_CHECKING:
    from leveret.core.broker import Broker
    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.ports.authentication import Kind, Permission

__all__ = ["Viewer", "ViewerHere"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user who looks, and his browser's session."""

    caller: Caller
    session: Session

    @property
    def node(self) -> ManagedNode:
        """The node that is looked at."""
        return self.caller.node

    @property
    def broker(self) -> Broker:
        """Its broker."""
        return self.caller.node.broker

    @property
    def now_ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return self.broker.timers.wall_ms()

    def may(self, permission: Permission, kind: Kind, vhost: str, name: str) -> bool:
        """Whether the user could do so with AMQP as well: what he may not is not offered."""
        try:
            return self.caller.enters(vhost) and self.caller.rights.allows(
                vhost, kind, name, permission
            )
        except UnansweredError:
            return True  # somebody else knows; it is asked when it is tried


async def _viewer(request: Request) -> Viewer:
    """Raises ApiError 401 for nobody, and for users without a management tag."""
    session = session_of(request)
    if session is None:
        raise not_authorized()
    caller = await of_session(request, session, Way.PAGES)
    require_manager(caller)
    return Viewer(caller, session)


ViewerHere = Annotated[Viewer, Depends(_viewer)]
