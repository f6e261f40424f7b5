"""Contents of ZooKeeper: snapshots, znodes that others have put there, and who may read it."""

import asyncio
import secrets
from contextlib import contextmanager

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.security import make_digest_acl

from leveret.cluster.metadata import encoding, snapshots
from leveret.cluster.metadata.encoding import seal
from leveret.cluster.metadata.head import MetadataHead, encode_head
from leveret.errors import NewerFormatError
from leveret.ports.coordination import (
    CoordinatorError,
    CoordinatorSettingsError,
    CorruptZnodeError,
    KeyChange,
)
from leveret.zookeeper import ZooKeeperSettings, snapshot_writer
from leveret.zookeeper import coordinator as coordinator_module
from tests.support.waiting import eventually
from tests.support.zookeeper import Relay


@pytest.fixture
def shell(zookeeper, chroot):
    """A client of ZooKeeper with which somebody looks and writes by hand, below the chroot."""
    client = KazooClient(f"{zookeeper.address}/{chroot}")
    client.start_async().wait(60)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def often(monkeypatch):
    """Snapshots after ten changes, of which five are kept."""
    monkeypatch.setattr(snapshots, "CHANGES_MAX", 10)
    monkeypatch.setattr(snapshot_writer, "CHANGES_KEPT", 5)
    monkeypatch.setattr(snapshots, "CONTENT_BYTES_MAX", 2000)
    monkeypatch.setattr(coordinator_module, "RETRY_SECONDS", 0.2)


def batches(shell):
    return sorted(int(name) for name in shell.get_children("/leveret/changes"))


async def write_many(coordinator, count, first=0):
    for number in range(first, first + count):
        await coordinator.write([KeyChange(f"q/{number % 40}", secrets.token_bytes(100))])


def contents(coordinator):
    return {key: coordinator.entries[key] for key in coordinator.entries}


def parts_of_snapshot(shell):
    """Return the znodes of the only snapshot; none while another one replaces it."""
    names = shell.get_children("/leveret/snapshots")
    if len(names) != 1:
        return []
    try:
        return shell.get_children(f"/leveret/snapshots/{names[0]}")
    except NoNodeError:
        return []


async def test_snapshots_replace_the_changes_before_them(opened, shell, often):
    one = await opened(1)
    await write_many(one, 200)
    await eventually(lambda: batches(shell)[0] > 180 and len(batches(shell)) <= 20)
    await eventually(lambda: len(parts_of_snapshot(shell)) > 2)
    two = await opened(2)
    await one.catch_up()
    assert contents(two) == contents(one)
    assert two.sequence == one.sequence


async def test_a_node_that_lags_behind_the_trimmed_changes_gets_the_difference(
    opened, shell, zookeeper, often
):
    relay = Relay(zookeeper.port)
    await relay.start()
    one, two = await opened(1), await opened(2, relay.address)
    await write_many(one, 30)
    await one.write([KeyChange("q/gone", b"1"), KeyChange("q/stays", b"2")])
    await two.catch_up()
    copy = {key: entry.value for key, entry in contents(two).items()}
    told, seen = [], []

    def follow(sequence, changes):
        told.append(sequence)
        for key, value, _ in changes:
            copy.pop(key, None) if value is None else copy.update({key: value})
        seen.append(copy == {key: entry.value for key, entry in contents(two).items()})

    two.follow(follow)
    relay.cut()
    await one.write([KeyChange("q/gone", None)])
    behind = two.sequence
    await write_many(one, 60)
    await eventually(lambda: batches(shell)[0] > behind + 1)
    relay.pass_on()
    await eventually(lambda: two.is_connected)
    await two.catch_up()
    assert contents(two) == contents(one)
    assert "q/gone" not in two.entries
    assert told == sorted(set(told))
    assert all(seen)
    assert len(told) < one.sequence - behind  # some came as one difference
    await relay.close()


async def test_snapshots_and_writes_of_several_nodes_go_on_together(opened, shell, often):
    nodes = [await opened(node) for node in (1, 2, 3)]
    await asyncio.gather(*(write_many(each, 60, 7 * each.session) for each in nodes))
    await nodes[0].close()  # the controller: another one makes the snapshots
    await asyncio.gather(*(write_many(each, 60) for each in nodes[1:]))
    again = await opened(1)
    for each in nodes[1:]:
        await each.catch_up()
        assert contents(each) == contents(again)
    await eventually(lambda: len(batches(shell)) <= 20)


async def test_what_an_unfinished_snapshot_left_is_removed(opened, shell, often):
    one = await opened(1)
    name = "0000000000000001-0000000000000007"
    shell.create(f"/leveret/snapshots/{name}/0", b"x", makepath=True)
    await write_many(one, 15)
    await eventually(lambda: name not in shell.get_children("/leveret/snapshots"))
    await eventually(lambda: len(shell.get_children("/leveret/snapshots")) == 1)


GARBAGE = [b"", b"\0" * 10, b"not ours", seal(9, b"x"), secrets.token_bytes(300), seal(1, b"")]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("kind", ["head", "batch", "chunk"])
async def test_a_node_that_cannot_read_the_state_does_not_start(
    opened, shell, often, monkeypatch, kind, garbage
):
    one = await opened(1)
    monkeypatch.setattr(snapshots, "CHANGES_MAX", 10**6)  # none but the one that follows
    await write_many(one, 25)
    await one._snapshots.write()
    await write_many(one, 3)
    await one.close()
    (name,) = shell.get_children("/leveret/snapshots")
    path = {
        "head": "/leveret/head",
        "batch": f"/leveret/changes/{batches(shell)[-1]:016}",
        "chunk": f"/leveret/snapshots/{name}/1",
    }[kind]
    shell.set(path, garbage)
    with pytest.raises(CorruptZnodeError, match=f"the znode .*{path} is not what Leveret"):
        await opened(2)


async def test_a_running_node_says_what_it_cannot_read_and_goes_on_once_it_can(
    opened, shell, often, caplog
):
    one, two = await opened(1), await opened(2)
    await eventually(lambda: one.is_controller or two.is_controller)  # which is written down, too
    await one.catch_up()
    path = f"/leveret/changes/{one.sequence + 1:016}"
    shell.create(path, b"somebody's")
    with pytest.raises(CorruptZnodeError, match=path):
        await one.write([KeyChange("q/a", b"1")])
    shell.delete(path)
    await one.write([KeyChange("q/a", b"1")])
    good, _ = shell.get("/leveret/head")
    caplog.clear()
    shell.set("/leveret/head", b"garbage")
    await eventually(lambda: isinstance(two.failure, CorruptZnodeError))
    with pytest.raises(CorruptZnodeError, match="/leveret/head"):
        await two.write([KeyChange("q/a", b"2")])
    await asyncio.sleep(1)
    assert len([each for each in caplog.records if "cannot follow" in each.message]) == 2  # nodes
    shell.set("/leveret/head", good)
    await eventually(lambda: two.failure is None and one.failure is None)
    await two.write([KeyChange("q/a", b"3")])
    await one.catch_up()
    assert one.entries["q/a"].value == b"3"


async def test_a_damaged_batch_is_superseded_by_the_next_snapshot(opened, shell, often):
    """Nodes that have applied it have the state; one that starts waits for the snapshot."""
    one = await opened(1)
    await write_many(one, 3)
    shell.set(f"/leveret/changes/{one.sequence:016}", b"garbage")
    with pytest.raises(CorruptZnodeError):
        await opened(2)
    await write_many(one, 15)
    await eventually(lambda: shell.get_children("/leveret/snapshots"))
    two = await opened(2)
    await two.catch_up()
    await one.catch_up()
    assert contents(two) == contents(one)


async def test_a_missing_batch_or_layout_is_named(opened, shell):
    one = await opened(1)
    await write_many(one, 3)
    path = f"/leveret/changes/{one.sequence - 1:016}"
    shell.delete(path)
    with pytest.raises(CorruptZnodeError, match=f"{path} .* it is missing"):
        await opened(2)
    shell.delete("/leveret/changes", recursive=True)
    with pytest.raises(CorruptZnodeError, match="/leveret/changes"):
        await one.write([KeyChange("q/a", b"1")])


async def test_older_data_than_a_node_has_seen_are_refused(opened, shell):
    one = await opened(1)
    before, _ = shell.get("/leveret/head")
    await write_many(one, 3)
    shell.set("/leveret/head", before)
    await eventually(lambda: one.failure is not None)
    with pytest.raises(CoordinatorError, match="restored from a backup"):
        await one.write([KeyChange("q/a", b"1")])
    shell.set("/leveret/head", encode_head(MetadataHead(b"other cluster id", 100)))
    with pytest.raises(CoordinatorError, match="of another cluster"):
        await one.catch_up()


async def test_a_newer_layout_is_left_alone(opened, shell, monkeypatch):
    one = await opened(1)
    await one.close()
    monkeypatch.setattr(encoding, "VERSION", 2)
    newer = encode_head(MetadataHead(b"c" * 16, 100))
    monkeypatch.undo()
    shell.set("/leveret/head", newer)
    with pytest.raises(NewerFormatError, match=r"/leveret/head \(version 2\)"):
        await opened(1)
    assert shell.get("/leveret/head")[0] == newer


async def test_registrations_made_by_hand_are_reported_and_left_out(opened, shell, caplog):
    one = await opened(1)
    shell.create("/leveret/nodes/7", b"garbage")
    shell.create("/leveret/nodes/x", b"")
    await eventually(lambda: "/leveret/nodes/7 is not" in caplog.text)
    await eventually(lambda: "/leveret/nodes/x is not" in caplog.text)
    two = await opened(2)
    await eventually(lambda: set(one.nodes) == set(two.nodes) == {1, 2})
    assert caplog.text.count("/leveret/nodes/x is not") == 2  # once for each node
    with pytest.raises(CorruptZnodeError, match=r"/leveret/nodes/7 .* Delete it"):
        await opened(7)


async def test_a_registration_that_was_removed_is_made_again(opened, shell):
    one, two = await opened(1), await opened(2)
    shell.delete("/leveret/nodes/2")
    await eventually(lambda: shell.exists("/leveret/nodes/2") is not None)
    await eventually(lambda: two.is_connected and set(one.nodes) == {1, 2})
    shell.set("/leveret/nodes/2", b"garbage")
    await one.write([KeyChange("q/a", b"1")])
    shell.delete("/leveret/nodes/2")
    await eventually(lambda: shell.exists("/leveret/nodes/2") is not None)
    await eventually(lambda: two.is_connected and set(one.nodes) == {1, 2})


async def test_a_controller_that_cannot_be_read_is_named(opened, shell, often):
    one = await opened(1)
    shell.set("/leveret/controller", b"garbage")
    await eventually(lambda: one.failure is not None)
    assert "/leveret/controller is not what" in str(one.failure)
    shell.delete("/leveret/controller")
    await eventually(lambda: one.failure is None and one.is_controller)


async def test_znodes_belong_to_the_user_and_nobody_else_gets_in(opened, zookeeper, chroot):
    one = await opened(1, user="leveret", password="secret")
    await one.write([KeyChange("q/a", b"1")])
    client = KazooClient(zookeeper.address, auth_data={("digest", "leveret:secret")})
    client.start_async().wait(60)
    paths = ("", "/leveret", "/leveret/head", "/leveret/nodes/1", "/leveret/controller")
    rights = [client.get_acls(f"/{chroot}{path}")[0] for path in paths]
    client.stop()
    client.close()
    assert rights == [[make_digest_acl("leveret", "secret", all=True)]] * len(paths)
    with pytest.raises(CoordinatorSettingsError, match="refuses nobody"):
        await opened(2)
    with pytest.raises(CoordinatorSettingsError, match="refuses user 'leveret'"):
        await opened(2, user="leveret", password="wrong")
    await opened(2, user="leveret", password="secret")


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("", "should be host:port"),
        ("a,,b", "should be host:port"),
        ("a b:1/x", "should be host:port"),
        ("a:123456", "should be host:port"),
        ("a:1//x", "cannot be the path"),
        ("a:1/x/../y", "cannot be the path"),
        ("a:1/zookeeper", "cannot be the path"),
    ],
)
def test_addresses_that_cannot_be_right_are_refused(address, reason):
    with pytest.raises(CoordinatorSettingsError, match=reason):
        ZooKeeperSettings(address).check()


@pytest.mark.parametrize(
    ("address", "hosts", "chroot"),
    [
        ("a", "a", ""),
        ("a:1,b:2/", "a:1,b:2", ""),
        ("a:1,[::1]:2/x/y", "a:1,[::1]:2", "/x/y"),
        ("a:1/x/", "a:1", "/x"),
    ],
)
def test_the_chroot_follows_the_hosts(address, hosts, chroot):
    settings = ZooKeeperSettings(address)
    settings.check()
    assert (settings.hosts, settings.chroot) == (hosts, chroot)


@contextmanager
def refused(match):
    with pytest.raises(CoordinatorSettingsError, match=match):
        yield


def test_users_times_and_files_are_checked(tmp_path):
    with refused("a user without colon"):
        ZooKeeperSettings("a", user="u").check()
    with refused("a user without colon"):
        ZooKeeperSettings("a", user="u:v", password="p").check()
    with refused("1000 ms"):
        ZooKeeperSettings("a", session_timeout_ms=10).check()
