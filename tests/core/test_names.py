import pytest

from leveret.core.names import check_not_reserved, not_found, resource, server_named, stripped
from leveret.errors import ChannelError


@pytest.mark.covers("B-017")
def test_line_ends_are_stripped_and_nothing_else():
    assert stripped("\r\na\nb\r c\t") == "ab c\t"


def test_resources_are_described():
    assert resource("queue", "q", "/") == "queue 'q' in vhost '/'"
    assert not_found("queue", "q", "/").reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"


@pytest.mark.covers("B-231")
def test_reserved_names_are_refused():
    with pytest.raises(ChannelError) as caught:
        check_not_reserved("queue", "amq.x")
    assert caught.value.reply_text == (
        "ACCESS_REFUSED - queue name 'amq.x' contains reserved prefix 'amq.*'"
    )
    check_not_reserved("queue", "amqx")


@pytest.mark.covers("B-126")
def test_server_names_take_the_broker_s_prefix_or_the_client_s():
    assert server_named(lambda: "r") == "amq.gen-r"
    assert server_named(lambda: "r", "mine\n") == "mine-r"
    assert server_named(lambda: "r", "é" * 32) == "é" * 32 + "-r"


@pytest.mark.covers("B-126", "B-221")
def test_a_prefix_has_its_limits():
    with pytest.raises(ChannelError) as caught:
        server_named(lambda: "r", "é" * 33)
    assert (caught.value.code, caught.value.explanation) == (
        406,
        f"Queue name prefix '{'é' * 33}' exceeds the 64-byte limit",
    )
    with pytest.raises(ChannelError) as caught:
        server_named(lambda: "r", "amq.gen")
    assert caught.value.code == 403
