"""Who asks, and what they may see: by basic authentication, or by the session of a browser.

The rules are RabbitMQ's: `administrator` may do all, `monitoring` sees all virtual hosts and all
connections, `management` and `policymaker` see the virtual hosts they may enter and their own
connections; a user without any of these tags has no business here.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Depends, Request

from leveret.core.access.authentication import (
    answered,
    authorise,
    authorise_topic,
    explain_refusal,
)
from leveret.errors import ChannelError
from leveret.mgmt_ui.api.problems import (
    ApiError,
    not_authorised,
    not_authorized,
    refused_operation,
    too_many_requests,
)
from leveret.mgmt_ui.managed import ManagedNode
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.mgmt_ui.origin import require_own_site
from leveret.mgmt_ui.sessions import COOKIE, CSRF_HEADER
from leveret.ports.audit import Actor, Way
from leveret.ports.authentication import TooManyGuessesError, UnansweredError, attempt_source
from leveret.ports.log_text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.core.clients import Client
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.sessions import Session
    from leveret.ports.authentication import Kind, Permission, Rights

__all__ = [
    "Caller",
    "CallerHere",
    "ClientHere",
    "NodeHere",
    "authenticated",
    "identified",
    "log_in",
    "managed_node",
    "of_session",
    "require_manager",
    "session_of",
]

logger = logging.getLogger(__name__)

ADMINISTRATORS = frozenset({"administrator"})
MONITORS = frozenset({"administrator", "monitoring"})
MANAGERS = frozenset({"administrator", "monitoring", "policymaker", "management"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated user."""

    node: ManagedNode
    name: str
    tags: tuple[str, ...]
    rights: Rights
    peer: str = ""  # the address that the request comes from
    way: Way = Way.HTTP

    @property
    def is_administrator(self) -> bool:
        """May see and change everything."""
        return not ADMINISTRATORS.isdisjoint(self.tags)

    @property
    def is_monitor(self) -> bool:
        """May see what is others'."""
        return not MONITORS.isdisjoint(self.tags)

    @property
    def is_policymaker(self) -> bool:
        """May set policies, and what is like them."""
        return self.is_administrator or "policymaker" in self.tags

    def enters(self, vhost: str) -> bool:
        """Whether the user may connect to a virtual host, as far as is known."""
        try:
            return self.rights.may_enter(vhost)
        except UnansweredError:
            return False

    def visible_vhosts(self) -> list[Vhost]:
        """Those whose existence and totals the caller may know."""
        return [
            v for v in self.node.broker.vhosts.values() if self.is_monitor or self.enters(v.name)
        ]

    def open_vhosts(self) -> list[Vhost]:
        """Those whose contents the caller may list: being a monitor is not enough."""
        return [
            vhost
            for vhost in self.node.broker.vhosts.values()
            if self.is_administrator or self.enters(vhost.name)
        ]

    def visible_clients(self) -> list[Client]:
        """All connections for a monitor, else the caller's own."""
        clients: set[Client] = self.node.broker.connections
        return [client for client in clients if self.is_monitor or client.user == self.name]

    def may_close(self, client: Client) -> bool:
        """Whether a connection is the caller's to end: a monitor sees others', and no more."""
        return self.is_administrator or client.user == self.name

    def require_to_close(self, client: Client) -> None:
        """Raise ApiError 401 unless a connection is the caller's to end."""
        if not self.may_close(client):
            raise self._refused("User not authorised to access object")

    def require_administrator(self) -> None:
        """Raise ApiError 401 unless the caller is one."""
        if not self.is_administrator:
            raise self._refused("Not administrator user")

    def require_monitor(self) -> None:
        """Raise ApiError 401 unless the caller may see what is others'."""
        if not self.is_monitor:
            raise self._refused("Not monitor user")

    def require_policymaker(self, vhost: str | None = None) -> None:
        """Raise ApiError 401 unless the caller may make policies, there or at all."""
        if self.is_administrator:
            return
        if "policymaker" not in self.tags or not (vhost is None or self.enters(vhost)):
            raise self._refused("User not authorised to access object")

    def visible_vhost(self, name: str) -> Vhost:
        """A virtual host whose existence and totals the caller may know. Raises ApiError."""
        vhost = self.node.broker.vhosts.get(name)
        if vhost is None:
            raise ApiError(404, "not_found", "vhost_not_found")
        if not (self.is_monitor or self.enters(name)):
            raise self._refused("User not authorised to access virtual host")
        return vhost

    def vhost(self, name: str) -> Vhost:
        """A virtual host to list. Raises ApiError 401, or 404 where there is none."""
        vhost = self.node.broker.vhosts.get(name)
        if vhost is None:
            raise ApiError(404, "not_found", "vhost_not_found")
        if not (self.is_administrator or self.enters(name)):
            raise self._refused("User not authorised to access virtual host")
        return vhost

    def require_shared(self, vhost: str, queue: str) -> None:
        """Raise ApiError 401 where a queue belongs to one connection, but for administrators."""
        found = self.vhost(vhost).queues.get(queue)
        if found is not None and found.owner is not None:
            self.require_administrator()

    async def require(
        self,
        vhost: str,
        kind: Kind,
        name: str,
        permission: Permission,
    ) -> None:
        """Raise ApiError 401 unless the caller has a permission, as a client would need it."""
        await self._ask(lambda: authorise(self.rights, vhost, kind, name, permission))

    async def may(self, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:
        """Whether the caller has a permission, where nothing is refused that he has not."""
        return await answered(lambda: self.rights.allows(vhost, kind, name, permission))

    async def require_topic(
        self, vhost: str, exchange: str, key: str, permission: Literal["write", "read"]
    ) -> None:
        """Raise ApiError 401 where a topic exchange closes a routing key to the caller."""
        found = self.vhost(vhost).exchanges.get(exchange)
        if found is not None and found.definition.type == "topic":
            await self._ask(lambda: authorise_topic(self.rights, vhost, exchange, key, permission))

    async def _ask(self, check: Callable[[], None]) -> None:
        """Raise ApiError 401 where a check of rights refuses."""
        try:
            await answered(check)
        except ChannelError as error:
            raise self._refused(error.explanation) from None

    async def perform(self, operation: str, /, **parameters: object) -> Any:
        """The result of an administrative operation, in the caller's name. Raises ApiError.

        Whether the caller may is the route's to ask.
        """
        request = {"operation": operation, "parameters": parameters}
        answer = await perform(self.node.context, request, self.actor)
        if not answer["ok"]:
            raise refused_operation(str(answer["error"]), str(answer["explanation"]))
        return answer["result"]

    @property
    def actor(self) -> Actor:
        """The caller as events and the audit log name him."""
        return Actor(self.name, self.peer, self.way)

    def _refused(self, reason: str) -> ApiError:
        logger.warning("HTTP access denied: user %s - %s", quoted(self.name), reason)
        return not_authorised(reason)


async def managed_node(request: Request) -> ManagedNode:
    """The node that this application manages; no plain function, which would run in a thread."""
    node: ManagedNode = request.app.state.node
    return node


def require_manager(caller: Caller) -> None:
    """Raise ApiError 401 unless the caller has a management tag."""
    if MANAGERS.isdisjoint(caller.tags):
        raise caller._refused("Not management user")  # noqa: SLF001  # same module


async def identified(request: Request) -> Caller:
    """The caller of a request, whatever his tags: an application, say. Raises ApiError 401.

    Credentials go before the session of a browser. What changes something must not come from a
    page of another site, and with a session it must bring its token in a header (ApiError 403):
    cookies, and passwords that a browser knows, come along whoever made it ask.
    """
    changes = request.method not in SAFE_METHODS
    if changes:
        require_own_site(request)
    header = request.headers.get("authorization", "")
    session = None if header else session_of(request)
    if session is None:
        return await log_in(request, *_credentials(header))
    token = request.headers.get(CSRF_HEADER, "")
    if changes and not session.has_csrf_token(token):
        raise ApiError(403, "forbidden", f"a session's requests need its {CSRF_HEADER} header")
    return await of_session(request, session)


async def log_in(request: Request, user: str, password: str) -> Caller:
    """Who proves a name by a password. Raises ApiError 401, after a while, and 429."""
    node = await managed_node(request)
    try:
        rights = await node.broker.authenticate(user, password, _peer_host(request))
    except TooManyGuessesError as error:
        raise too_many_requests(error.wait_ms) from None
    if rights is None:
        logger.warning(
            "HTTP access denied: user %s from %s - %s",
            quoted(user),
            _peer_host(request),
            explain_refusal(node.broker.access, node.configuration.auth_backends, user),
            extra={"source": attempt_source(_peer_host(request))},
        )
        # Slow guessing down, as the AMQP handshake does.
        await asyncio.sleep(node.configuration.login_delay_seconds)
        raise not_authorized()
    return await _admitted(node, rights, _peer_host(request), Way.HTTP)


async def of_session(request: Request, session: Session, way: Way = Way.HTTP) -> Caller:
    """Who has opened a session, with what he may do now. Raises ApiError 401."""
    return await _admitted(await managed_node(request), session.rights, _peer_host(request), way)


def session_of(request: Request) -> Session | None:
    """The session that a request's cookie names, while it is good."""
    session: Session | None = request.app.state.sessions.find(request.cookies.get(COOKIE, ""))
    return session


async def authenticated(caller: Annotated[Caller, Depends(identified)]) -> Caller:
    """The caller of a request, who has a management tag. Raises ApiError 401."""
    require_manager(caller)
    return caller


def _peer_host(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _admitted(node: ManagedNode, rights: Rights, peer: str, way: Way) -> Caller:
    await _learn_vhosts(rights, node.broker.vhosts)
    caller = Caller(node, rights.user, rights.tags, rights, peer, way)
    loopback_users = node.configuration.loopback_users
    if not node.broker.access.may_connect_from(rights.user, peer, loopback_users):
        raise caller._refused("User can only log in via localhost")  # noqa: SLF001  # same module
    return caller


async def _learn_vhosts(rights: Rights, names: Iterable[str]) -> None:
    """Ask which virtual hosts may be entered, where that must be asked; lists show these."""
    for name in list(names):
        await answered(partial(rights.may_enter, name))


def _credentials(header: str) -> tuple[str, str]:
    """User and password of a basic authorization. Raises ApiError 401 where there is none."""
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise not_authorized() from None
    user, colon, password = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise not_authorized()
    return user, password


CallerHere = Annotated[Caller, Depends(authenticated)]
ClientHere = Annotated[Caller, Depends(identified)]
NodeHere = Annotated[ManagedNode, Depends(managed_node)]
