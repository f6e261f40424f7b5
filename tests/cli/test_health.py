"""`leveret health --in-sync`, by what a node answers."""

import pytest

from leveret.cli import health
from leveret.errors import StorageError

SERVES = {"ok": True, "result": {"serving": True, "alarms": []}}
OTHER = {"is_this": False, "is_live": True, "is_in_sync": True, "reason": ""}


def own(**facts):
    return {"is_this": True, "is_live": True, "is_in_sync": True, "reason": "why", **facts}


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([OTHER, own()], ""),
        ([OTHER, own(is_in_sync=False)], "the node is not in sync: why"),
        ([OTHER, own(is_live=False)], "the node is not in sync: why"),
        ([OTHER], "the node is not in sync: it is no member yet"),
        ("nonsense", "the node's answer was not understood"),
    ],
)
def test_a_node_is_in_sync_if_it_is_live_and_says_so(monkeypatch, capsys, tmp_path, nodes, told):
    answers = {"node.health": SERVES, "cluster.nodes": {"ok": True, "result": nodes}}
    monkeypatch.setattr(health, "request", lambda _, operation, *__, **___: answers[operation])
    assert health.probe(tmp_path, 1, as_json=False, in_sync=True) == (1 if told else 0)
    assert told in capsys.readouterr().err


def test_a_node_that_does_not_answer_the_second_time_is_not_in_sync(monkeypatch, capsys, tmp_path):
    def request(_, operation, *__, **___):
        if operation == "node.health":
            return SERVES
        raise StorageError("it hung up")

    monkeypatch.setattr(health, "request", request)
    assert health.probe(tmp_path, 1, as_json=False, in_sync=True) == 1
    assert "it hung up" in capsys.readouterr().err
