import pytest

from leveret.config import ConfigurationError, load

NEEDED = {
    "cluster": "zk1:2181,zk2:2181/one",
    "node_id": 3,
    "advertise": "node3",
    "cluster_secret_file": "/secret",
}


def problem(**values):
    with pytest.raises(ConfigurationError) as caught:
        load(overrides=values, environ={})
    return str(caught.value)


def test_a_node_is_alone_by_default():
    assert load(environ={}).configuration.cluster == ""


def test_a_node_of_a_cluster():
    configuration = load(overrides=NEEDED, environ={}).configuration
    assert (configuration.node_id, configuration.link_port) == (3, 25672)


def test_node_number_zero_is_one():
    assert load(overrides={**NEEDED, "node_id": 0}, environ={}).configuration.node_id == 0


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("node_id", "a number of its own"),
        ("advertise", "the other nodes reach this one"),
        ("cluster_secret_file", "`openssl rand -hex 32` makes one"),
    ],
)
def test_what_a_cluster_needs_is_named(name, advice):
    text = problem(**{key: value for key, value in NEEDED.items() if key != name})
    assert text.startswith(f"setting '{name}': is missing, and 'cluster' needs it: ")
    assert advice in text
    assert "not '" not in text  # there is no wrong value to be quoted


def test_settings_of_a_cluster_are_refused_without_one():
    text = problem(node_id=3, rack="r1", zookeeper_session_timeout_ms=5000)
    assert text.splitlines() == [
        f"setting '{name}' (option --{name.replace('_', '-')}): "
        f"is for a node of a cluster: set 'cluster' to ZooKeeper's addresses, not '{value}'"
        for name, value in (
            ("node_id", 3),
            ("rack", "r1"),
            ("zookeeper_session_timeout_ms", 5000),
        )
    ]


@pytest.mark.parametrize("address", ["/chroot", "zk1,,zk2", "zk1 zk2", "zk1,/chroot", ","])
def test_wrong_addresses_of_zookeeper_are_the_only_problem_told(address):
    assert problem(**{**NEEDED, "cluster": address}) == (
        "setting 'cluster' (option --cluster): "
        f"expected ZooKeeper's addresses and a path: zk1:2181,zk2:2181/chroot, not '{address}'"
    )


@pytest.mark.parametrize("address", ["a:b:3", "a:0", "a:65536", "a/b", "::1", "[::1", "a b"])
def test_an_address_that_nobody_could_dial_is_refused(address):
    assert "setting 'advertise'" in problem(**{**NEEDED, "advertise": address})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"link_certificate_file": "/c"}, "comes together with 'link_certificate_file'"),
        ({"link_ca_file": "/a"}, "comes together with 'link_certificate_file'"),
        (
            {"link_certificate_file": "/c", "link_key_file": "/k"},
            "setting 'link_ca_file': comes together with",
        ),
        ({"link_check_host_names": False}, "can be false only where 'link_certificate_file'"),
        ({"zookeeper_ca_file": "/a"}, "is for TLS with ZooKeeper: set 'zookeeper_tls'"),
        (
            {"zookeeper_tls": True, "zookeeper_key_file": "/k"},
            "comes together with 'zookeeper_certificate_file'",
        ),
        ({"zookeeper_session_timeout_ms": "500ms"}, "must be 1000 or more, not '500ms'"),
        ({"rack": "r" * 300}, "may have 255 characters at most"),
    ],
)
def test_settings_that_do_not_fit_together(values, text):
    assert text in problem(**NEEDED, **values)


def test_links_with_certificates():
    files = {"link_certificate_file": "/c", "link_key_file": "/k", "link_ca_file": "/a"}
    load(overrides={**NEEDED, **files, "link_check_host_names": False}, environ={})
