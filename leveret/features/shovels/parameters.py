"""Parameters of shovels: RabbitMQ's keys, checked with its texts.

    {"src-uri": "amqp://", "src-queue": "orders",
     "dest-uri": ["amqps://user:password@b1", "amqps://user:password@b2"], "dest-queue": "orders",
     "ack-mode": "on-confirm", "src-delete-after": "never", "reconnect-delay": 5}

`problems` says what is wrong with a value, `ShovelDefinition.parse` reads a valid one. Both ends
speak AMQP 0-9-1, or are `local`: this broker, without a URI.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.core.erlang_terms import binary, charlist, json_term
from leveret.core.settings.arguments import EVERY_ARGUMENT, EVERY_CONSUMER_ARGUMENT
from leveret.features.shovels.uris import (
    HIDDEN_PASSWORD,
    AmqpUri,
    InvalidUriError,
    hide_password,
    without_credentials,
)
from leveret.ports.contents import PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from leveret.ports.definitions import Json

__all__ = [
    "COMPONENT",
    "AckMode",
    "InvalidShovelError",
    "ShovelDefinition",
    "ShovelEnd",
    "UnspokenProtocolError",
    "direct_vhosts",
    "kept_passwords",
    "problems",
    "without_passwords",
]

COMPONENT: Final = "shovel"  # component of the parameters that hold shovels
PREFETCH: Final = 1000
PREFETCH_MAX: Final = 65535  # what basic.qos can say
RECONNECT_SECONDS: Final = 5
RECONNECT_SECONDS_MAX: Final = 86_400 * 365
QUEUE_LENGTH: Final = "queue-length"
NAME_BYTES_MAX: Final = 255
URIS_MAX: Final = 100  # one after the other is tried, each for as long as a minute
TEXT_BYTES_MAX: Final = 255  # of a property: they are short strings
SPOKEN: Final = ("amqp091", "local")
PROTOCOLS: Final = ("amqp10", *SPOKEN)
CONSUMER_ARGUMENTS: Final = {*EVERY_CONSUMER_ARGUMENT, "x-cancel-on-ha-failover"}
URI_KEYS: Final = ("src-uri", "dest-uri")


class InvalidShovelError(ValueError):
    """Raised for an invalid shovel; the text is RabbitMQ's, a line for each problem."""


class UnspokenProtocolError(InvalidShovelError):
    """Raised for a shovel that is valid in RabbitMQ, with a protocol that is not spoken here."""


class AckMode(StrEnum):
    """Moment at which a message is acknowledged to the source."""

    ON_CONFIRM = "on-confirm"  # once the destination has confirmed it: nothing is lost
    ON_PUBLISH = "on-publish"  # once it was sent
    NO_ACK = "no-ack"  # as soon as the source has sent it


@dataclass(frozen=True, slots=True)
class ShovelEnd:
    """Source or destination. Names are None where they are not given."""

    protocol: str
    uris: tuple[str, ...]  # any of which will do; empty where it is local, without one
    queue: str | None
    exchange: str | None
    key: str | None
    queue_arguments: Mapping[str, Json]
    is_predeclared: bool  # its queue is waited for, not declared

    @property
    def facts(self) -> dict[str, str]:
        """Names that are shown of it, by keys such as `queue` and `exchange_key`."""
        given = {"exchange": self.exchange, "exchange_key": self.key, "queue": self.queue}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ShovelDefinition:
    """A valid shovel."""

    vhost: str
    name: str
    source: ShovelEnd
    destination: ShovelEnd
    ack_mode: AckMode
    prefetch: int
    consumer_arguments: Mapping[str, Json]
    delete_after: int | str | None  # messages, or QUEUE_LENGTH
    reconnect_seconds: float  # 0: it stays terminated
    properties: Mapping[str, int | str]  # that messages get
    adds_forward_headers: bool
    adds_timestamp_header: bool

    @classmethod
    def parse(cls, vhost: str, name: str, value: object) -> ShovelDefinition:
        """Return the shovel of a parameter. Raises InvalidShovelError."""
        found = problems(name, value)
        if found:
            raise InvalidShovelError("\n".join(found))
        given: Mapping[str, Any] = value if isinstance(value, dict) else {}
        for end in ("src", "dest"):
            protocol = given.get(f"{end}-protocol", "amqp091")
            if protocol not in SPOKEN:
                raise UnspokenProtocolError(
                    f"{end}-protocol {protocol} is not supported: this broker's shovels speak "
                    "AMQP 0-9-1, amqp091"
                )
        delete_after = _either(given, "src-delete-after", "delete-after", "never")
        return cls(
            vhost,
            name,
            _end(given, "src"),
            _end(given, "dest"),
            AckMode(given.get("ack-mode", AckMode.ON_CONFIRM)),
            int(_either(given, "src-prefetch-count", "prefetch-count", PREFETCH)),
            given.get("src-consumer-args", {}),
            None if delete_after == "never" else delete_after,
            given.get("reconnect-delay", RECONNECT_SECONDS),
            _either(given, "dest-publish-properties", "publish-properties", {}),
            _either(given, "dest-add-forward-headers", "add-forward-headers", default=False),
            _either(given, "dest-add-timestamp-header", "add-timestamp-header", default=False),
        )


def _either(given: Mapping[str, Any], key: str, old_key: str, default: Any) -> Any:
    """Return the value of a key, or of the one that RabbitMQ had before 3.7."""
    return given.get(key, given.get(old_key, default))


def _end(given: Mapping[str, Any], end: str) -> ShovelEnd:
    queue = given.get(f"{end}-queue")
    key = given.get(f"{end}-exchange-key")
    if end == "src" and queue is None and key is None:
        key = ""  # the key of a binding, which always has one
    return ShovelEnd(
        given.get(f"{end}-protocol", "amqp091"),
        tuple(_uris(given.get(f"{end}-uri", ()))),
        queue,
        None if queue is not None else given.get(f"{end}-exchange"),
        None if queue is not None else key,
        given.get(f"{end}-queue-args", {}),
        given.get(f"{end}-predeclared", False),
    )


def _uris(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else list(value)


# -- what is shown, and what comes back


def without_passwords(value: Json) -> Json:
    """Return a shovel's value for display, valid or not: without the passwords in its URIs."""
    return _with_uris(value, lambda _key, uri: hide_password(uri))


def kept_passwords(value: Json, held: Json) -> Json:
    """Return a new value of a shovel in which hidden passwords are those of the present one.

    Who reads a shovel, changes something else and writes it does not change its passwords.
    """
    known = {(key, hide_password(uri)): uri for key in URI_KEYS for uri in _uris_of(held, key)}
    return _with_uris(value, lambda key, uri: known.get((key, uri), uri))


def direct_vhosts(value: Json) -> set[str]:
    """Return the virtual hosts of this broker that a shovel's URIs without a host name."""
    named = set()
    for key in URI_KEYS:
        for uri in _uris_of(value, key):
            try:
                parsed = AmqpUri.parse(uri)
            except InvalidUriError:
                continue
            if parsed.is_direct:
                named.add(parsed.vhost)
    return named


def _uris_of(value: Json, key: str) -> list[str]:
    held = value.get(key) if isinstance(value, dict) else None
    if isinstance(held, str):
        return [held]
    return [one for one in held if isinstance(one, str)] if isinstance(held, list) else []


def _with_uris(value: Json, change: Callable[[str, str], str]) -> Json:
    if not isinstance(value, dict):
        return value
    changed = dict(value)
    for key in URI_KEYS:
        held = value.get(key)
        if isinstance(held, str):
            changed[key] = change(key, held)
        elif isinstance(held, list):
            changed[key] = [change(key, one) if isinstance(one, str) else one for one in held]
    return changed


# -- checks, in RabbitMQ's order


def problems(name: str, value: object) -> list[str]:
    """Return RabbitMQ's texts of all that is wrong with a shovel's value; empty if it is valid."""
    if not isinstance(value, dict):
        return [f"{name} not a list {_term(value)}"]
    found = [*_of_source(value), *_of_destination(value)]
    protocols = {end: value.get(f"{end}-protocol", "amqp091") for end in ("src", "dest")}
    checks = dict(SHOVEL_CHECKS)
    needed = []
    for end, protocol in protocols.items():
        checks |= AMQP10_CHECKS[end] if protocol == "amqp10" else AMQP091_CHECKS[end]
        needed += [] if protocol == "local" else [f"{end}-uri"]
        needed += [f"{end}-address"] if protocol == "amqp10" else []
    return found + _of_fields(name, value, checks, needed)


def _of_source(value: Mapping[str, Any]) -> Iterator[str]:
    if value.get("src-protocol") == "amqp10":
        return
    given = [key for key in ("src-exchange", "src-queue") if key in value]
    if not given:
        yield "Must specify 'src-exchange' or 'src-queue'"
    elif len(given) > 1:
        yield "Cannot specify 'src-exchange' and 'src-queue'"
    after = _either(value, "src-delete-after", "delete-after", None)
    if _is_integer(after) and value.get("ack-mode") == AckMode.NO_ACK:
        yield "Cannot specify 'no-ack' and numerical 'delete-after'"


def _of_destination(value: Mapping[str, Any]) -> Iterator[str]:
    if value.get("dest-protocol") != "amqp10" and {"dest-exchange", "dest-queue"} <= value.keys():
        yield "Cannot specify 'dest-exchange' and 'dest-queue'"


def _of_fields(
    name: str, value: Mapping[str, Any], checks: Mapping[str, Any], needed: list[str]
) -> list[str]:
    """Return the problems of an object's fields: unknown ones, then in the order of their keys."""
    found = []
    unknown = [key for key in value if key not in checks]
    if unknown:
        terms = ",".join(f"{{{binary(key)},{_term(value[key])}}}" for key in unknown)
        found.append(f"Unrecognised terms [{terms}] in {name}")
    for key in reversed(list(checks)):
        if key in value:
            found += filter(None, [checks[key](key, value[key])])
        elif key in needed:
            found.append(f'Key "{key}" not found in {name}')
    return found


def _term(value: Any) -> str:
    return json_term(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(key: str, value: Any) -> str | None:
    return (
        None if isinstance(value, str) else f"{key} should be binary, actually was {_term(value)}"
    )


def _name(key: str, value: Any) -> str | None:
    if isinstance(value, str) and len(value.encode(errors="replace")) > NAME_BYTES_MAX:
        count = len(value.encode(errors="replace"))
        return f"{key} should be less than {NAME_BYTES_MAX} bytes, actually was {count}"
    return _text(key, value)


def _boolean(key: str, value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    return f"{key} should be boolean, actually was {_term(value)}"


def _number(key: str, value: Any, maximum: float = PREFETCH_MAX) -> str | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"{key} should be a number, actually was {_term(value)}"
    if not 0 <= value <= maximum:  # where RabbitMQ's shovel would fail to start
        return f"{key} should be a number from 0 to {maximum}, actually was {_term(value)}"
    return None


def _one_of(options: tuple[str, ...], key: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return _text(key, value)
    if value in options:
        return None
    listed = ",".join(map(binary, options))
    return f"{key} should be one of [{listed}], actually was {binary(value)}"


def _delete_after(key: str, value: Any) -> str | None:
    if value in ("never", QUEUE_LENGTH) or (_is_integer(value) and value >= 0):
        return None
    return (
        f'{key} should be a number greater than or equal to 0, "never" or "queue-length", '
        f"actually was {_term(value)}"
    )


def _uri(key: str, value: Any) -> str | None:
    """Check a URI or a list of them; texts have no credentials."""
    if not isinstance(value, str | list):
        return f"{key} should be list, actually was {_term(value)}"
    if not value or (isinstance(value, list) and len(value) > URIS_MAX):
        return f"{key} should be a URI, or a list of 1 to {URIS_MAX} URIs"
    found = (_one_uri(key, one) for one in _uris(value))
    return next(filter(None, found), None)


def _one_uri(key: str, value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{key} should be list, actually was {_term(value)}"
    shown = without_credentials(value)
    try:
        AmqpUri.parse(value)
    except InvalidUriError as error:
        return f'"{shown}" not a valid URI: {{{error},{charlist(shown.encode())}}}'
    if HIDDEN_PASSWORD in value:
        return f'"{shown}" has a hidden password, which no present URI of {key} explains'
    return None


def _arguments(known: Collection[str], key: str, value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"{key} not a list {_term(value)}"
    unknown = {name: each for name, each in value.items() if name not in known}
    return next(iter(_of_fields(key, unknown, {}, [])), None)


def _strings(key: str, value: Any) -> str | None:
    """Check an object of strings, as AMQP 1.0 has several."""
    if not isinstance(value, dict):
        return f"{key} not a list {_term(value)}"
    return next(iter(_of_fields(key, value, dict.fromkeys(value, _text), [])), None)


def _short_text(key: str, value: Any) -> str | None:
    if isinstance(value, str) and len(value.encode(errors="replace")) > TEXT_BYTES_MAX:
        return f"{key} should be at most {TEXT_BYTES_MAX} bytes"
    return _text(key, value)


def _integer(maximum: int, key: str, value: Any) -> str | None:
    problem = _number(key, value, maximum)
    if problem is None and not _is_integer(value):
        return f"{key} should be a number, actually was {_term(value)}"
    return problem


def _properties(key: str, value: Any) -> str | None:
    if not isinstance(value, dict):
        return f"{key} not a list {_term(value)}"
    return "\n".join(_of_fields(key, value, PROPERTY_CHECKS, [])) or None


def _anything(_key: str, _value: Any) -> str | None:
    return None


INTEGERS_MAX: Final = {"o": 255, "T": (1 << 63) - 1}
# Headers cannot be set this way, as in RabbitMQ.
PROPERTY_CHECKS: Final = {
    name: partial(_integer, INTEGERS_MAX[kind]) if kind in INTEGERS_MAX else _short_text
    for name, kind in PROPERTIES.items()
    if kind != "t"
}
SHOVEL_CHECKS: Final[Mapping[str, Any]] = {
    # What RabbitMQ's plugins note of shovels of their own. Nothing here makes such shovels.
    "internal": _boolean,
    "internal_owner": _anything,
    "reconnect-delay": partial(_number, maximum=RECONNECT_SECONDS_MAX),
    "ack-mode": partial(_one_of, ("no-ack", "on-publish", "on-confirm")),
    "src-protocol": partial(_one_of, PROTOCOLS),
    "dest-protocol": partial(_one_of, PROTOCOLS),
}
AMQP091_CHECKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "src": {
        "src-uri": _uri,
        "src-exchange": _name,
        "src-exchange-key": _name,
        "src-queue": _name,
        "src-queue-args": partial(_arguments, EVERY_ARGUMENT),
        "src-consumer-args": partial(_arguments, CONSUMER_ARGUMENTS),
        "src-consumer-name": _name,  # of AMQP 1.0's links and local consumers; no effect here
        "prefetch-count": partial(_integer, PREFETCH_MAX),
        "src-prefetch-count": partial(_integer, PREFETCH_MAX),
        "delete-after": _delete_after,
        "src-delete-after": _delete_after,
        "src-predeclared": _boolean,
    },
    "dest": {
        "dest-uri": _uri,
        "dest-exchange": _name,
        "dest-exchange-key": _name,
        "dest-queue": _name,
        "dest-queue-args": partial(_arguments, EVERY_ARGUMENT),
        "add-forward-headers": _boolean,
        "add-timestamp-header": _boolean,
        "dest-add-forward-headers": _boolean,
        "dest-add-timestamp-header": _boolean,
        "publish-properties": _properties,
        "dest-publish-properties": _properties,
        "dest-predeclared": _boolean,
    },
}
AMQP10_CHECKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "src": {
        "src-uri": _uri,
        "src-address": _text,
        "src-prefetch-count": partial(_integer, PREFETCH_MAX),
        "src-delete-after": _delete_after,
    },
    "dest": {
        "dest-uri": _uri,
        "dest-address": _text,
        "dest-add-forward-headers": _boolean,
        "dest-add-timestamp-header": _boolean,
        "dest-application-properties": _strings,
        "dest-message-annotations": _strings,
        "dest-properties": _strings,
    },
}
