import pytest

from leveret.core.alarms import Alarms, Resource


class Heard:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def alarm_changed(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.covers("B-010")
def test_texts_name_memory_before_disk_and_end_empty() -> None:
    heard = Heard()
    alarms = Alarms([heard])
    alarms.set(Resource.DISK, low=True)
    alarms.set(Resource.MEMORY, low=True)
    alarms.set(Resource.DISK, low=False)
    alarms.set(Resource.MEMORY, low=False)
    assert heard.reasons == ["low on disk", "low on memory & disk", "low on memory", ""]


def test_only_a_change_is_told() -> None:
    heard = Heard()
    alarms = Alarms([heard])
    assert not alarms.set(Resource.MEMORY, low=False)
    assert alarms.set(Resource.MEMORY, low=True)
    assert not alarms.set(Resource.MEMORY, low=True)
    assert heard.reasons == ["low on memory"]
