"""PROXY headers, whole and byte by byte, right and wrong."""

import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.amqp.proxy_protocol import (
    V1_BYTES_MAX,
    V2_FOLLOWING_BYTES_MAX,
    V2_SIGNATURE,
    MalformedProxyHeaderError,
    ProxyHeader,
)
from leveret.core.clients import Endpoints

ports = st.integers(0, 65_535)
TCP4, TCP6 = 0x11, 0x21


def read(data, size=None):
    """Return the facts of a header read in pieces of `size`, and the part of `data` left unread."""
    header = ProxyHeader()
    while header.wanted and data:
        part = min(header.wanted, size or len(data))
        header.receive(data[:part])
        data = data[part:]
    return (header.endpoints, data) if not header.wanted else (None, None)


def binary(command, family, following, size=None):
    return (
        V2_SIGNATURE
        + bytes([command, family])
        + (len(following) if size is None else size).to_bytes(2, "big")
        + following
    )


def addresses(source, destination, source_port, destination_port):
    return (
        source.packed
        + destination.packed
        + source_port.to_bytes(2, "big")
        + destination_port.to_bytes(2, "big")
    )


@st.composite
def headers(draw):
    """A header and the endpoints it gives."""
    version = draw(st.sampled_from([4, 6]))
    source, destination = draw(st.tuples(*[st.ip_addresses(v=version)] * 2))
    here, there = draw(st.tuples(ports, ports))
    endpoints = Endpoints(str(source), here, str(destination), there)
    if draw(st.booleans()):
        return f"PROXY TCP{version} {source} {destination} {here} {there}\r\n".encode(), endpoints
    tlvs = draw(st.binary(max_size=100))
    family = TCP4 if version == 4 else TCP6
    return binary(0x21, family, addresses(source, destination, here, there) + tlvs), endpoints


@pytest.mark.covers("B-014")
@given(headers(), st.integers(1, 20), st.binary(max_size=40))
def test_both_versions_in_any_pieces_and_not_a_byte_of_what_follows(header, size, behind):
    data, endpoints = header
    assert read(data + behind) == (endpoints, behind)
    assert read(data + behind, size) == (endpoints, behind)


@given(headers(), st.data())
def test_a_cut_header_waits_for_the_rest(header, data):
    whole, _ = header
    assert read(whole[: data.draw(st.integers(0, len(whole) - 1))]) == (None, None)


@given(st.binary(max_size=300))
def test_other_bytes_raise_the_documented_error_only(data):
    with contextlib.suppress(MalformedProxyHeaderError):
        read(data)


@given(headers(), st.data())
def test_changed_bytes_raise_the_documented_error_only(header, data):
    changed = bytearray(header[0])
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedProxyHeaderError):
        read(bytes(changed), 1)


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        binary(0x20, 0, b""),
        binary(0x20, TCP4, b"health check"),
        binary(0x21, 0, b""),
        binary(0x21, 0x31, bytes(216)),
        binary(0x21, 0x12, bytes(12)),
    ],
    ids=["unknown", "unknown-with-more", "local", "local-tcp", "unspecified", "unix", "udp"],
)
def test_headers_without_an_address_leave_the_sockets_own(header):
    assert read(header + b"AMQP") == (None, b"AMQP")


@pytest.mark.parametrize(
    "header",
    [
        b"A",
        b"AMQP\0\0\x09\x01",
        b"\x16\x03\x01",
        b"PROXY TCP4\r\n",
        b"PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n",
        b"PROXY TCP4  1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 ::1 ::1 1 1\r\n",
        b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 1.1.1.256 1.1.1.1 1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1_0 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 000001 1\r\n",
        b"PROXY TCP4 \xff.1.1.1 1.1.1.1 1 1\r\n",
        b"PROXY " + b"x" * V1_BYTES_MAX,
        V2_SIGNATURE + b"\x11\x11\0\x0c",
        V2_SIGNATURE + b"\x22\x11\0\x0c",
        V2_SIGNATURE + b"\x21\x41\0\x0c",
        V2_SIGNATURE + b"\x21\x13\0\x0c",
        binary(0x21, TCP4, bytes(11)),
        binary(0x21, TCP6, bytes(35)),
        binary(0x20, 0, b"", V2_FOLLOWING_BYTES_MAX + 1),
    ],
)
@pytest.mark.parametrize("size", [1, None])
def test_what_is_no_header_is_refused_as_soon_as_it_shows(header, size):
    with pytest.raises(MalformedProxyHeaderError):
        read(header, size)


def test_ipv6_addresses_are_written_one_way():
    line = b"PROXY TCP6 0:0:0:0:0:0:0:1 2001:DB8::0001 1 2\r\n"
    assert read(line)[0] == Endpoints("::1", 1, "2001:db8::1", 2)
    packed = addresses(ipaddress.ip_address("::1"), ipaddress.ip_address("2001:db8::1"), 1, 2)
    assert read(binary(0x21, TCP6, packed))[0] == Endpoints("::1", 1, "2001:db8::1", 2)
