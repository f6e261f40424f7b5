from dataclasses import replace

from leveret.node.peer_addresses import PeerAddresses
from leveret.ports.coordination import NodeRegistration
from tests.memory_coordinator import MemoryEnsemble


class DialedAddresses:
    """Links that note what they are told."""

    def __init__(self):
        self.addresses = {}
        self.cleared = []

    def set_address(self, node, host, port):
        self.addresses[node] = host, port

    def clear_address(self, node):
        self.addresses.pop(node, None)
        self.cleared.append(node)


def following(own=1):
    ensemble, links = MemoryEnsemble(), DialedAddresses()
    coordinator = ensemble.open(NodeRegistration(own, "host1:1", "", f"directory {own}"))
    addresses = PeerAddresses(own, coordinator, links)
    addresses.start()
    return ensemble, links, addresses


def registration(node, address):
    return NodeRegistration(node, address, "", f"directory {node}")


def test_nodes_that_are_there_are_dialed_and_others_are_not():
    ensemble, links, _ = following()
    assert not links.addresses  # a node does not dial itself
    two = ensemble.open(registration(2, "host2:10"))
    ensemble.open(registration(3, "[::1]:20"))
    assert links.addresses == {2: ("host2", 10), 3: ("::1", 20)}
    two.lose_connection()
    two.expire()
    assert links.addresses == {3: ("::1", 20)}


def test_a_node_that_has_begun_anew_is_dialed_anew():
    ensemble, links, _ = following()
    two = ensemble.open(registration(2, "host2:10"))
    before = links.cleared.count(2)
    ensemble.open(registration(3, "host3:10"))
    assert links.cleared.count(2) == before
    # As where one write replaces the registration of a process that was killed.
    two.registration = replace(two.registration, session=two.registration.session + 1)
    ensemble.tell_nodes()
    assert links.cleared.count(2) == before + 1
    assert links.addresses[2] == ("host2", 10)


def test_an_address_that_is_none_is_told_and_not_dialed(caplog):
    ensemble, links, _ = following()
    for node, address in enumerate(("", "host", "host:port", "::1", "host:0"), 2):
        ensemble.open(registration(node, address))
        assert f"node {node} cannot be dialed at {address!r}" in caplog.text
    assert not links.addresses


def test_nobody_is_dialed_after_the_end():
    ensemble, links, addresses = following()
    addresses.end()
    ensemble.open(registration(2, "host2:10"))
    assert not links.addresses
