"""A broker as commands on groups take it for their node."""


class GroupContext:
    """Node of one broker in memory, for commands on groups."""

    def __init__(self, stage) -> None:
        self.broker = stage.broker
        self.groups = stage.broker.groups
        self.vhosts = stage.broker.vhosts
