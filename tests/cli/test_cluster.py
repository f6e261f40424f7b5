"""`leveret cluster …`: what is asked of the node, and what is shown of its answers."""

import json

import pytest
from typer.testing import CliRunner

from leveret.cli import cluster
from leveret.cli.app import app

NODE = {
    "node": 1,
    "state": "up",
    "draining": False,
    "controller": True,
    "rack": "a",
    "version": "leveret 1",
    "incarnation": 0,
    "replicas": 2,
    "leaders": 1,
}
STATUS = {
    "node": 1,
    "cluster": "c0ffee",
    "controller": 1,
    "coordinator": {"connected": True, "problem": None, "sequence": 17},
    "nodes": [NODE],
    "partitions": {"all": 2, "without_leader": 0, "below_min_isr": 0, "under_replicated": 1},
    "moves": 1,
}
PARTITION = {
    "vhost": "/",
    "queue": "orders",
    "partition": 0,
    "state": "under-replicated",
    "leader": 1,
    "replicas": [1, 2],
    "in_sync": [1],
    "epoch": 3,
}
MOVE = {
    "vhost": "/",
    "queue": "orders",
    "partition": 0,
    "from": [1, 2],
    "to": [1, 3],
    "state": "copying",
    "copied": 50,
    "records": 200,
}


class Node:
    """A node that answers as it is told; an answer in a list comes once."""

    def __init__(self) -> None:
        self.asked = []
        self.answers = {
            "cluster.status": STATUS,
            "cluster.moves": [MOVE],
            "cluster.partitions": [PARTITION],
        }

    def ask(self, operation, /, **parameters):
        self.asked.append((operation, parameters))
        return self.answers.get(operation)


@pytest.fixture
def node(monkeypatch):
    node = Node()
    monkeypatch.setattr(cluster, "ask", node.ask)
    monkeypatch.setattr(cluster, "POLL_SECONDS", 0)
    return node


def run(*arguments, status=0):
    result = CliRunner().invoke(app, ["cluster", *arguments])
    assert result.exit_code == status, result.output
    return result.output


def test_status_shows_nodes_partitions_and_moves(node):
    lines = [" ".join(line.split()) for line in run("status").splitlines()]
    for expected in (
        "ZooKeeper: connected, change 17",
        "partitions: 2: 0 without leader, 0 below min-isr, 1 under-replicated",
        "1 up yes a leveret 1 0 2 1",
        "/ orders 0 under-replicated 1 1,2 1",
        "/ orders 0 1,2 1,3 copying 25 % of 200",
    ):
        assert expected in lines


def test_status_fails_while_publishes_are_refused(node):
    counts = {**STATUS["partitions"], "without_leader": 1}
    node.answers["cluster.status"] = {**STATUS, "partitions": counts}
    found = json.loads(run("status", "--json", status=1))
    assert found["partitions"] == counts
    assert found["moves"] == [MOVE]
    assert found["problems"] == [PARTITION]


def test_status_waits_until_replicas_are_in_sync(node, monkeypatch):
    whole = {**STATUS, "partitions": {**STATUS["partitions"], "under_replicated": 0}}
    away = {**whole, "coordinator": {**STATUS["coordinator"], "connected": False}}
    left = [STATUS, away, whole]

    def ask(name, **_):
        return left.pop(0) if name == "cluster.status" else []

    monkeypatch.setattr(cluster, "ask", ask)
    assert "0 under-replicated" in run("status", "--in-sync-within", "60")
    assert left == []


@pytest.mark.parametrize("connected", [True, False])
def test_status_fails_if_replicas_are_not_in_sync_in_time(node, connected):
    counts = {**STATUS["partitions"], "under_replicated": int(connected)}
    coordinator = {**STATUS["coordinator"], "connected": connected}
    node.answers["cluster.status"] = {**STATUS, "partitions": counts, "coordinator": coordinator}
    run("status", status=int(not connected))
    run("status", "--in-sync-within", "0", status=1)


def test_a_move_is_begun_and_cancelled(node):
    node.answers |= {"cluster.move": 1, "cluster.cancel_moves": 2}
    assert run("move", "orders", "--to", "1,3") == "queue 'orders' moves: 1 partition moves\n"
    queue = {"vhost": "/", "name": "orders", "partition": None}
    assert node.asked == [("cluster.move", {**queue, "nodes": [1, 3]})]
    assert run("move", "orders", "--cancel") == "2 moves ended\n"
    assert node.asked[-1] == ("cluster.cancel_moves", queue)
    assert "either --to or --cancel" in run("move", "orders", status=2)
    assert "no list of nodes" in run("move", "orders", "--to", "1;3", status=2)


def test_moves_are_waited_for(node, monkeypatch):
    node.answers["cluster.rebalance"] = 2
    left = [[MOVE, MOVE], [MOVE, MOVE], [MOVE], []]
    monkeypatch.setattr(
        cluster, "ask", lambda name, **_: 2 if name == "cluster.rebalance" else left.pop(0)
    )
    assert run("rebalance", "--wait") == "the cluster is balanced: 2 partitions move\n"
    assert left == []


def test_moves_that_cannot_go_on_are_not_waited_for(node):
    node.answers |= {"cluster.add": 1, "cluster.moves": [{**MOVE, "state": "stuck"}]}
    assert "cannot go on" in run("add", "3", "--wait", status=1)


def test_a_drain_says_what_stays(node):
    node.answers["cluster.drain"] = {"moving": 3, "staying": 2}
    shown = run("drain", "3")
    assert "no other node can take 2 replicas" in shown
    assert "node 3 is drained: 3 partitions move" in shown
    run("undrain", "3")
    node.answers["cluster.remove"] = 2
    assert "2 replicas on it were given up" in run("remove", "3", "--force")
    assert node.asked[-1] == ("cluster.remove", {"number": 3, "force": True})


def test_an_unclean_election_warns(node):
    node.answers["cluster.elect"] = [{"partition": 0, "leader": 2}]
    assert "are lost" not in run("elect", "orders", "--node", "2")
    assert "confirmed messages that only other nodes have are lost" in run(
        "elect", "orders", "--unclean"
    )
    asked = {"vhost": "/", "name": "orders", "partition": None, "number": None, "unclean": True}
    assert node.asked[-1] == ("cluster.elect", asked)


def test_a_status_without_zookeeper_is_no_good_one(node):
    lost = {"connected": False, "problem": None, "sequence": 17}
    node.answers["cluster.status"] = {**STATUS, "coordinator": lost}
    shown = run("status", status=1)
    assert "ZooKeeper: not connected" in shown
    assert "no connection with ZooKeeper: what is shown is the last that it knew" in shown
    run("status", "--json", status=1)


def test_what_hangs_on_a_node_is_shown(node):
    critical = {name: PARTITION[name] for name in ("vhost", "queue", "partition", "in_sync")}
    node.answers["cluster.critical"] = [{**critical, "type": "quorum", "replicas": [1, 2]}]
    assert "orders  0          quorum" in run("critical", status=1)
    assert json.loads(run("critical", "--json", status=1))[0]["queue"] == "orders"
    node.answers["cluster.critical"] = []
    assert run("critical") == "this node can be stopped: no partition hangs on it\n"
    assert json.loads(run("critical", "--json")) == []
