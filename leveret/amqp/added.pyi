NAME_BYTES_MAX: int

class AddedField:
    def __init__(self, name: str) -> None: ...

class CountedFields(AddedField):
    def __init__(self, counts: dict[str, dict[int, int]]) -> None: ...

class PlacedFields(AddedField):
    def __init__(
        self, partition: int, offset_name: str, counts: dict[str, dict[int, int]]
    ) -> None: ...
