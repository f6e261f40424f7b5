"""Permissions from the scopes of an OAuth 2 token, in RabbitMQ's notation.

    PREFIX read:VHOST/NAME[/ROUTING-KEY]       also write: and configure:
    PREFIX tag:TAG

`*` matches any characters, also in the middle; other characters may be URL-encoded (`%2F` for the
virtual host `/`, `%2A` for a star). The prefix is the resource server's name and a dot unless the
operator chose another. Scopes of other servers, and those of another form, are ignored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leveret.ports.authentication import Permission

__all__ = ["SCOPES_MAX", "Scopes", "TooManyScopesError", "collect_scopes", "parse_scopes"]

SCOPES_MAX = 2048  # RabbitMQ's number; every one is looked at for every question
PATH_PARTS_MAX = 8  # of the operator's key to more scopes
PERMISSIONS: tuple[Permission, ...] = ("configure", "write", "read")
BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class TooManyScopesError(ValueError):
    """A token has more scopes than allowed."""


class Grant(NamedTuple):
    """One scope: a permission on whatever three patterns match."""

    permission: str
    vhost: ScopePattern
    name: ScopePattern
    routing_key: ScopePattern


class Scopes(NamedTuple):
    """Grants and tags of one token."""

    grants: tuple[Grant, ...]
    tags: tuple[str, ...]

    def enters(self, vhost: str) -> bool:
        """Return whether any permission is granted in a virtual host."""
        return any(grant.vhost.matches(vhost) for grant in self.grants)

    def allow(self, vhost: str, name: str, permission: str) -> bool:
        """Return whether a permission is granted on a resource."""
        return any(
            grant.permission == permission
            and grant.vhost.matches(vhost)
            and grant.name.matches(name)
            for grant in self.grants
        )

    def allow_key(self, vhost: str, name: str, key: str, permission: str) -> bool:
        """Return whether a permission is granted on a routing key of an exchange."""
        return any(
            grant.permission == permission
            and grant.vhost.matches(vhost)
            and grant.name.matches(name)
            and grant.routing_key.matches(key)
            for grant in self.grants
        )

    @property
    def restrict_keys(self) -> bool:
        """Whether some scope does not grant every routing key of its resources."""
        return any(not grant.routing_key.matches_all for grant in self.grants)


class ScopePattern:
    """Characters with stars between them; matched from left to right, so in linear time."""

    def __init__(self, text: str) -> None:
        """Parse a pattern. Raises ValueError for a malformed escape."""
        if BAD_ESCAPE.search(text):
            raise ValueError(f"broken escape in {text!r}")
        self._parts = [unquote_to_bytes(part.replace("+", " ")) for part in text.split("*")]

    @property
    def matches_all(self) -> bool:
        """Whether the pattern is nothing but stars."""
        return len(self._parts) > 1 and not any(self._parts)

    def matches(self, subject: str) -> bool:
        """Whether all of `subject` matches."""
        octets = subject.encode()
        first, *others = self._parts
        if not others:
            return octets == first
        if not octets.startswith(first):
            return False
        place = len(first)
        for part in others[:-1]:
            found = octets.find(part, place)
            if found < 0:
                return False
            place = found + len(part)
        last = others[-1]
        return len(octets) - len(last) >= place and octets.endswith(last)


def parse_scopes(scopes: Iterable[str], prefix: str) -> Scopes:
    """Parse scopes into grants and tags. Raises TooManyScopesError."""
    mine = {scope.removeprefix(prefix) for scope in scopes if scope.startswith(prefix)}
    if len(mine) > SCOPES_MAX:
        raise TooManyScopesError(f"more than {SCOPES_MAX} scopes")
    grants: list[Grant] = []
    tags: list[str] = []
    for scope in sorted(mine):
        kind, _, rest = scope.partition(":")
        if kind == "tag" and rest:
            tags.append(rest)
        elif kind in PERMISSIONS:
            grants.extend(_grant(kind, rest))
    return Scopes(tuple(grants), tuple(tags))


def _grant(permission: str, resource: str) -> Iterable[Grant]:
    parts = resource.split("/")
    if len(parts) == 2:
        parts.append("*")
    if len(parts) != 3:
        return
    try:
        vhost, name, routing_key = map(ScopePattern, parts)
    except ValueError:
        return
    yield Grant(permission, vhost, name, routing_key)


def collect_scopes(
    claims: Mapping[str, object],
    resource_server_id: str,
    additional_key: str,
    aliases: Mapping[str, str],
) -> list[str]:
    """Return all scopes of a token: its claim `scope`, the configured additional key, and aliases.

    `additional_key` may be a path with dots; the value a list, words, or a table by resource
    server. An alias stands for one or several scopes, written as words.
    """
    found = _words(claims.get("scope"))
    if additional_key:
        for value in _values_at(claims, additional_key.split(".")[:PATH_PARTS_MAX]):
            if isinstance(value, dict):
                words = _words(value.get(resource_server_id))
                found += [f"{resource_server_id}.{word}" for word in words]
            else:
                found += _words(value)
    for scope in list(found):
        found += aliases.get(scope, "").split()
    return found


def _values_at(value: object, path: list[str]) -> Iterable[object]:
    """Yield the values at a path through tables; a list on the way means each of its tables."""
    if not path:
        yield value
    elif isinstance(value, dict):
        if path[0] in value:
            yield from _values_at(value[path[0]], path[1:])
    elif isinstance(value, list):
        for each in value:
            yield from _values_at(each, path)


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list):
        return [each for each in value if isinstance(each, str)]
    return []
