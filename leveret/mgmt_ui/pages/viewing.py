"""The signed-in user of a page; others are shown the sign-in page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from leveret.mgmt_ui.api.callers import Caller, of_session, require_manager, session_of
from leveret.mgmt_ui.api.problems import not_authorized
from leveret.mgmt_ui.sessions import WebSession
from leveret.ports.audit import Way
from leveret.ports.authentication import UnansweredError

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.mgmt_ui.managed import ManagedNode
    from leveret.ports.authentication import Kind, Permission

__all__ = ["AdministratorHere", "Viewer", "ViewerHere"]


@dataclass(frozen=True, slots=True)
class Viewer:
    """Signed-in user and session."""

    caller: Caller
    session: WebSession

    @property
    def node(self) -> ManagedNode:
        """The node that this web UI belongs to."""
        return self.caller.node

    @property
    def broker(self) -> Broker:
        """The node's broker."""
        return self.caller.node.broker

    @property
    def now_ms(self) -> int:
        """Current time, in milliseconds since 1970."""
        return self.broker.timers.wall_ms()

    def may(self, permission: Permission, kind: Kind, vhost: str, name: str) -> bool:
        """Whether the user has a permission; actions without permission are not offered."""
        try:
            return self.caller.enters(vhost) and self.caller.rights.allows(
                vhost, kind, name, permission
            )
        except UnansweredError:
            return True  # an external source decides when it is tried


async def _viewer(request: Request) -> Viewer:
    """Return the signed-in user. Raises ApiError 401 without session or management tag."""
    session = session_of(request)
    if session is None:
        raise not_authorized()
    caller = await of_session(request, session, Way.PAGES)
    require_manager(caller)
    return Viewer(caller, session)


ViewerHere = Annotated[Viewer, Depends(_viewer)]


async def _administrator(viewer: ViewerHere) -> Viewer:
    """Return the signed-in user, who must be an administrator. Raises ApiError 401."""
    viewer.caller.require_administrator()
    return viewer


AdministratorHere = Annotated[Viewer, Depends(_administrator)]
