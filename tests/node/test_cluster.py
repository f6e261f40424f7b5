"""A node as one of a cluster, with a real ZooKeeper and real links, several in one process."""

import asyncio
import contextlib
import secrets

import pytest

from leveret.cluster.partition_state import Member, PartitionState
from leveret.cluster.replication.leader import ReplicationLimits
from leveret.config import Configuration, ConfigurationError
from leveret.errors import LeveretError, StorageError
from leveret.links.errors import PeerUnavailableError
from leveret.links.tls import LinkCertificateError
from leveret.node.cluster import open_cluster
from leveret.node.process import Process
from leveret.ports import Durability
from leveret.ports.coordination import (
    CoordinatorSettingsError,
    CoordinatorUnavailableError,
    KeyChange,
    NodeIdTakenError,
)
from leveret.replication.replica import PartitionReplica
from leveret.replication.replicator import PARTITIONS_PREFIX
from leveret.storage.lock import DirectoryLock
from tests.links.certificates import Authority
from tests.links.nodes import QUICK
from tests.storage.harness import abandon, make_store
from tests.support.waiting import eventually
from tests.support.zookeeper import running_zookeeper

HELLO = 40_000  # a kind of request
BOOT = "the machine's first start"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper") / "server") as server:
        yield server


class Site:
    """Data directories and settings of the nodes of one cluster."""

    def __init__(self, directory, address):
        self.directory = directory
        self.address = f"{address}/{secrets.token_hex(4)}"
        self.secret = self.file("secret", "the secret of all the nodes\n")

    def file(self, name, content, mode=0o600):
        path = self.directory / name
        path.write_text(content)
        path.chmod(mode)
        return path

    def configuration(self, number, **values):
        settings = {
            "cluster": self.address,
            "node_id": number,
            "advertise": "localhost",
            "link_host": "localhost",
            "link_port": 0,
            "cluster_secret_file": self.secret,
            "data_dir": self.directory / f"node-{number}",
            "zookeeper_session_timeout_ms": 1000,
            "zookeeper_connect_timeout_ms": 5000,
        }
        return Configuration(**{**settings, **values})

    @contextlib.asynccontextmanager
    async def joined(self, number, boot=BOOT, **values):
        """A node of the cluster that has not been started yet."""
        configuration = self.configuration(number, **values)
        configuration.data_dir.mkdir(exist_ok=True)
        with DirectoryLock(configuration.data_dir):
            async with asyncio.TaskGroup() as tasks:
                process = Process(configuration, tasks)
                opened = open_cluster(process, boot_id=lambda: boot, link_settings=QUICK)
                async with opened as membership:
                    membership.process = process
                    yield membership
                process.cancel_tasks()

    @contextlib.asynccontextmanager
    async def running(self, number, **values):
        """A node of the cluster that answers others."""

        async def greet(peer, payload):
            return b"%d: hello %d, %b" % (number, peer.node, payload)

        async with self.joined(number, **values) as membership:
            membership.requests[HELLO] = greet
            membership.start()
            yield membership

    async def refusal(self, number, **values):
        """The error with which a node refuses to start."""
        with pytest.raises(ExceptionGroup) as caught:
            async with self.joined(number, **values):
                pass
        (error,) = caught.value.exceptions
        assert isinstance(error, LeveretError)
        return error


@pytest.fixture
def site(zookeeper, tmp_path):
    return Site(tmp_path, zookeeper.address)


async def greeting(membership, node):
    peer = membership.links.peer(node)
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PeerUnavailableError):
                return bytes(await peer.request(HELLO, b"you", timeout_s=60))
            await asyncio.sleep(0.01)


async def test_nodes_find_each_other(site):
    async with site.running(1, rack="north", port=5999) as one, site.running(2) as two:
        await eventually(lambda: len(one.coordinator.nodes) == 2)
        assert await greeting(one, 2) == b"2: hello 1, you"
        assert await greeting(two, 1) == b"1: hello 2, you"
        told = two.coordinator.nodes[1]
        assert (told.rack, told.client_address) == ("north", "localhost:5999")
        assert told.peer_address.startswith("localhost:")
        assert told.software.startswith("leveret ")
        identity = one.links.peer(2).identity
        assert identity.cluster == one.coordinator.cluster_id == two.coordinator.cluster_id
        assert identity.session == two.coordinator.session == told.session


async def test_others_wait_until_a_node_has_its_handlers(site):
    async with site.running(1) as one, site.joined(2) as two:
        await eventually(lambda: 2 in one.coordinator.nodes)

        async def answer(_peer, _payload):
            return b"late"

        asking = one.process.loop.create_task(greeting(one, 2))
        await asyncio.sleep(0.1)
        two.requests[HELLO] = answer
        assert not asking.done()
        two.start()
        assert await asking == b"late"


async def test_a_node_that_was_killed_comes_back_at_once_as_the_same_member(site):
    async with site.running(1) as one:
        async with site.running(2) as two:
            before = two.member, two.coordinator.session
            assert await greeting(one, 2)
            peer = one.links.peer(2)
        await eventually(lambda: 2 not in one.coordinator.nodes)
        assert not peer.is_connected
        async with site.running(2) as two:
            assert (two.member, two.coordinator.session) == (before[0], before[1] + 1)
            assert await greeting(one, 2)
            assert one.links.peer(2) is peer


async def test_each_start_of_the_machine_is_another_incarnation(site):
    found = []
    for boot in ("a", "a", "b", "b", "", ""):
        async with site.joined(7, boot=boot) as membership:
            assert membership.coordinator.nodes[7].incarnation == membership.member.incarnation
            found.append(membership.member)
    assert found == [Member(7, number) for number in (0, 0, 1, 1, 2, 3)]


async def test_another_secret_is_refused_and_the_log_says_what_to_do(site, caplog):
    other = site.file("other", "the secret of some other nodes")
    async with site.running(1) as one, site.running(2, cluster_secret_file=other) as two:
        await eventually(lambda: caplog.text.count("no link with node") >= 2)
        assert not one.links.peer(2).is_connected
        assert not two.links.peer(1).is_connected
    assert "the nodes have different cluster secrets, give them the same" in caplog.text
    assert "the secret of" not in caplog.text


async def test_a_secret_that_could_be_guessed_or_read_is_refused(site):
    short = site.file("short", "fifteen bytes..\n")
    text = str(await site.refusal(1, cluster_secret_file=short))
    assert "needs 16 bytes or more; `openssl rand -hex 32` makes one" in text
    public = site.file("public", "the secret of all the nodes", 0o644)
    assert "`chmod 600` it" in str(await site.refusal(1, cluster_secret_file=public))
    long = site.file("long", "x" * 5000)
    assert "more than 4096 bytes" in str(await site.refusal(1, cluster_secret_file=long))
    none = site.directory / "none"
    error = await site.refusal(1, cluster_secret_file=none)
    assert isinstance(error, ConfigurationError)
    assert str(error) == (
        f"cannot read the cluster's secret {none}: No such file or directory "
        "(setting 'cluster_secret_file')"
    )


async def test_without_zookeeper_a_node_does_not_start(site):
    error = await site.refusal(1, cluster="127.0.0.1:1/x", zookeeper_connect_timeout_ms=300)
    assert isinstance(error, CoordinatorUnavailableError)
    assert "ZooKeeper at 127.0.0.1:1 has not answered for 0.3 s" in str(error)
    assert "the node does not start until it does" in str(error)


async def test_an_id_that_another_node_has_is_refused(site):
    async with site.running(1) as one:
        error = await site.refusal(1, data_dir=site.directory / "elsewhere")
        assert isinstance(error, NodeIdTakenError)
        assert f"belongs to {one.coordinator.nodes[1].peer_address}" in str(error)
        assert "give each node an id of its own" in str(error)


async def test_a_node_whose_id_was_taken_stops(site, caplog):
    async with site.running(1) as first:
        (site.directory / "copy").mkdir()
        for name in ("node.json",):
            (site.directory / "copy" / name).write_bytes(
                (site.directory / "node-1" / name).read_bytes()
            )
        async with site.running(1, data_dir=site.directory / "copy"):
            async with asyncio.timeout(60):
                await first.process.stopping.wait()
    assert "the node stops: the node id 1 belongs to another process" in caplog.text


async def test_an_empty_data_directory_is_not_taken_for_the_one_with_the_data(site):
    async with site.joined(1):
        pass
    error = await site.refusal(1, data_dir=site.directory / "replaced")
    assert isinstance(error, StorageError)
    assert "is not the data directory that node 1 had in this cluster" in str(error)
    async with site.joined(1) as again:
        assert again.coordinator.session == 3  # the refused one had registered


async def test_data_of_another_cluster_are_refused(site):
    async with site.joined(1) as one:
        cluster = one.coordinator.cluster_id
    error = await site.refusal(1, cluster=f"{site.address}-other")
    assert f"has the data of cluster {cluster}, and ZooKeeper has cluster" in str(error)


async def test_data_of_another_node_are_refused(site):
    async with site.joined(1):
        pass
    error = await site.refusal(2, data_dir=site.directory / "node-1")
    assert "is the data directory of node 1, and this is node 2" in str(error)


async def test_a_port_for_links_that_is_taken_is_named(site):
    async with site.joined(1) as one:
        port = int(one.coordinator.nodes[1].peer_address.rpartition(":")[2])
        error = await site.refusal(2, link_port=port)
    assert f"cannot listen for other nodes on localhost:{port}: Address already in use" in str(
        error
    )
    assert "choose another one (link_host, link_port)" in str(error)


async def test_a_failed_start_leaves_nothing_listening(site):
    async with site.joined(1) as one:
        port = int(one.coordinator.nodes[1].peer_address.rpartition(":")[2])
    await site.refusal(1, link_port=port, data_dir=site.directory / "replaced")
    async with site.joined(1, link_port=port) as again:
        assert again.coordinator.nodes[1].peer_address == f"localhost:{port}"


async def test_an_advertised_port_is_told_instead_of_the_own(site):
    async with site.joined(1, advertise="[::1]:4000", port=0) as one:
        told = one.coordinator.nodes[1]
        assert (told.peer_address, told.client_address) == ("[::1]:4000", "")


async def test_a_node_that_stops_dials_nobody_any_more(site):
    async with site.running(1) as one:
        await one.close()
        async with site.running(2):
            await eventually(lambda: 2 in one.coordinator.nodes)
            assert not one.links.figures()


async def test_links_with_certificates(site):
    authority = Authority(site.directory / "ca")

    def certificate(name):
        files = authority.node(name)
        return {
            "link_certificate_file": files.certificate,
            "link_key_file": files.key,
            "link_ca_file": files.authority,
        }

    async with (
        site.running(1, **certificate("one")) as one,
        site.running(2, **certificate("two")) as two,
        site.running(3) as open_one,
    ):
        assert await greeting(one, 2) == b"2: hello 1, you"
        await eventually(lambda: two.links.peer(3).counters.failures)
        assert not two.links.peer(3).is_connected
        assert not open_one.links.peer(1).is_connected


async def test_certificates_that_cannot_be_used_are_named(site):
    nothing = site.file("nothing.pem", "nothing")
    names = ("link_certificate_file", "link_key_file", "link_ca_file")
    error = await site.refusal(1, **dict.fromkeys(names, nothing))
    assert isinstance(error, LinkCertificateError)
    assert str(nothing) in str(error)


async def test_a_user_of_zookeeper(site):
    user = site.file("user", "leveret:a pass:word\n")
    async with site.joined(1, zookeeper_credentials_file=user):
        pass
    error = await site.refusal(1)
    assert isinstance(error, CoordinatorSettingsError)
    assert "ZooKeeper refuses nobody, without a user" in str(error)
    wrong = site.file("wrong", "leveret\n")
    assert "it has one line, user:password" in str(
        await site.refusal(1, zookeeper_credentials_file=wrong)
    )


async def test_tls_with_zookeeper_needs_its_files(site):
    error = await site.refusal(1, zookeeper_tls=True, zookeeper_ca_file=site.directory / "none.pem")
    assert f"the file {site.directory / 'none.pem'} for TLS to ZooKeeper is missing" in str(error)


async def test_the_controller_elects_the_leader_of_a_partition(site):
    async with site.running(1) as one, site.running(2) as two:
        both = frozenset({one.member, two.member})
        key = f"{PARTITIONS_PREFIX}i1/0"
        await one.coordinator.write([KeyChange(key, PartitionState((2, 1), both).to_bytes())])

        def state():
            return PartitionState.from_bytes(one.coordinator.entries[key].value)

        await eventually(lambda: state().leader == 2)
        assert state().leader_session == two.coordinator.session


@pytest.mark.parametrize("starts_first", [True, False])
async def test_who_leads_a_partition_is_told(site, starts_first):
    key, changed = "i1/0", []
    async with site.joined(1) as one:
        one.leadership_changed = changed.append
        if starts_first:
            one.start()
        store = make_store(site.directory / "logs")
        log = store.open("/", "orders", "i1", 0, Durability.FSYNC, has_replicas=True)
        limits = ReplicationLimits(1500, 1)
        one.replicator.add(PartitionReplica(key, key, log, limits, asyncio.Event().wait))
        state = PartitionState((1,), frozenset({one.member}), 1, one.coordinator.session, 1)
        await one.coordinator.write([KeyChange(PARTITIONS_PREFIX + key, state.to_bytes())])
        if not starts_first:
            assert not changed
            one.start()
        assert one.replicator.led(key) is not None
        assert changed == [key]
        abandon(store)


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.OS])
async def test_who_may_have_lost_messages_is_elected_only_if_they_were_flushed(site, durability):
    key = f"{PARTITIONS_PREFIX}i1/0"
    async with site.joined(1, durability=durability) as one:
        asked = []
        decide = one.survives_power_loss
        one.survives_power_loss = lambda each: asked.append(each) or decide(each)
        earlier = Member(1, one.member.incarnation + 1)
        state = PartitionState((1,), frozenset({earlier}))
        await one.coordinator.write([KeyChange(key, state.to_bytes())])
        one.start()
        await eventually(lambda: asked.count("i1/0") >= 2)
        leader = PartitionState.from_bytes(one.coordinator.entries[key].value).leader
        assert leader == (1 if durability is Durability.FSYNC else None)
