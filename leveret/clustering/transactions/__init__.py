"""Transactions over several nodes: decided in logs with replicas, so that no node is needed for it.

    ClusterDecider ── of the node whose client commits: draws numbers, asks for the decision
      └── DecisionPartitions ── where the decisions are: here (LedDecisions), or on another node
           └── PausedDecisions ── while one that is led here is handed over
    PartInquirer   ── of the node that leads a part: asks what became of it if nobody tells
    DecisionPlacing ── of the controller: the partitions of the decisions, and who has them

The parts themselves travel with what else clients do (see leveret.clustering.forwarding).
"""
