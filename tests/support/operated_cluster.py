"""A cluster for the routes and pages that are about one: it notes what is asked of it."""

from leveret.ports.cluster_figures import (
    BELOW_MIN_ISR,
    COPYING,
    NO_LEADER,
    STUCK,
    UNDER_REPLICATED,
    WELL,
    ClusterFigures,
    NodeCondition,
    NodeFigures,
    PartitionFigures,
)

STATUS = {
    "node": 1,
    "cluster": "c0ffee",
    "controller": 2,
    "coordinator": {"connected": True, "problem": None, "sequence": 17},
    "nodes": [
        {
            "node": node,
            "state": "up",
            "draining": False,
            "controller": node == 2,
            "rack": "rack <a>",
            "version": "leveret 1",
            "address": f"host-{node}:25672",
            "client_address": "",
            "incarnation": 0,
            "session": 1,
            "replicas": 2,
            "leaders": 1,
        }
        for node in (1, 2)
    ],
    "partitions": {"all": 3, "without_leader": 0, "below_min_isr": 0, "under_replicated": 1},
    "moves": 1,
}
PARTITION = {
    "vhost": "/",
    "queue": "orders",
    "type": "quorum",
    "partition": 0,
    "state": "under-replicated",
    "leader": 1,
    "replicas": [1, 2],
    "in_sync": [1],
    "epoch": 3,
}
MOVE = {
    "vhost": "/",
    "queue": "moving",
    "partition": 0,
    "from": [1, 2],
    "to": [1, 3],
    "state": "copying",
    "copied": 50,
    "records": 200,
}
LINK = {
    "node": 2,
    "dialed": True,
    "connected": True,
    "breaker": "closed",
    "bytes_sent": 1234,
    "bytes_received": 4321,
    "queued_bytes": 0,
    "failures": 0,
    "round_trip_ms": 0.25,
}
FIGURES = ClusterFigures(
    is_connected=True,
    is_controller=False,
    sequence=17,
    nodes=(
        NodeFigures(1, is_up=True, is_draining=False, is_reachable=True),
        NodeFigures(
            2,
            is_up=True,
            is_draining=True,
            is_reachable=False,
            condition=NodeCondition(frozenset(["disk"]), -3.5),
        ),
        NodeFigures(3, is_up=False, is_draining=False, is_reachable=False),
    ),
)
PARTITION_FIGURES = [
    PartitionFigures(WELL, is_led_here=True, is_replicated_here=True),
    PartitionFigures(UNDER_REPLICATED, is_led_here=False, is_replicated_here=True),
    PartitionFigures(UNDER_REPLICATED, is_led_here=False, is_replicated_here=False),
    PartitionFigures(BELOW_MIN_ISR, is_led_here=True, is_replicated_here=True),
    PartitionFigures(NO_LEADER, is_led_here=False, is_replicated_here=True),
]


class OperatedStandIn:
    """`ClusterAdministration` that changes nothing; `asked` are the changes that were wanted."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []
        self.critical_rows: list[dict] = []
        self.problems = [PARTITION]

    def status(self):
        return STATUS

    def partitions(self, *, problems, limit):
        return self.problems if problems else [PARTITION, {**PARTITION, "partition": 1}][:limit]

    def critical(self):
        return self.critical_rows

    async def moves(self):
        return [MOVE]

    def links(self):
        return [LINK]

    def figures(self):
        return FIGURES

    def partition_figures(self):
        return iter(PARTITION_FIGURES)

    def move_states(self):
        return iter([COPYING, STUCK])

    async def add(self, node):
        return self._note(3, "add", node)

    async def drain(self, node):
        return self._note({"moving": 3, "staying": 0}, "drain", node)

    async def undrain(self, node):
        self._note(None, "undrain", node)

    async def remove(self, node, *, force):
        return self._note(0, "remove", node, force)

    async def rebalance(self):
        return self._note(2, "rebalance")

    async def move(self, queue, partition, nodes):
        return self._note(1, "move", queue, partition, nodes)

    async def cancel_moves(self, queue, partition):
        return self._note(1, "cancel", queue, partition)

    async def elect(self, queue, partition, node):
        return self._note([{"partition": 0, "leader": node}], "elect", queue, partition, node)

    async def elect_unclean(self, queue, partition, node):
        return self._note([{"partition": 0, "leader": 2}], "unclean", queue, partition, node)

    def _note(self, result, *what):
        self.asked.append(what)
        return result
