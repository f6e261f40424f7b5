"""Transcripts of a connection, as lines of text that two brokers can be compared by.

`A1 < Queue.DeclareOk queue='q' message_count=0 consumer_count=0` reads: on connection A, channel 1,
the broker answered this. `>` marks what the test sent. Names the broker made up, the prefix that
keeps conversations apart and the broker's own properties are replaced by fixed words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pamqp import base, body, header, heartbeat

MADE_UP_NAMES = re.compile(r"amq\.(gen|ctag)-[A-Za-z0-9_\-]+|amq\.rabbitmq\.reply-to\.[^'\s]+")
MADE_UP_KIND = re.compile(r"amq\.(gen|ctag)-|amq\.rabbitmq\.reply-to\.")
TIMES = re.compile(r"datetime\.datetime\(.*?tzinfo=datetime\.timezone\.utc\)")
BROKER_PROPERTIES_KEPT = ("capabilities",)  # the rest names product, version and platform
MECHANISMS_COMPARED = ("AMQPLAIN", "PLAIN")  # others depend on the broker's plugins
BODY_SHOWN_BYTES_MAX = 60


class Transcript:
    """The lines of one conversation; `prefix` is cut out of every name."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.lines: list[str] = []
        self._made_up: dict[str, str] = {}

    def add(self, line: str) -> None:
        """Append one line, its names replaced."""
        line = TIMES.sub("TIME", line.replace(self.prefix, ""))
        self.lines.append(MADE_UP_NAMES.sub(lambda found: self._stable(found[0]), line))

    def add_group(self, lines: list[str]) -> None:
        """Append lines whose order the brokers are free to choose."""
        for line in sorted(line.replace(self.prefix, "") for line in lines):
            self.add(line)

    def _stable(self, name: str) -> str:
        if name not in self._made_up:
            kind = MADE_UP_KIND.match(name)
            assert kind, name
            self._made_up[name] = f"{kind[0]}NUMBER{len(self._made_up) + 1}"
        return self._made_up[name]


@dataclass(frozen=True)
class Undecoded:
    """The payload of a frame that pamqp cannot read."""

    payload: bytes


Content = tuple[header.ContentHeader, bytes]


def describe(frame: object, content: Content | None = None) -> str:
    """One frame, with its content when it has one, as text."""
    if isinstance(frame, heartbeat.Heartbeat):
        return "Heartbeat"
    if isinstance(frame, Undecoded):
        return f"Undecoded {frame.payload!r}"
    if isinstance(frame, header.ProtocolHeader):
        return f"ProtocolHeader {frame.major_version}.{frame.minor_version}.{frame.revision}"
    if isinstance(frame, body.ContentBody):
        return f"ContentBody {shorten(frame.value)}"
    if isinstance(frame, header.ContentHeader):
        return f"ContentHeader {frame.body_size} {describe_properties(frame)}"
    assert isinstance(frame, base.Frame), frame
    text = " ".join([frame.name, *_fields(frame)])
    if content is None:
        return text
    return f"{text} | {describe_properties(content[0])} | {shorten(content[1])}"


def _fields(frame: base.Frame) -> list[str]:
    fields: dict[str, object] = {name: value for name, value in frame if name != "ticket"}
    if frame.name == "Connection.Start":
        fields = _start_fields(fields)
    return [f"{name}={value!r}" for name, value in fields.items() if value not in (None, {})]


def _start_fields(fields: dict[str, object]) -> dict[str, object]:
    properties = fields["server_properties"]
    offered = str(fields["mechanisms"]).split()
    assert isinstance(properties, dict)
    return {
        **fields,
        "mechanisms": [name for name in MECHANISMS_COMPARED if name in offered],
        "server_properties": {name: properties[name] for name in BROKER_PROPERTIES_KEPT},
    }


def describe_properties(content_header: header.ContentHeader) -> str:
    """The properties that are set, in the order of the specification."""
    found = {name: value for name, value in content_header.properties if value not in (None, "")}
    return " ".join(f"{n}={in_order(value)!r}" for n, value in found.items()) or "no properties"


def in_order(value: object) -> object:
    """Tables sorted by key, all the way down: their order on the wire means nothing."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(item) for item in value] if isinstance(value, list) else value


def shorten(data: bytes) -> str:
    """A body as text; a long one by its start and length."""
    if len(data) <= BODY_SHOWN_BYTES_MAX:
        return repr(data)
    return f"{data[:16]!r}... {len(data)} bytes"
