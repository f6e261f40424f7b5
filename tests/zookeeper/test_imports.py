"""A node alone needs neither ZooKeeper with its client, nor links, nor replication."""

import subprocess
import sys

IMPORTS = """
import sys
import leveret.cli.app, leveret.node.node
PARTS = ("kazoo", "leveret.zookeeper", "leveret.links", "leveret.replication")
print([name for name in sys.modules if name.startswith((*PARTS, "leveret.node.cluster"))])
"""


def test_a_node_alone_does_not_import_what_a_cluster_needs():
    found = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert found.stdout == "[]\n", found.stderr
