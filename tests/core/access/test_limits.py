from types import SimpleNamespace

import pytest

from leveret.core.access.limits import (
    USER_LIMITS,
    VHOST_LIMITS,
    InvalidLimitError,
    NodeLimits,
    Quota,
    checked_limits,
)
from leveret.core.admission import Admission
from leveret.core.settings.queue_settings import rate_of
from leveret.errors import ChannelError, ConnectionClosingError
from leveret.features.rates.rules import TokenBucket
from leveret.ports.definitions import UserDefinition, VhostDefinition

UNLIMITED = VhostDefinition("/")


def client(user="u", vhost="/", channels=1):
    return SimpleNamespace(user=user, vhost=SimpleNamespace(name=vhost), channel_count=channels)


def admission(clients=(), user_limits=None, **limits):
    user = UserDefinition("u", limits=user_limits or {})
    return Admission(
        "leveret@here", NodeLimits(**limits), clients, lambda name: user if name == "u" else None
    )


def refusal(call, *arguments):
    with pytest.raises(ConnectionClosingError) as raised:
        call(*arguments)
    return raised.value.reply_text


@pytest.mark.covers("B-304", "B-404", "B-405", "B-409")
def test_connections():
    two = [client(), client(), client("other", "elsewhere")]
    limited = VhostDefinition("/", limits={"max-connections": 2})
    assert refusal(admission(two).check_connection, limited, "u") == (
        "NOT_ALLOWED - access to vhost '/' refused for user 'u': connection limit (2) is reached"
    )
    assert refusal(admission(two, {"max-connections": 2}).check_connection, UNLIMITED, "u") == (
        "NOT_ALLOWED - connection refused for user 'u': user connection limit (2) is reached"
    )
    assert refusal(admission(two, connections_max=3).check_connection, UNLIMITED, "u") == (
        "NOT_ALLOWED - connection refused: node connection limit (3) is reached"
    )
    one_more = {"max-connections": 3}
    admission(two, one_more, connections_max=4).check_connection(
        VhostDefinition("/", limits=one_more), "u"
    )


@pytest.mark.covers("B-306", "B-405", "B-409")
def test_channels():
    clients = [client(channels=2), client(channels=1), client("other", channels=4)]
    assert refusal(admission(clients, {"max-channels": 3}).check_channel, "u") == (
        "NOT_ALLOWED - number of channels opened for user 'u' has reached the maximum allowed user "
        "limit of 3"
    )
    assert refusal(admission(clients, channels_max=7).check_channel, "u") == (
        "NOT_ALLOWED - number of channels opened on node 'leveret@here' has reached the maximum "
        "allowed limit of 7"
    )
    admission(clients, {"max-channels": 4}, channels_max=8).check_channel("u")
    admission(clients).check_channel("stranger")


@pytest.mark.covers("B-307", "B-409")
def test_consumers():
    assert refusal(admission(consumers_per_channel_max=2).check_consumer, 2) == (
        "NOT_ALLOWED - reached maximum (2) of consumers per channel"
    )
    admission(consumers_per_channel_max=2).check_consumer(1)
    admission().check_consumer(10_000)


@pytest.mark.parametrize("limit", [-1, -5])
def test_negative_is_no_limit(limit):
    limits = {"max-connections": limit, "max-channels": limit}
    limited = VhostDefinition("/", limits={"max-connections": limit, "max-queues": limit})
    admission([client()], limits).check_connection(limited, "u")
    admission([client()], limits).check_channel("u")
    Quota().check_queue(limited, "q", 1000)


def test_zero_admits_nothing():
    limited = VhostDefinition("/", limits={"max-connections": 0, "max-queues": 0})
    assert "limit (0)" in refusal(admission().check_connection, limited, "u")
    assert "limit of 0" in refusal(admission(user_limits={"max-channels": 0}).check_channel, "u")
    with pytest.raises(ChannelError, match=r"'/' \(0\)"):
        Quota().check_queue(limited, "q", 0)


@pytest.mark.covers("B-222", "B-209", "B-404", "B-409")
def test_queues_and_exchanges():
    quota = Quota(NodeLimits(queues_max=3, exchanges_max=8))
    limited = VhostDefinition("v", limits={"max-queues": 2})
    quota.check_queue(limited, "q", 1)
    with pytest.raises(ChannelError) as raised:
        quota.check_queue(limited, "q", 2)
    assert raised.value.reply_text == (
        "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in vhost 'v' (2) is reached"
    )
    quota.queue_count, quota.exchange_count = 3, 8
    with pytest.raises(ChannelError) as raised:
        quota.check_queue(UNLIMITED, "q", 0)
    assert raised.value.reply_text == (
        "PRECONDITION_FAILED - cannot declare queue 'q': queue limit in cluster (3) is reached"
    )
    with pytest.raises(ChannelError) as raised:
        quota.check_exchange(UNLIMITED, "x")
    assert raised.value.reply_text == (
        "PRECONDITION_FAILED - cannot declare exchange 'x' in vhost '/': exchange limit of 8 is "
        "reached"
    )


def test_what_is_no_limit_is_refused():
    assert checked_limits({"max-queues": 0}, VHOST_LIMITS, "limits") == {"max-queues": 0}
    for limits, known, text in [
        ({"max-queues": 1}, USER_LIMITS, 'Unrecognised terms [{<<"max-queues">>,1}] in limits'),
        ({"max-queues": "1"}, VHOST_LIMITS, 'max-queues should be a number, actually was <<"1">>'),
        ({"max-queues": True}, VHOST_LIMITS, "max-queues should be a number, actually was true"),
    ]:
        with pytest.raises(InvalidLimitError) as raised:
            checked_limits(limits, known, "limits")
        assert str(raised.value) == text


def test_a_number_beyond_64_bits_is_no_limit():
    for known in (USER_LIMITS, VHOST_LIMITS):
        for name in known:
            checked_limits({name: 2**63 - 1}, known, "x")
            with pytest.raises(InvalidLimitError):
                checked_limits({name: 2**63}, known, "x")


@pytest.mark.parametrize("limit", [2**63 - 1, 2**63, 10**30])
def test_a_stored_limit_however_large_lets_everybody_in(limit):
    huge = dict.fromkeys({*USER_LIMITS, *VHOST_LIMITS}, limit)
    at_door = admission([client()], huge)
    at_door.check_connection(VhostDefinition("/", limits=huge), "u")
    at_door.check_channel("u")
    Quota().check_queue(VhostDefinition("/", limits=huge), "q", 5)
    bucket = TokenBucket(rate_of(huge, "publish"), 0)
    assert 0 < bucket.available(1 << 50) < 2**63
