"""Authentication and authorization of requests: basic authentication or a browser's session.

The rules are RabbitMQ's: `administrator` may do all, `monitoring` sees all virtual hosts and all
connections, `management` and `policymaker` see the virtual hosts they may enter and their own
connections; a user without any of these tags has no access.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypeVar, cast

from fastapi import Depends, Request

from leveret.core.access.authentication import answered, explain_refusal
from leveret.core.access.permissions import authorise, authorise_topic
from leveret.core.definitions.administration import AdministrationError
from leveret.core.settings.arguments import ALTERNATE_EXCHANGE, DEAD_LETTER_EXCHANGE
from leveret.errors import ChannelError
from leveret.mgmt_ui.api.problems import (
    ApiError,
    not_authorised,
    not_authorized,
    refused_operation,
    too_many_requests,
)
from leveret.mgmt_ui.hosts import is_secure, require_own_site
from leveret.mgmt_ui.http_connections import NOTE_LOGIN
from leveret.mgmt_ui.managed import ManagedNode
from leveret.mgmt_ui.operations.dispatcher import perform_command
from leveret.mgmt_ui.sessions import COOKIE, CSRF_HEADER, SESSION_MS_MAX
from leveret.ports.audit import Actor, Way
from leveret.ports.authentication import TooManyGuessesError, UnansweredError, attempt_source
from leveret.ports.callbacks import do_nothing
from leveret.ports.log_text import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from leveret.core.admin.commands import AdminCommand
    from leveret.core.admin.rights import Right
    from leveret.core.clients import Client
    from leveret.core.vhost import Vhost
    from leveret.mgmt_ui.operations.context import AdminContext
    from leveret.mgmt_ui.sessions import WebSession
    from leveret.ports.authentication import Kind, Permission, Rights


__all__ = [
    "AdministratorHere",
    "Caller",
    "CallerHere",
    "ClientHere",
    "NodeHere",
    "authenticated",
    "identified",
    "log_in",
    "managed_node",
    "of_session",
    "open_session",
    "require_manager",
    "require_to_declare",
    "session_of",
]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
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
        """Whether the user may see and change everything."""
        return not ADMINISTRATORS.isdisjoint(self.tags)

    @property
    def is_monitor(self) -> bool:
        """Whether the user may see other users' connections and all virtual hosts."""
        return not MONITORS.isdisjoint(self.tags)

    @property
    def is_policymaker(self) -> bool:
        """Whether the user may set policies and similar settings."""
        return self.is_administrator or "policymaker" in self.tags

    def enters(self, vhost: str) -> bool:
        """Whether the user may connect to a virtual host, as far as is known."""
        try:
            return self.rights.may_enter(vhost)
        except UnansweredError:
            return False

    def visible_vhosts(self) -> list[Vhost]:
        """Return the virtual hosts whose existence and totals the user may see."""
        return [
            v for v in self.node.broker.vhosts.values() if self.is_monitor or self.enters(v.name)
        ]

    def open_vhosts(self) -> list[Vhost]:
        """Return the virtual hosts whose contents the user may list; monitors need permissions."""
        return [
            vhost
            for vhost in self.node.broker.vhosts.values()
            if self.is_administrator or self.enters(vhost.name)
        ]

    def visible_clients(self) -> list[Client]:
        """Return all connections for a monitor, else the user's own."""
        clients: set[Client] = self.node.broker.connections
        return [client for client in clients if self.is_monitor or client.user == self.name]

    def may_close(self, client: Client) -> bool:
        """Whether the user may close a connection: their own, or any for an administrator."""
        return self.is_administrator or client.user == self.name

    def require_to_close(self, client: Client) -> None:
        """Raise ApiError 401 unless the user may close a connection."""
        if not self.may_close(client):
            raise self.refusal("User not authorised to access object")

    def require_administrator(self) -> None:
        """Raise ApiError 401 unless the user is an administrator."""
        if not self.is_administrator:
            raise self.refusal("Not administrator user")

    def require_monitor(self) -> None:
        """Raise ApiError 401 unless the user is a monitor."""
        if not self.is_monitor:
            raise self.refusal("Not monitor user")

    def require_policymaker(self, vhost: str | None = None) -> None:
        """Raise ApiError 401 unless the caller may make policies, there or at all."""
        if self.is_administrator:
            return
        if "policymaker" not in self.tags or not (vhost is None or self.enters(vhost)):
            raise self.refusal("User not authorised to access object")

    def visible_vhost(self, name: str) -> Vhost:
        """Return a virtual host whose totals the user may see. Raises ApiError 401 and 404."""
        vhost = self.node.broker.vhosts.get(name)
        if vhost is None:
            raise ApiError(404, "not_found", "vhost_not_found")
        if not (self.is_monitor or self.enters(name)):
            raise self.refusal("User not authorised to access virtual host")
        return vhost

    def vhost(self, name: str) -> Vhost:
        """Return a virtual host whose contents the user may list. Raises ApiError 401 and 404."""
        vhost = self.node.broker.vhosts.get(name)
        if vhost is None:
            raise ApiError(404, "not_found", "vhost_not_found")
        if not (self.is_administrator or self.enters(name)):
            raise self.refusal("User not authorised to access virtual host")
        return vhost

    def require_shared(self, vhost: str, queue: str) -> None:
        """Raise ApiError 401 if a queue is exclusive and the caller is no administrator."""
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
        """Raise ApiError 401 unless the user has a permission that a client would need."""
        await self._ask(lambda: authorise(self.rights, vhost, kind, name, permission))

    async def may(self, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:
        """Return whether the user has a permission."""
        return await answered(lambda: self.rights.allows(vhost, kind, name, permission))

    async def require_topic(
        self, vhost: str, exchange: str, key: str, permission: Literal["write", "read"]
    ) -> None:
        """Raise ApiError 401 if topic permissions deny the user a routing key."""
        found = self.vhost(vhost).exchanges.get(exchange)
        if found is not None and found.definition.type == "topic":
            await self._ask(lambda: authorise_topic(self.rights, vhost, exchange, key, permission))

    async def _ask(self, check: Callable[[], None]) -> None:
        """Raise ApiError 401 if a check of rights fails."""
        try:
            await answered(check)
        except ChannelError as error:
            raise self.refusal(error.explanation) from None

    async def perform(
        self, command: AdminCommand[AdminContext, P, R], /, *_: P.args, **parameters: P.kwargs
    ) -> R:
        """Perform a command as the user and return its result. Raises ApiError.

        Raises ApiError 401 without the command's right.
        """
        values = {name.rstrip("_"): value for name, value in parameters.items()}
        await self._require_right(command.right, values)
        try:
            answer = await perform_command(self.node.context, command, values, self.actor)
        except AdministrationError as error:
            raise refused_operation(error.code, str(error)) from None
        if not answer["ok"]:
            raise refused_operation(str(answer["error"]), str(answer["explanation"]))
        return cast("R", answer["result"])

    async def _require_right(self, right: Right, values: Mapping[str, Any]) -> None:
        """Raise ApiError 401 without a command's right, 404 for an unknown virtual host."""
        if right.tag == "administrator":
            self.require_administrator()
        elif right.tag == "policymaker":
            self.require_policymaker()
        if right.in_vhost:
            vhost = self.vhost(values["vhost"]).name
            for permission, kind, parameter in right.permissions:
                name = values.get(parameter)
                if isinstance(name, str):  # the command refuses what is no name
                    await self.require(vhost, kind, name, permission)
                    if kind == "queue":
                        self.require_shared(vhost, name)

    @property
    def actor(self) -> Actor:
        """Actor of the user for events and the audit log."""
        return Actor(self.name, self.peer, self.way)

    def refusal(self, reason: str) -> ApiError:
        """Return the 401 that refuses this caller, and log it."""
        logger.warning("HTTP access denied: user %s - %s", quoted(self.name), reason)
        return not_authorised(reason)


async def managed_node(request: Request) -> ManagedNode:
    """Return the node of this application; a coroutine, since plain functions run in a thread."""
    node: ManagedNode = request.app.state.node
    return node


def require_manager(caller: Caller) -> None:
    """Raise ApiError 401 unless the caller has a management tag."""
    if MANAGERS.isdisjoint(caller.tags):
        raise caller.refusal("Not management user")


async def identified(request: Request) -> Caller:
    """Return the authenticated user of a request, with any tags. Raises ApiError 401.

    Credentials take precedence over a session. Changing requests must not come from a page of
    another site, and with a session they must have its token in a header (ApiError 403): cookies,
    and passwords that a browser remembers, are sent whichever page makes the request.
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
    """Authenticate by password. Raises ApiError 401, after a delay, and 429."""
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
    return await _admitted(request, rights, Way.HTTP)


async def of_session(request: Request, session: WebSession, way: Way = Way.HTTP) -> Caller:
    """Return the user of a session, with current rights. Raises ApiError 401."""
    return await _admitted(request, session.rights, way)


def session_of(request: Request) -> WebSession | None:
    """Return the valid session of a request's cookie, or None."""
    session: WebSession | None = request.app.state.sessions.find(request.cookies.get(COOKIE, ""))
    return session


async def authenticated(caller: Annotated[Caller, Depends(identified)]) -> Caller:
    """Return the authenticated user, who must have a management tag. Raises ApiError 401."""
    require_manager(caller)
    return caller


def _peer_host(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _admitted(request: Request, rights: Rights, way: Way) -> Caller:
    node, peer = await managed_node(request), _peer_host(request)
    request.scope.get(NOTE_LOGIN, do_nothing)()
    await _restore_vhosts(rights, node.broker.vhosts)
    caller = Caller(node, rights.user, rights.tags, rights, peer, way)
    loopback_users = node.configuration.loopback_users
    if not node.broker.access.may_connect_from(rights.user, peer, loopback_users):
        raise caller.refusal("User can only log in via localhost")
    return caller


async def _restore_vhosts(rights: Rights, names: Iterable[str]) -> None:
    """Query which virtual hosts the user may enter, if an external source decides; for lists."""
    for name in list(names):
        await answered(partial(rights.may_enter, name))


def _credentials(header: str) -> tuple[str, str]:
    """Return user and password of a basic authorization header. Raises ApiError 401."""
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise not_authorized() from None
    user, colon, password = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise not_authorized()
    return user, password


async def administrator(caller: Annotated[Caller, Depends(authenticated)]) -> Caller:
    """Return the authenticated user, who must be an administrator. Raises ApiError 401."""
    caller.require_administrator()
    return caller


CallerHere = Annotated[Caller, Depends(authenticated)]
AdministratorHere = Annotated[Caller, Depends(administrator)]
ClientHere = Annotated[Caller, Depends(identified)]
NodeHere = Annotated[ManagedNode, Depends(managed_node)]


# The argument that names the exchange to which messages go on.
NEXT_EXCHANGE = {"queue": DEAD_LETTER_EXCHANGE, "exchange": ALTERNATE_EXCHANGE}


async def require_to_declare(
    caller: Caller,
    host: Vhost,
    kind: Literal["exchange", "queue"],
    name: str,
    arguments: Mapping[str, Any],
) -> None:
    """Raise ApiError 401 unless the caller may declare it with these arguments, as in AMQP."""
    await caller.require(host.name, kind, name, "configure")
    exists = name in (host.queues if kind == "queue" else host.exchanges)
    exchange = arguments.get(NEXT_EXCHANGE[kind])
    # Dead-lettering and alternate exchanges need the permissions to read and to publish.
    if not exists and isinstance(exchange, str):
        await caller.require(host.name, kind, name, "read")
        await caller.require(host.name, "exchange", exchange, "write")


def open_session(request: Request, caller: Caller, answer: Response) -> None:
    """Open a session in place of the browser's current one; set its cookie in the answer."""
    sessions = request.app.state.sessions
    before = session_of(request)
    if before is not None:
        sessions.close(before)
    answer.set_cookie(
        COOKIE,
        sessions.open(caller.rights).token,
        max_age=SESSION_MS_MAX // 1000,
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )
