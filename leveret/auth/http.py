"""Users from an HTTP service: the protocol of RabbitMQ's rabbitmq_auth_backend_http.

    user_path      username, password                                   allow [TAG …] | deny [WHY]
    vhost_path     username, vhost, ip, tags                            allow | deny [WHY]
    resource_path  username, vhost, resource, name, permission, tags    allow | deny [WHY]
    topic_path     the same with resource=topic, and routing_key        allow | deny [WHY]

Parameters are in the query of a GET or the form of a POST. Anything but `allow` with status 200 or
201 is a refusal, and so is no answer. Answers are cached for a while; passwords are not, only keyed
digests of them.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import httpx

from leveret.auth.answers import Answers
from leveret.ports.authentication import UnansweredError

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.ports.authentication import Kind, Login, Permission, Rights, TopicPermission

__all__ = ["HttpAuthenticator", "HttpRules"]

logger = logging.getLogger(__name__)
logging.getLogger("httpx").setLevel(logging.WARNING)  # below, it logs addresses with their queries

REPLY_BYTES_MAX = 4096  # a word and some tags
CONNECTIONS_MAX = 32  # more at a time would only queue up in the service
GOOD_STATUS = (200, 201)


@dataclass(frozen=True, slots=True)
class HttpRules:
    """Addresses and method of requests; an empty `topic_path` allows all routing keys."""

    user_path: str
    vhost_path: str
    resource_path: str
    topic_path: str
    method: str  # "get" or "post"
    timeout_seconds: float


class HttpAnswer(NamedTuple):
    """Answer of the service; truthy if it allows."""

    tags: tuple[str, ...]
    allowed: bool

    def __bool__(self) -> bool:
        return self.allowed


class HttpAuthenticator:
    """Queries the service; caches its answers for `cache_seconds`, refusals shorter."""

    def __init__(
        self,
        rules: HttpRules,
        cache_key: bytes,
        cache_seconds: float,
        clock: Callable[[], float],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`cache_key` is 32 bytes of randomness; `clock` gives seconds from some fixed moment."""
        self.rules = rules
        self.answers: Answers[HttpAnswer] = Answers(cache_seconds, clock)
        self._cache_key = cache_key
        self._cache_seconds = cache_seconds
        self._clock = clock
        self._client = httpx.AsyncClient(
            transport=transport,
            timeout=rules.timeout_seconds,
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
            trust_env=False,  # passwords go where the configuration says, not through a proxy
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    @property
    def generation(self) -> int:
        """Number that grows when an answer may have expired, so that connections ask again."""
        return int(self._clock() / self._cache_seconds)

    async def log_in(self, login: Login) -> Rights | None:
        """Return the rights of a login, or None if refused (see ports.authentication)."""
        fields = {"username": login.user}
        secret = b""
        if login.password is not None:
            fields["password"] = login.password
            secret = b"\0" + login.password.encode()
        digest = hmac.digest(self._cache_key, login.user.encode() + secret, "sha256")
        verdict = self.answers.get(digest)
        if verdict is None:
            verdict = await self.ask(self.rules.user_path, fields, digest)
        return HttpRights(self, login, verdict.tags) if verdict else None

    async def ask(self, path: str, fields: dict[str, str], question: object) -> HttpAnswer:
        """Query the service and cache the answer. Does not raise: no answer is a refusal."""
        try:
            reply = await self._reply(path, fields)
        except (httpx.HTTPError, TimeoutError, ValueError, OSError) as error:
            # For errors of libraries only the type: their texts may contain what was sent.
            reason = error if type(error) is ValueError else type(error).__name__
            logger.error("%s did not answer: %s", path, reason)  # noqa: TRY400
            reply = ""
        word, *rest = reply.split() or [""]
        verdict = HttpAnswer(tuple(rest), word.lower() == "allow")
        if word.lower() not in {"allow", "deny", ""}:
            logger.error("%s answered neither allow nor deny", path)
        self.answers.put(question, verdict)
        return verdict

    async def _reply(self, path: str, fields: dict[str, str]) -> str:
        if self.rules.method == "post":
            request = self._client.build_request("POST", path, data=fields)
        else:
            request = self._client.build_request("GET", path, params=fields)
        async with asyncio.timeout(self.rules.timeout_seconds):
            response = await self._client.send(request, stream=True)
            try:
                if response.status_code not in GOOD_STATUS:
                    raise ValueError(f"status {response.status_code}")
                content = b""
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > REPLY_BYTES_MAX:
                        raise ValueError(f"more than {REPLY_BYTES_MAX} bytes")
            finally:
                await response.aclose()
        return content.decode()


class HttpRights:
    """Rights of one logged-in user, as queried from the service."""

    expires_at_ms = None

    def __init__(self, source: HttpAuthenticator, login: Login, tags: tuple[str, ...]) -> None:
        self.user = login.user
        self.tags = tags
        self._source = source
        self._peer_host = login.peer_host

    @property
    def generation(self) -> int:
        """Number that grows when rights may have changed (see ports.authentication)."""
        return self._source.generation

    def may_enter(self, vhost: str) -> bool:
        """Whether the user may enter a virtual host (see ports.authentication)."""
        return self._answer(self._source.rules.vhost_path, vhost=vhost, ip=self._peer_host)

    def allows(self, vhost: str, kind: Kind, name: str, permission: Permission) -> bool:
        """Whether the user has a permission (see ports.authentication)."""
        path = self._source.rules.resource_path
        return self._answer(path, vhost=vhost, resource=kind, name=name, permission=permission)

    def restricts_topics(self, vhost: str, exchange: str) -> bool:  # noqa: ARG002  # only it knows
        """Whether some routing keys may be denied (see ports.authentication)."""
        return bool(self._source.rules.topic_path)

    def allows_topic(
        self, vhost: str, exchange: str, key: str, permission: TopicPermission
    ) -> bool:
        """Whether the user may use a routing key (see ports.authentication)."""
        path = self._source.rules.topic_path
        if not path:
            return True
        return self._answer(
            path,
            vhost=vhost,
            resource="topic",
            name=exchange,
            permission=permission,
            routing_key=key,
        )

    def _answer(self, path: str, **fields: str) -> bool:
        fields = {"username": self.user, **fields, "tags": " ".join(self.tags)}
        question = (path, *fields.values())
        verdict = self._source.answers.get(question)
        if verdict is None:
            raise UnansweredError(partial(self._ask, path, fields, question))
        return verdict.allowed

    async def _ask(self, path: str, fields: dict[str, str], question: object) -> None:
        await self._source.ask(path, fields, question)

    async def renewed(self, secret: str) -> Rights:  # noqa: ARG002  # RabbitMQ takes any, too
        """Return the same rights: a verified password needs no renewal."""
        return self
