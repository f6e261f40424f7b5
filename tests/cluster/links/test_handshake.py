"""The handshake: only who knows the secret gets through, and whoever does not is told why."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.cluster.links import handshake
from leveret.cluster.links.handshake import (
    ACCEPTOR_LABEL,
    HANDSHAKE_FRAME_BYTES_MAX,
    HELLO,
    MAGIC,
    NONCE_BYTES,
    REFUSAL,
    TEXTS,
    WELCOME,
    LinkPeer,
    LinkPurpose,
    LinkRefusedError,
    OpenerHandshake,
    RefusalCode,
    RefusedByPeerError,
)
from tests.cluster.links.peers import (
    ACCEPTOR,
    CLUSTER,
    OPENER,
    SECRET,
    acceptor,
    identity,
    opener,
)

OTHER_SECRET = b"another secret of a cluster"
OTHER_NONCE = b"x" * NONCE_BYTES


def shake_hands(one, other, change=lambda number, frame: frame):
    """Carry the frames of a handshake, each changed. Raises LinkRefusedError."""
    hello = change(1, one.first)
    welcome = change(2, other.receive(hello))
    proof = change(3, one.receive(welcome))
    ready = change(4, other.receive(proof))
    assert one.receive(ready) == b""


def refusal(*arguments):
    with pytest.raises(LinkRefusedError) as caught:
        shake_hands(*arguments)
    return caught.value


def hello(lowest=1, highest=1, magic=MAGIC, meant=ACCEPTOR, purpose=1):
    return HELLO.pack(1, magic, lowest, highest, CLUSTER, OPENER, 7, meant, OTHER_NONCE, purpose)


def test_both_ends_get_to_know_each_other():
    one, other = opener(identity(OPENER, 8)), acceptor(identity(ACCEPTOR, 9), incarnation_min=8)
    assert (one.peer, other.peer) == (None, None)
    shake_hands(one, other)
    assert one.peer == LinkPeer(ACCEPTOR, 9, 1)
    assert other.peer == LinkPeer(OPENER, 8, 1)


@pytest.mark.parametrize(
    ("one", "other", "code"),
    [
        (opener, lambda: acceptor(identity(1, cluster_id=b"another cluster.")), "OTHER_CLUSTER"),
        (opener, lambda: acceptor(identity(3)), "OTHER_NODE"),
        (opener, lambda: acceptor(identity(OPENER)), "SAME_NODE"),
        (opener, lambda: acceptor(identity(1, secret=OTHER_SECRET)), "WRONG_SECRET"),
        (opener, lambda: acceptor(incarnation_min=8), "OLD_INCARNATION"),
    ],
)
def test_a_refusal_says_what_to_do_and_gives_nothing_away(one, other, code):
    error = refusal(one(), other())
    assert error.code == RefusalCode[code]
    assert str(error) == TEXTS[error.code]
    number, told = REFUSAL.unpack_from(error.answer)
    assert (number, told) == (5, error.code)
    assert error.answer[REFUSAL.size :].decode() == str(error)
    for hidden in (SECRET, OTHER_SECRET, CLUSTER):
        assert hidden not in error.answer
        assert hidden.decode() not in repr(error)


def test_a_refusal_reaches_the_other_end():
    other = acceptor(identity(3))
    with pytest.raises(LinkRefusedError) as refused:
        other.receive(opener().first)
    with pytest.raises(RefusedByPeerError, match="another node answers") as told:
        opener().receive(refused.value.answer)
    assert told.value.code == RefusalCode.OTHER_NODE
    assert told.value.answer == b""


def test_the_acceptor_hears_that_the_opener_refuses():
    other = acceptor(identity(ACCEPTOR, secret=OTHER_SECRET))
    one = opener()
    with pytest.raises(LinkRefusedError, match="different secrets") as refused:
        one.receive(other.receive(one.first))
    with pytest.raises(RefusedByPeerError, match="different secrets"):
        other.receive(refused.value.answer)
    assert other.peer is None


def test_an_opener_without_the_secret_is_refused():
    one, other = opener(identity(OPENER, secret=OTHER_SECRET)), acceptor()
    welcome = other.receive(one.first)
    one._own = identity(OPENER)  # it believes the acceptor
    one.receive(welcome)
    one._own = identity(OPENER, secret=OTHER_SECRET)
    proof = handshake._proof(one._own, handshake.OPENER_LABEL, one.first, welcome[: WELCOME.size])
    with pytest.raises(LinkRefusedError, match="different secrets"):
        other.receive(b"\x03" + proof)
    assert other.peer is None


@pytest.mark.parametrize(
    ("own", "offered", "older"),
    [((1, 1), (2, 3), "accepted"), ((4, 5), (2, 3), "opened")],
)
def test_protocols_that_do_not_meet(monkeypatch, own, offered, older):
    monkeypatch.setattr(handshake, "PROTOCOLS", own)
    with pytest.raises(LinkRefusedError) as caught:
        acceptor().receive(hello(*offered))
    assert caught.value.code == RefusalCode.OTHER_PROTOCOL
    assert f"{offered[0]} to {offered[1]}" in str(caught.value)
    assert f"{own[0]} to {own[1]}: upgrade the node that {older} it" in str(caught.value)


@pytest.mark.parametrize(("own", "chosen"), [((1, 2), 2), ((2, 9), 3), ((1, 9), 3)])
def test_the_highest_common_protocol_is_chosen(monkeypatch, own, chosen):
    monkeypatch.setattr(handshake, "PROTOCOLS", own)
    welcome = acceptor().receive(hello(1, 3))
    assert WELCOME.unpack_from(welcome)[2] == chosen


@pytest.mark.parametrize("purpose", LinkPurpose)
def test_both_ends_know_what_the_link_is_for(purpose):
    one = OpenerHandshake(identity(OPENER), ACCEPTOR, OTHER_NONCE, purpose)
    other = acceptor()
    shake_hands(one, other)
    assert one.peer.purpose is other.peer.purpose is purpose


def test_a_purpose_is_proved():
    """A link of replication cannot be made one of a client in between, or the other way round."""
    one = opener()
    hello_of_client = one.first[:-1] + bytes([LinkPurpose.CLIENT])
    welcome = acceptor().receive(hello_of_client)
    with pytest.raises(LinkRefusedError, match="different secrets"):
        one.receive(welcome)


@pytest.mark.parametrize(
    "wrong",
    [
        hello(2, 1),
        hello(magic=b"ZKLINK.."),
        *(hello(purpose=purpose) for purpose in (0, 3, 255)),
        hello()[:-1],
        *(b"", b"\x01", b"\x63"),
    ],
)
def test_what_is_no_hello(wrong):
    with pytest.raises(LinkRefusedError, match="no handshake of a link") as caught:
        acceptor().receive(wrong)
    assert caught.value.code == RefusalCode.MALFORMED


@pytest.mark.parametrize(
    ("node", "protocol", "magic", "code"),
    [
        (3, 1, MAGIC, "OTHER_NODE"),
        (ACCEPTOR, 2, MAGIC, "MALFORMED"),
        (ACCEPTOR, 1, b"ZKLINK..", "MALFORMED"),
    ],
)
def test_the_opener_looks_at_what_it_is_told(node, protocol, magic, code):
    one = opener()
    welcome = WELCOME.pack(2, magic, protocol, CLUSTER, node, 7, OTHER_NONCE)
    proof = handshake._proof(identity(ACCEPTOR), ACCEPTOR_LABEL, one.first, welcome)
    with pytest.raises(LinkRefusedError) as caught:
        one.receive(welcome + proof)
    assert caught.value.code == RefusalCode[code]


def test_a_recorded_proof_does_not_count_again():
    one, recorded = opener(), []
    shake_hands(one, acceptor(), lambda number, frame: recorded.append(frame) or frame)
    first, _, proof, _ = recorded
    other = acceptor(nonce=OTHER_NONCE)
    other.receive(first)
    with pytest.raises(LinkRefusedError, match="different secrets"):
        other.receive(proof)
    assert other.peer is None


def test_a_recorded_welcome_does_not_count_again():
    recorded = []
    shake_hands(opener(), acceptor(), lambda number, frame: recorded.append(frame) or frame)
    with pytest.raises(LinkRefusedError, match="different secrets"):
        opener(nonce=OTHER_NONCE).receive(recorded[1])


def test_frames_that_are_sent_back_do_not_count():
    one, other = opener(), acceptor()
    with pytest.raises(LinkRefusedError):
        opener().receive(one.first)
    with pytest.raises(LinkRefusedError, match="same node"):
        acceptor(identity(OPENER)).receive(one.first)  # the opener's own port
    welcome = other.receive(one.first)
    with pytest.raises(LinkRefusedError, match="different secrets"):
        other.receive(b"\x03" + welcome[WELCOME.size :])  # its own proof
    assert other.peer is None


def test_a_proof_of_the_other_role_does_not_count():
    """A node that both accepts and opens cannot be made to prove something for somebody else."""
    one, other = opener(), acceptor()
    welcome = other.receive(one.first)
    proof = one.receive(welcome)
    with pytest.raises(LinkRefusedError):
        opener().receive(welcome[: WELCOME.size] + proof[1:])


@given(st.integers(1, 4), st.data())
def test_a_changed_byte_is_noticed(changed, data):
    def change(number, frame):
        if number != changed:
            return frame
        at = data.draw(st.integers(0, len(frame) - 1))
        flipped = data.draw(st.integers(1, 255))
        return frame[:at] + bytes([frame[at] ^ flipped]) + frame[at + 1 :]

    one, other = opener(), acceptor()
    error = refusal(one, other, change)
    assert one.peer is None
    assert (other.peer is None) == (changed < 4)
    assert len(error.answer) <= HANDSHAKE_FRAME_BYTES_MAX


frames = st.one_of(
    st.binary(max_size=HANDSHAKE_FRAME_BYTES_MAX),
    st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(0, 6), st.binary(max_size=120)),
    st.builds(hello, *[st.integers(0, 65_535)] * 2, st.sampled_from([MAGIC, b"12345678"])),
)


@given(st.lists(frames, max_size=4), st.booleans(), st.booleans())
def test_any_frames_are_answered_or_refused(received, is_opener, begun):
    end = opener() if is_opener else acceptor()
    if begun:
        end.receive(acceptor().receive(end.first) if is_opener else opener().first)
    answers = []
    try:
        answers += [end.receive(frame) for frame in received]
    except LinkRefusedError as error:
        answers += [error.answer, str(error).encode()]
    assert all(len(answer) <= HANDSHAKE_FRAME_BYTES_MAX for answer in answers)
    assert end.peer is None or (is_opener and begun and b"\x04" in received)


def test_what_a_peer_says_is_shown_in_one_line():
    with pytest.raises(RefusedByPeerError) as caught:
        opener().receive(REFUSAL.pack(5, 999) + b"no\nthanks\xff\x1b[31m" + b"." * 480)
    assert str(caught.value).startswith("the other end says: no\\nthanks")
    assert str(caught.value).isprintable()
    assert caught.value.code == 999


def test_refusals_fit_into_a_frame_of_the_handshake(monkeypatch):
    monkeypatch.setattr(handshake, "PROTOCOLS", (65_534, 65_535))
    with pytest.raises(LinkRefusedError) as caught:
        acceptor().receive(hello(65_530, 65_533))
    answers = [LinkRefusedError(code).answer for code in TEXTS]
    assert set(TEXTS) | {RefusalCode.OTHER_PROTOCOL} == set(RefusalCode)
    assert max(map(len, [caught.value.answer, *answers])) <= HANDSHAKE_FRAME_BYTES_MAX


def test_the_secret_is_not_shown():
    assert SECRET.decode() not in repr(identity(1))
    assert SECRET.decode() not in repr(vars(opener()))
    assert SECRET.decode() not in repr(vars(acceptor()))
