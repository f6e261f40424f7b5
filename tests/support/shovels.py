"""Shovels of a node that does not run: every one that is defined is said to be running."""

from __future__ import annotations

from leveret.features.shovels.parameters import COMPONENT


class SaidShovels:
    """`ShovelsOfCluster` by the parameters alone; `restarted` are those that were asked to."""

    def __init__(self, parameters):
        self._parameters = parameters
        self.restarted = []
        self.counts = {"starting": 0, "running": 2, "terminated": 1}
        self.forwarded = 7

    def rows_here(self):
        return [
            {
                "node": "leveret@test",
                "timestamp": "2026-01-01 9:00:00",
                "name": one.name,
                "vhost": one.vhost,
                "type": "dynamic",
                "state": "running",
                "src_uri": "amqp://",
                "dest_uri": "amqp://b",
                "src_queue": one.value["src-queue"],
                "dest_queue": one.value["dest-queue"],
                "forwarded": 5,
            }
            for one in self._parameters.select(component=COMPONENT)
        ]

    async def rows(self):
        return self.rows_here()

    def restart(self, vhost, name):
        self.restarted.append((vhost, name))
        return self._parameters.find(vhost, COMPONENT, name) is not None
