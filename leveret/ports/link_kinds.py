"""Kinds of what the nodes of a cluster send each other over links: numbers of the protocol."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ASK_OUTCOME",
    "ASK_SCHEDULES",
    "CHANGE_DEFINITIONS",
    "DEFINITIONS_APPLIED",
    "FORWARD",
    "FORWARD_HTTP",
    "HAND_OVER",
    "LED_FIGURES",
    "LOG_ENDS",
    "NODE_ALARMS",
    "READ_CLOCK",
    "REPLICATE",
    "RUN_COMMAND",
    "RUN_COMMAND_AT_LEADER",
]

# Streams.
REPLICATE: Final = 1  # a follower's requests to a leader, and the answers
FORWARD: Final = 3  # what clients of one node do with a partition that the other one leads
FORWARD_HTTP: Final = 10  # a request of an HTTP client about messages that the other one leads

# Requests.
CHANGE_DEFINITIONS: Final = 2  # a change that the controller is to make
RUN_COMMAND: Final = 4  # an administrative command that the controller is to perform
ASK_OUTCOME: Final = 5  # questions about transactions: for a decision, or what became of a part
RUN_COMMAND_AT_LEADER: Final = 6  # a command about messages of a partition that the other one leads
LED_FIGURES: Final = 7  # a page of figures of the partitions that the other one leads
HAND_OVER: Final = 8  # a partition that the other node leads, to a third one
LOG_ENDS: Final = 9  # how far the other node's replicas of partitions have come
READ_CLOCK: Final = 13  # the time of day of the other node
ASK_SCHEDULES: Final = 14  # about delayed messages that the other one leads

# Messages.
DEFINITIONS_APPLIED: Final = 1  # how far a node has applied what the coordinator has
NODE_ALARMS: Final = 12  # which resources of a node are low
