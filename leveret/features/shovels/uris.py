"""AMQP URIs as RabbitMQ's client for Erlang reads them, and the same without their credentials.

    amqp://user:password@host:5672/vhost?heartbeat=10
    amqps://host?cacertfile=/etc/ca.pem&verify=verify_peer&auth_mechanism=external
    amqp:///vhost

Without a host, the broker connects to itself, past its listeners; without a user as one who may do
everything. A missing virtual host is `/`. See https://www.rabbitmq.com/docs/uri-spec and
https://www.rabbitmq.com/docs/uri-query-parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote

from leveret.core.erlang_terms import charlist

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HIDDEN_PASSWORD", "AmqpUri", "InvalidUriError", "hide_password", "without_credentials"]

HIDDEN_PASSWORD: Final = "…"  # noqa: S105  # what is shown of one
PORT: Final = 5672
TLS_PORT: Final = 5671
HEARTBEAT_SECONDS: Final = 10
CONNECT_MS_MAX: Final = 60_000
# The scheme ends at the first colon; an authority begins with two slashes.
PARTS: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):"
    r"(?://(?:(?P<userinfo>[^@/?#]*)@)?(?P<host>\[[^\]/?#]*\]|[^:/?#]*)(?::(?P<port>[^/?#]*))?)?"
    r"(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?\Z",
    re.DOTALL,
)
CREDENTIALS: Final = re.compile(r"//[^/?#]*@")
PASSWORD: Final = re.compile(r"(//[^:@/?#]*:)[^/?#]*(?=@)")
SECRETS_IN_QUERY: Final = re.compile(r"([?&]password=)[^&#]*")
MECHANISMS: Final = ("plain", "amqplain", "external")
NUMBERS: Final = ("channel_max", "frame_max", "heartbeat", "connection_timeout")
VERIFICATIONS: Final = ("verify_peer", "verify_none")


class InvalidUriError(ValueError):
    """Raised for an invalid URI; the text is the Erlang term by which RabbitMQ explains it."""


@dataclass(frozen=True, slots=True)
class AmqpUri:
    """Address of a broker, and how to log in there. `host` is empty for this broker itself."""

    host: str
    port: int
    vhost: str
    user: str = "guest"
    password: str = "guest"  # noqa: S105  # RabbitMQ's default
    has_user: bool = False
    is_secure: bool = False  # by TLS
    mechanism: str = "plain"  # the first that is named
    heartbeat_seconds: int = HEARTBEAT_SECONDS
    connect_ms_max: int = CONNECT_MS_MAX
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    key_password: str = ""
    verifies_peer: bool = True
    server_name: str = ""  # that the certificate must have, if it is not the host

    @property
    def is_direct(self) -> bool:
        """Whether this broker itself is meant."""
        return not self.host

    @classmethod
    def parse(cls, text: str) -> AmqpUri:
        """Return the address of a URI. Raises InvalidUriError."""
        found = PARTS.match(text)
        if found is None:
            raise InvalidUriError("{unable_to_parse_uri,no_scheme}")
        scheme = found["scheme"].lower()
        if scheme not in {"amqp", "amqps"}:
            raise InvalidUriError(f"{{unexpected_uri_scheme,{_string(scheme)}}}")
        is_secure = scheme == "amqps"
        host = _unescaped(found["host"] or "").strip("[]")
        port = _port(found["port"], host)
        user, password, has_user = _credentials(found["userinfo"])
        query = dict(parse_qsl(found["query"] or "", keep_blank_values=True))
        _check_query(query, is_secure=is_secure)
        return cls(
            host,
            port or (TLS_PORT if is_secure else PORT),
            _vhost(found["path"]),
            user,
            password,
            has_user,
            is_secure and bool(host),
            query.get("auth_mechanism", "plain"),
            int(query.get("heartbeat", HEARTBEAT_SECONDS)),
            int(query.get("connection_timeout", CONNECT_MS_MAX)),
            query.get("cacertfile", ""),
            query.get("certfile", ""),
            query.get("keyfile", ""),
            query.get("password", ""),
            query.get("verify", "verify_peer") == "verify_peer",
            query.get("server_name_indication", ""),
        )


def without_credentials(uri: str) -> str:
    """Return a URI, valid or not, without user, password and query: for lists, headers and logs."""
    return CREDENTIALS.sub("//", uri.partition("?")[0].partition("#")[0], count=1)


def hide_password(uri: str) -> str:
    """Return a URI, valid or not, with its passwords replaced: as its owner may see it."""
    shown = PASSWORD.sub(rf"\g<1>{HIDDEN_PASSWORD}", uri, count=1)
    return SECRETS_IN_QUERY.sub(rf"\g<1>{HIDDEN_PASSWORD}", shown)


def _port(text: str | None, host: str) -> int:
    """Return a port, 0 where there is none. Raises InvalidUriError."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise InvalidUriError(f"{{unable_to_parse_uri,{{invalid_port,{_string(text)}}}}}")
    if not 0 < int(text[:6]) <= 65535:
        raise InvalidUriError(f"{{port_out_of_range,{text}}}")
    if not host:
        raise InvalidUriError("port_requires_host")
    return int(text)


def _vhost(path: str) -> str:
    """Return the virtual host of a path, `/` where there is none. Raises InvalidUriError."""
    if not path:
        return "/"
    name = path.removeprefix("/")
    if "/" in name:
        raise InvalidUriError(f"{{invalid_vhost,{_string(name)}}}")
    return _unescaped(name)


def _credentials(userinfo: str | None) -> tuple[str, str, bool]:
    if userinfo is None:
        return "guest", "guest", False
    user, colon, password = userinfo.partition(":")
    return _unescaped(user), _unescaped(password) if colon else "guest", True


def _unescaped(text: str) -> str:
    """Return text with its percent-encoding undone. Raises InvalidUriError."""
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise InvalidUriError("{invalid_entity,percent_encoding}")
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidUriError("{invalid_entity,no_utf8}") from None


def _check_query(query: Mapping[str, str], *, is_secure: bool) -> None:
    """Check the parameters that are understood; as in RabbitMQ, others are ignored."""
    for name in NUMBERS:
        value = query.get(name, "0")
        if not (value.isascii() and value.isdigit() and len(value) < 10):
            reason = f"{{not_an_integer,{_string(value)}}}"
            raise InvalidUriError(f"{{invalid_amqp_params_parameter,{name},{reason}}}")
    mechanism = query.get("auth_mechanism", "plain")
    if mechanism not in MECHANISMS:
        raise InvalidUriError(f"{{unknown_mechanism,{_string(mechanism)}}}")
    verify = query.get("verify", "verify_peer")
    if is_secure and verify not in VERIFICATIONS:
        reason = f"{{invalid_atom_parameter,{_string(verify)}}}"
        raise InvalidUriError(f"{{invalid_ssl_parameter,verify,{reason}}}")


def _string(text: str) -> str:
    return charlist(text.encode())
