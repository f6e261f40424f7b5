"""The composition root: builds every part of a node, starts it, and stops it in order.

Each part is a context: entering starts it, leaving stops it. `node` enters them in order.
"""

from leveret.node.node import run

__all__ = ["run"]
