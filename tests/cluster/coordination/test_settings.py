"""Connect strings of ZooKeeper, and what is said when nobody answers."""

import pytest

from leveret.cluster.coordination import zookeeper
from leveret.cluster.coordination.settings import ZooKeeperSettings
from leveret.cluster.coordination.zookeeper import ZooKeeperCoordinator
from leveret.config.cluster import ConnectString, parse_connect_string
from leveret.ports.coordinator import CoordinatorUnavailableError


@pytest.mark.parametrize(
    ("text", "servers", "root"),
    [
        ("zk1", ["zk1:2181"], ""),
        ("zk1:2181,zk2:2182/leveret", ["zk1:2181", "zk2:2182"], "/leveret"),
        ("zk1:1, zk2/", ["zk1:1", "zk2:2181"], ""),
        ("10.0.0.1:99/a/b", ["10.0.0.1:99"], "/a/b"),
        ("[::1]:2182,[fe80::1]/x", ["[::1]:2182", "[fe80::1]:2181"], "/x"),
    ],
)
def test_a_connect_string_names_servers_and_a_path(text, servers, root):
    assert parse_connect_string(text) == ConnectString(tuple(servers), root)


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "zk1,", "/leveret", "zk1:port", "zk1:0x1", "zk1:70000", "zk1:0", "zk1:-1"),
        *("user:secret@zk1", "zk1:1:2", "zk1?x", "zk1#x", "zk 1", "zk1//a", "zk1/a/", "zk1/a/../b"),
        *("zk1/.", "zk1/ü", "zk1/a\n", "http://zk1", "[::1", "::1"),
    ],
)
def test_what_is_no_connect_string(text):
    with pytest.raises(ValueError, match=r"ZooKeeper|server"):
        parse_connect_string(text)


def test_secrets_are_not_shown():
    settings = ZooKeeperSettings(parse_connect_string("zk1"), 4_000, user="u", password="secret")
    assert "secret" not in repr(settings)


async def test_a_server_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(zookeeper, "START_SECONDS", 0.5)
    coordinator = ZooKeeperCoordinator(
        ZooKeeperSettings(parse_connect_string("127.0.0.1:1"), 4_000)
    )
    with pytest.raises(CoordinatorUnavailableError, match=r"127\.0\.0\.1:1: .*refused"):
        await coordinator.start()
    assert coordinator.lease_until_ms == 0
