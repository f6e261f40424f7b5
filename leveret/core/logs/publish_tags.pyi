from typing import Protocol

class Publisher(Protocol):
    def refused(self, first: int, stop: int) -> None:
        """The publishes with the tags [first, stop) were not taken."""

class PublishTags:
    def add(self, publisher: Publisher, tag: int, index: int) -> None: ...
    def take(self) -> list[tuple[int, int, Publisher, int]]: ...
