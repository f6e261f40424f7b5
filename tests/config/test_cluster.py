"""Settings of a node in a cluster."""

import socket

import pytest

from leveret.config import Configuration, ConfigurationError, load
from leveret.config.cluster import ConnectString, parse_connect_string
from leveret.ports import Durability
from leveret.ports.replication import BATCH_BYTES_MAX

MEMBER = {"cluster": "zk1,zk2:2182/leveret", "node_id": 1}
PASSWORD = "a password that nobody logs"


def member(**settings):
    return Configuration(**{**MEMBER, **settings})


def problem(**settings):
    with pytest.raises(ConfigurationError) as caught:
        load(overrides=settings, environ={})
    return str(caught.value)


def test_a_node_is_one_of_its_own_unless_told():
    alone = Configuration()
    assert (alone.cluster, alone.node_id) == ("", None)
    assert Configuration(durability="os").durability is Durability.OS
    # What belongs to a cluster is without effect, and so it may be given.
    assert Configuration(node_id=1, rack="a", durability="os").cluster == ""


def test_a_member_has_a_number():
    text = problem(cluster="zk1")
    assert "setting 'node_id': needed beside 'cluster'" in text


@pytest.mark.parametrize("node", [0, 1, 65_535])
def test_numbers_of_nodes(node):
    assert member(node_id=node).node_id == node


@pytest.mark.parametrize("node", [-1, 65_536, "one", 1.5])
def test_what_is_no_number_of_a_node(node):
    assert "setting 'node_id'" in problem(**{**MEMBER, "node_id": node})


def test_what_a_power_failure_may_take_is_not_acknowledged_in_a_cluster():
    text = problem(**MEMBER, durability="os")
    assert "setting 'cluster'" in text
    assert "'durability' to be 'fsync'" in text
    assert member(durability="fsync").durability is Durability.FSYNC


def test_a_message_that_could_not_be_copied_is_never_permitted():
    text = problem(**MEMBER, message_bytes_max=BATCH_BYTES_MAX - (1 << 20))
    assert "setting 'message_bytes_max'" in text


@pytest.mark.parametrize(
    ("text", "servers", "root"),
    [
        ("zk1", ("zk1:2181",), ""),
        ("zk1/", ("zk1:2181",), ""),
        ("zk1:1,zk2:65535", ("zk1:1", "zk2:65535"), ""),
        ("zk1, zk2 /a/b c", ("zk1:2181", "zk2:2181"), "/a/b c"),
        ("10.0.0.1:2181/leveret", ("10.0.0.1:2181",), "/leveret"),
        ("[::1],[fe80::1]:3/x", ("[::1]:2181", "[fe80::1]:3"), "/x"),
        ("zk-1.a_b.example.:9/.x", ("zk-1.a_b.example.:9",), "/.x"),
    ],
)
def test_connect_strings(text, servers, root):
    assert parse_connect_string(text) == ConnectString(servers, root)
    assert member(cluster=text).cluster == text


@pytest.mark.parametrize(
    "wrong",
    [
        "/leveret",
        ",",
        "zk1,",
        ",zk1",
        "zk1,,zk2",
        "zk1:",
        "zk1:0",
        "zk1:65536",
        "zk1:123456",
        "zk1:x",
        "zk1:-1",
        "zk1:٣",
        "zk 1",
        "zk1;zk2",
        "zk1 zk2",
        "::1",
        "[::1",
        "[zk1]",
        "zookeeper://zk1",
        "zk1//",
        "zk1//a",
        "zk1/a/",
        "zk1/a//b",
        "zk1/.",
        "zk1/../b",
        "zk1/a\x00",
        "zk1/ä",
    ],
)
def test_what_is_no_connect_string(wrong):
    with pytest.raises(ValueError, match=r"no (address of a server|path of ZooKeeper): "):
        parse_connect_string(wrong)
    assert "setting 'cluster'" in problem(cluster=wrong, node_id=1)


@pytest.mark.parametrize(
    ("advertise", "advertised", "listens"),
    [
        ("node1", ("node1", 25672), ("node1", 25672)),
        ("node1:7", ("node1", 7), ("node1", 7)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535), ("10.0.0.1", 65535)),
        ("[::1]", ("::1", 25672), ("::1", 25672)),
        ("[::1]:7", ("::1", 7), ("::1", 7)),
    ],
)
def test_addresses_that_others_are_told(advertise, advertised, listens):
    configuration = member(advertise=advertise)
    assert configuration.advertised == advertised
    assert configuration.cluster_address == listens


def test_a_node_listens_elsewhere_than_others_reach_it_if_it_is_told_to():
    configuration = member(advertise="outside:7", cluster_host="::", cluster_port=8)
    assert configuration.advertised == ("outside", 7)
    assert configuration.cluster_address == ("::", 8)


def test_without_an_address_it_is_the_name_of_the_machine(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "machine")
    assert member().advertised == member().cluster_address == ("machine", 25672)
    assert member(cluster_port=7).advertised == ("machine", 7)


@pytest.mark.parametrize(
    "wrong",
    ["::1", "[::1", "[::1]:", ":7", "node1:", "node1:0", "node1:65536", "a b", "a/b", "a,b", "ä"],
)
def test_what_is_no_address_of_a_node(wrong):
    text = problem(**MEMBER, advertise=wrong)
    assert "setting 'advertise' (option --advertise): no address of a server" in text


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cluster_port", 0),
        ("cluster_port", 65_536),
        ("cluster_replicas", 0),
        ("cluster_replicas", 10),
        ("cluster_session_ms", 1_999),
        ("cluster_hold_ms", -1),
        ("cluster_hold_ms", "11min"),
    ],
)
def test_numbers_have_limits(name, wrong):
    assert f"setting '{name}'" in problem(**MEMBER, **{name: wrong})


def test_times_have_units():
    configuration = member(cluster_hold_ms="30s", cluster_session_ms="6s")
    assert (configuration.cluster_hold_ms, configuration.cluster_session_ms) == (30_000, 6_000)


def test_a_password_is_shown_to_nobody():
    configuration = member(zookeeper_user="leveret", zookeeper_password=PASSWORD)
    assert configuration.zookeeper_password.get_secret_value() == PASSWORD
    for shown in (repr(configuration), str(configuration), configuration.model_dump_json()):
        assert PASSWORD not in shown


@pytest.mark.parametrize("password", [PASSWORD, [PASSWORD], {PASSWORD: 1}, PASSWORD.encode()])
@pytest.mark.parametrize("wrong", [{"node_id": "x"}, {"advertise": "::"}, {"cluster_port": 0}])
def test_a_password_is_in_no_error(password, wrong):
    assert PASSWORD not in problem(**{**MEMBER, **wrong}, zookeeper_password=password)


@pytest.mark.parametrize("password", [12345678901, True, None])
def test_a_password_of_another_type_is_text(password):
    assert member(zookeeper_password=password).zookeeper_password.get_secret_value() == str(
        password
    )
