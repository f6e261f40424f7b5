NAME_BYTES_MAX: int

class AddedField:
    def __init__(self, name: str) -> None: ...

class CountedField(AddedField):
    def __init__(self, name: str, counts: dict[int, int]) -> None: ...
