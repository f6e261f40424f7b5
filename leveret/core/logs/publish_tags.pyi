from typing import Protocol

class Publisher(Protocol):
    def refused(self, first: int, stop: int) -> None:
        """Nack the publishes with the tags [first, stop), which were not accepted."""

class PublishTags:
    def add(self, publisher: Publisher, tag: int, index: int) -> None: ...
    def take(self) -> list[tuple[int, int, Publisher, int]]: ...
    def add_run(self, publisher: Publisher, tag: int, first: int, stop: int) -> None: ...
