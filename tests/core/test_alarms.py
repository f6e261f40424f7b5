import pytest

from leveret.core.alarms import Alarms, Resource


class Heard:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def alarm_changed(self, reason: str) -> None:
        self.reasons.append(reason)


def report(callback: object, error: Exception) -> None:
    raise AssertionError(callback) from error


@pytest.mark.covers("B-010")
def test_texts_name_memory_before_disk_and_end_empty() -> None:
    heard = Heard()
    alarms = Alarms([heard], report)
    alarms.set(Resource.DISK, low=True)
    alarms.set(Resource.MEMORY, low=True)
    alarms.set(Resource.DISK, low=False)
    alarms.set(Resource.MEMORY, low=False)
    assert heard.reasons == ["low on disk", "low on memory & disk", "low on memory", ""]


def test_only_a_change_is_told() -> None:
    heard = Heard()
    alarms = Alarms([heard], report)
    assert not alarms.set(Resource.MEMORY, low=False)
    assert alarms.set(Resource.MEMORY, low=True)
    assert not alarms.set(Resource.MEMORY, low=True)
    assert heard.reasons == ["low on memory"]


def test_a_watcher_that_raises_keeps_nobody_from_being_told() -> None:
    class Broken:
        def alarm_changed(self, reason: str) -> None:
            raise KeyError(reason)

    heard = Heard()
    reported: list[str] = []
    observed: list[bool] = []
    alarms = Alarms(
        [Broken(), heard],
        lambda _, error: reported.append(str(error)),
        lambda _, low: observed.append(low),
    )
    alarms.set(Resource.DISK, low=True)
    assert heard.reasons == ["low on disk"]
    assert observed == [True]
    assert reported == ["'low on disk'"]


def test_alarms_of_other_nodes_block_as_well():
    heard, observed = Heard(), []
    alarms = Alarms([heard], report, lambda resource, *, low: observed.append((resource, low)))
    assert alarms.set_elsewhere("other", frozenset([Resource.DISK]))
    assert not alarms.set_elsewhere("other", frozenset([Resource.DISK]))
    assert alarms.reason == "low on disk"
    assert alarms.low == []
    assert alarms.elsewhere == [("other", Resource.DISK)]
    alarms.set(Resource.DISK, low=True)
    assert heard.reasons == ["low on disk"]  # nothing has changed for clients
    assert alarms.set_elsewhere("other", frozenset())
    assert alarms.reason == "low on disk"
    alarms.set(Resource.DISK, low=False)
    assert not alarms.set_elsewhere("unknown", frozenset())
    assert heard.reasons == ["low on disk", ""]
    assert observed == [(Resource.DISK, True), (Resource.DISK, False)]  # of this node alone


def test_changes_of_this_node_are_told():
    told = []
    alarms = Alarms([], report)
    alarms.on_change = lambda: told.append(alarms.low)
    alarms.set_elsewhere("other", frozenset([Resource.DISK]))
    alarms.set(Resource.MEMORY, low=True)
    alarms.set(Resource.MEMORY, low=False)
    assert told == [[Resource.MEMORY], []]
