"""The PROXY protocol: a load balancer's header with the client's addresses, before AMQP.

    version 1   PROXY TCP4 SOURCE DESTINATION SOURCE-PORT DESTINATION-PORT CR LF     (TCP6; UNKNOWN)

    version 2    0  signature                              12
                12  version 2 (high nibble), command        1   0 LOCAL, 1 PROXY
                13  address family, transport (nibbles)     1   1 IPv4, 2 IPv6, 3 Unix; 1 stream
                14  bytes that follow                       2
                16  source, destination: 4, 16 or 108 bytes each; then ports, 2 each, except Unix
                    TLVs, which nobody here asks about

The specification is HAProxy's `proxy-protocol.txt`. Nothing of sockets: `leveret.amqp.acceptor`
feeds it, and reads no byte more than `wanted`, so that what follows the header is still in the
socket for whoever reads next, TLS for one.
"""

from __future__ import annotations

import ipaddress

from leveret.core.clients import Endpoints
from leveret.errors import LeveretError

__all__ = ["MalformedProxyHeaderError", "ProxyHeader"]

V1_START = b"PROXY "
V1_BYTES_MAX = 107  # the specification's; two IPv6 addresses at their longest
V1_END = b"\r\n"
V1_PARTS = 6
PORT_DIGITS_MAX = 5
PORT_MAX = 65_535
V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V2_FIXED_BYTES = 16
# Upper bound: the largest address (216, Unix) and TLVs. The longest of these are the names of a
# client's certificate; the specification would allow 64 KiB from an unauthenticated peer.
V2_FOLLOWING_BYTES_MAX = 4096
LOCAL, PROXY = 0x20, 0x21  # with the version
FAMILIES_MAX, TRANSPORTS_MAX = 3, 2  # the nibbles that the specification names
ADDRESS_BYTES = {0x11: 4, 0x21: 16}  # TCP over IPv4, over IPv6


class MalformedProxyHeaderError(LeveretError):
    """The peer sent no valid PROXY header, so it is not the configured proxy."""


class ProxyHeader:
    """Incremental parser of one header. `endpoints` are known when nothing is `wanted` any more.

    They stay None where the proxy speaks for itself (LOCAL, its health checks) or of something that
    is not TCP over IP: then the socket's own addresses count.
    """

    def __init__(self) -> None:
        self.endpoints: Endpoints | None = None
        self._received = bytearray()
        self._done = False

    @property
    def wanted(self) -> int:
        """Number of bytes that are missing at least; 0 when the header is complete."""
        received = self._received
        if self._done:
            return 0
        if len(received) < len(V2_SIGNATURE):
            return len(V2_SIGNATURE) - len(received)
        if received.startswith(V1_START):  # its end is seen only when it comes
            return 1 if received.endswith(b"\r") else len(V1_END)
        if len(received) < V2_FIXED_BYTES:
            return V2_FIXED_BYTES - len(received)
        return V2_FIXED_BYTES + self._following_bytes - len(received)

    @property
    def _following_bytes(self) -> int:
        return int.from_bytes(self._received[14:16], "big")

    def receive(self, data: bytes | bytearray) -> None:
        """Take at most `wanted` bytes. Raises MalformedProxyHeaderError as early as it can."""
        self._received += data
        received = bytes(self._received)
        if received.startswith(V1_START):
            self._take_line(received)
        elif received.startswith(V2_SIGNATURE):
            self._take_binary(received)
        elif not (V1_START.startswith(received) or V2_SIGNATURE.startswith(received)):
            raise MalformedProxyHeaderError("no PROXY header")

    def _take_line(self, received: bytes) -> None:
        if received.endswith(V1_END):
            self.endpoints = _parse_line(received.removesuffix(V1_END))
            self._done = True
        elif len(received) >= V1_BYTES_MAX:
            raise MalformedProxyHeaderError(f"PROXY line of more than {V1_BYTES_MAX} bytes")

    def _take_binary(self, received: bytes) -> None:
        if len(received) < V2_FIXED_BYTES:
            return
        command, family = received[12:14]
        _check_binary(command, family, self._following_bytes)
        if len(received) < V2_FIXED_BYTES + self._following_bytes:
            return
        if command == PROXY and family in ADDRESS_BYTES:
            self.endpoints = _parse_binary(received[V2_FIXED_BYTES:], ADDRESS_BYTES[family])
        self._done = True


def _parse_line(line: bytes) -> Endpoints | None:
    try:
        parts = line.decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise MalformedProxyHeaderError("PROXY line that is not ASCII") from None
    family = parts[1]
    if family == "UNKNOWN":  # the rest of the line is ignored
        return None
    if family not in {"TCP4", "TCP6"} or len(parts) != V1_PARTS:
        raise MalformedProxyHeaderError("PROXY line of the wrong form")
    kind = ipaddress.IPv4Address if family == "TCP4" else ipaddress.IPv6Address
    try:
        source, destination = (str(kind(part)) for part in parts[2:4])
    except ValueError:
        raise MalformedProxyHeaderError("PROXY line with a wrong address") from None
    return Endpoints(source, _port(parts[4]), destination, _port(parts[5]))


def _port(text: str) -> int:
    # int() alone would also take signs, spaces and underscores.
    if not text.isdigit() or len(text) > PORT_DIGITS_MAX or int(text) > PORT_MAX:
        raise MalformedProxyHeaderError("PROXY line with a wrong port")
    return int(text)


def _check_binary(command: int, family: int, following_bytes: int) -> None:
    if command not in {LOCAL, PROXY}:
        raise MalformedProxyHeaderError("PROXY header of an unknown version or command")
    if family >> 4 > FAMILIES_MAX or family & 0x0F > TRANSPORTS_MAX:
        raise MalformedProxyHeaderError("PROXY header of an unknown address family")
    if following_bytes > V2_FOLLOWING_BYTES_MAX:
        raise MalformedProxyHeaderError(f"PROXY header of {following_bytes} bytes")
    if command == PROXY and following_bytes < 2 * ADDRESS_BYTES.get(family, -2) + 4:
        raise MalformedProxyHeaderError("PROXY header too short for its addresses")


def _parse_binary(following: bytes, size: int) -> Endpoints:
    source, destination = following[:size], following[size : 2 * size]
    ports = following[2 * size : 2 * size + 4]
    return Endpoints(
        str(ipaddress.ip_address(source)),
        int.from_bytes(ports[:2], "big"),
        str(ipaddress.ip_address(destination)),
        int.from_bytes(ports[2:], "big"),
    )
