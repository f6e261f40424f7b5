"""The handshake: what it agrees on, and that nothing but the secret passes for the secret."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.links.errors import HandshakeError
from leveret.links.handshake import (
    HELLO_BODY,
    MAGIC,
    PREFIX,
    Acceptance,
    Dialing,
    HandshakeTerms,
    VersionRange,
)
from leveret.links.identity import ClusterSecret, NodeIdentity
from leveret.links.settings import LinkLimits

SECRET = ClusterSecret(b"the secret of the cluster")
ONE = NodeIdentity("c", 1, 11, "1.0", frozenset({"a", "b"}))
TWO = NodeIdentity("c", 2, 22, "1.1", frozenset({"b", "c"}))
DIALER = HandshakeTerms(ONE, SECRET, LinkLimits(requests_max=7))
ACCEPTOR = HandshakeTerms(TWO, SECRET, LinkLimits(requests_max=9))


def pair(dialer=DIALER, acceptor=ACCEPTOR, expected=2):
    return Dialing(dialer, b"d" * 32, expected), Acceptance(acceptor, b"a" * 32)


def output(side):
    data, side.output = side.output, b""
    return data


def shake(dialing, acceptance, alter=lambda data: data, step=4096):
    """Let both sides talk until they are silent; `alter` is on the way."""
    while dialing.output or acceptance.output:
        for source, target in ((dialing, acceptance), (acceptance, dialing)):
            data = alter(output(source))
            for at in range(0, len(data), step):
                target.received(data[at : at + step])


@pytest.mark.parametrize("step", [1, 7, 4096])
def test_both_learn_who_the_other_one_is(step):
    dialing, acceptance = pair()
    shake(dialing, acceptance, step=step)
    assert dialing.agreement == (TWO, ACCEPTOR.limits, 1, frozenset({"b"}))
    assert acceptance.agreement == (ONE, DIALER.limits, 1, frozenset({"b"}))


def test_bytes_after_the_handshake_are_kept():
    dialing, acceptance = pair()
    acceptance.received(output(dialing))
    dialing.received(output(acceptance))
    acceptance.received(output(dialing))
    dialing.received(output(acceptance) + b"frames")
    assert dialing.rest == b"frames"


@pytest.mark.parametrize(
    ("ours", "theirs", "version"),
    [((1, 1), (1, 3), 1), ((2, 4), (1, 3), 3), ((3, 3), (1, 3), 3), ((1, 9), (2, 2), 2)],
)
def test_the_highest_common_version_is_taken(ours, theirs, version):
    dialing, acceptance = pair(
        replace(DIALER, versions=VersionRange(*ours)),
        replace(ACCEPTOR, versions=VersionRange(*theirs)),
    )
    shake(dialing, acceptance)
    assert dialing.agreement.version == acceptance.agreement.version == version


def test_without_a_common_version_both_ranges_are_named_on_both_sides():
    dialing, acceptance = pair(replace(DIALER, versions=VersionRange(3, 4)))
    with pytest.raises(HandshakeError, match="1 to 1 here, 3 to 4 there"):
        acceptance.received(output(dialing))
    with pytest.raises(HandshakeError, match=r"refuses: .* 1 to 1 here, 3 to 4 there"):
        dialing.received(output(acceptance))


def test_another_secret_is_refused_before_anything_else_is_read(monkeypatch):
    wrong = replace(DIALER, secret=ClusterSecret(b"another secret of a cluster"))
    dialing, acceptance = pair(wrong)
    acceptance.received(output(dialing))
    dialing.received(output(acceptance))
    monkeypatch.setattr("leveret.links.handshake._read_identity", None)
    with pytest.raises(HandshakeError, match="different cluster secrets"):
        acceptance.received(output(dialing))
    with pytest.raises(HandshakeError, match="different cluster secrets"):
        dialing.received(output(acceptance))


def test_an_acceptor_without_the_secret_is_refused():
    class Careless(ClusterSecret):
        def verify(self, transcript, proof):
            return True

    dialing, acceptance = pair(acceptor=replace(ACCEPTOR, secret=Careless(b"guessed" * 3)))
    acceptance.received(output(dialing))
    dialing.received(output(acceptance))
    acceptance.received(output(dialing))
    with pytest.raises(HandshakeError, match="different cluster secrets"):
        dialing.received(output(acceptance))


def test_a_proof_of_another_connection_is_refused():
    dialing, acceptance = pair()
    acceptance.received(hello := output(dialing))
    dialing.received(output(acceptance))
    proof = output(dialing)
    later = Acceptance(ACCEPTOR, b"b" * 32)
    later.received(hello)
    with pytest.raises(HandshakeError, match="different cluster secrets"):
        later.received(proof)


def test_a_side_that_sends_everything_back_is_refused():
    dialing, _ = pair()
    with pytest.raises(HandshakeError, match="own bytes back"):
        dialing.received(output(dialing))


def test_a_proof_that_is_sent_back_is_refused():
    dialing, acceptance = pair()
    acceptance.received(output(dialing))
    dialing.received(output(acceptance))
    with pytest.raises(HandshakeError, match="different cluster secrets"):
        dialing.received(output(dialing))


def test_an_altered_range_of_versions_is_noticed():
    def strip(data):
        if data[PREFIX.size : PREFIX.size + 8] != MAGIC:
            return data
        magic, low, high, nonce = HELLO_BODY.unpack_from(data, PREFIX.size)
        low, high = 1, 1
        return data[: PREFIX.size] + HELLO_BODY.pack(magic, low, high, nonce) + data[47:]

    both = VersionRange(1, 2)
    dialing, acceptance = pair(replace(DIALER, versions=both), replace(ACCEPTOR, versions=both))
    with pytest.raises(HandshakeError, match="different cluster secrets"):
        shake(dialing, acceptance, strip)


@given(at=st.integers(0, 2000), bit=st.integers(0, 7))
def test_no_bit_of_the_handshake_can_be_altered(at, bit):
    seen = 0

    def flip(data):
        nonlocal seen
        begin, seen = seen, seen + len(data)
        if begin <= at < seen:
            data = bytearray(data)
            data[at - begin] ^= 1 << bit
        return bytes(data)

    dialing, acceptance = pair()
    with contextlib.suppress(HandshakeError):
        shake(dialing, acceptance, flip)
    if at < seen:
        assert dialing.agreement is None
    else:
        assert dialing.agreement is not None


def test_another_node_than_the_expected_one_is_refused():
    with pytest.raises(HandshakeError, match="node 2 answers where node 3 was expected"):
        shake(*pair(expected=3))


def test_a_node_of_another_cluster_is_refused():
    other = replace(DIALER, own=replace(ONE, cluster="d"))
    with pytest.raises(HandshakeError, match="of cluster d, and node 2 of cluster c"):
        shake(*pair(other))


def test_a_node_does_not_link_with_itself():
    with pytest.raises(HandshakeError, match="both sides are node 2"):
        shake(*pair(replace(DIALER, own=replace(ONE, node=2))))


@given(st.binary(max_size=6000), st.integers(1, 300))
def test_random_bytes_are_a_handshake_error_at_most(data, step):
    for side in pair():
        side.output = b""
        try:
            for at in range(0, len(data), step):
                side.received(data[at : at + step])
        except HandshakeError:
            pass
        assert side.agreement is None
        assert len(side._input) <= 5000


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"[" * 3000, b'{"cluster":1}', b"\xff", b"null", b'{"a":' * 700, b"1" * 4000],
)
def test_a_strange_identity_is_refused(content, monkeypatch):
    dialing, acceptance = pair()
    monkeypatch.setattr("leveret.links.handshake._identity_bytes", lambda *_: content)
    acceptance.received(output(dialing))
    dialing.received(output(acceptance))
    with pytest.raises(HandshakeError, match="not understood here"):
        acceptance.received(output(dialing))


@pytest.mark.parametrize("value", [-1, 1.5, True, "1", None, 2**31])
def test_limits_are_numbers_within_bounds(value, monkeypatch):
    dialing, acceptance = pair()
    monkeypatch.setattr("leveret.links.handshake.asdict", lambda _: {"requests_max": value})
    acceptance.received(output(dialing))
    dialing.received(output(acceptance))
    with pytest.raises(HandshakeError, match="not understood here"):
        acceptance.received(output(dialing))


def test_names_that_others_would_refuse_are_refused_at_once():
    with pytest.raises(ValueError, match="not understood"):
        replace(DIALER, own=replace(ONE, cluster="c" * 300))
    with pytest.raises(ValueError, match="too long"):
        replace(DIALER, own=replace(ONE, features=frozenset(f"{i:0100}" for i in range(60))))


def test_a_secret_is_not_shown_and_not_short():
    assert "secret of" not in repr(SECRET)
    assert "secret of" not in repr(DIALER)
    assert not hasattr(SECRET, "__dict__")
    with pytest.raises(ValueError, match="16 bytes"):
        ClusterSecret(b"short")
