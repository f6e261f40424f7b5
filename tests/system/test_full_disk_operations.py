"""No room on the disk while an operator works: 503 with the reason, and nothing half done."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from leveret.mgmt_ui.control_client import request
from tests.harness.broker import MIB, BrokerProcess
from tests.harness.small_disk import fill_up, small_disk
from tests.support.http import HttpClient

pytestmark = pytest.mark.usefixtures("processes")

SETTINGS = {
    "disk_free_bytes_min": 0,
    "segment_bytes_max": MIB,
    "statistics_interval_ms": 1000,
    "alert_interval_ms": 200,
    "usage_interval_ms": 1000,
}
MESSAGES = 30
LEVERET = "/leveret/queues/%2F"


class Api(HttpClient):
    def __init__(self, broker):
        super().__init__(broker.addresses["http"] + "/api")

    def asked(self, method, path, **body):
        answer = self.request(method, path, json=body)
        assert answer.status_code < 300, (method, path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def publish(self, queue, body):
        return self.post(
            "/exchanges/%2F/amq.default/publish",
            json={
                "properties": {"delivery_mode": 2},
                "routing_key": queue,
                "payload": body,
                "payload_encoding": "string",
            },
        )

    def bodies(self, queue):
        page = self.get(f"{LEVERET}/{queue}/messages?limit=1000").json()
        return Counter(message["payload"][:10] for message in page["messages"])

    def names(self):
        return {row["name"] for row in self.get("/queues/%2F?columns=name").json()}


def refused(answer):
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"] == "service_unavailable"
    assert answer.json()["reason"]
    return answer.json()["reason"]


def fill_definitions(api):
    """Until SQLite has no page left to write to: it holds some in its journal."""
    for number in range(300):
        answer = api.put(f"/queues/%2F/{'filler' * 30}{number}", json={"durable": True})
        if answer.status_code >= 500:
            return
    raise AssertionError("there was room for everything")


@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_a_full_disk_refuses_and_leaves_everything_whole(tmp_path, ends):
    with (
        small_disk(tmp_path / "disk", 32 * MIB) as disk,
        BrokerProcess(disk / "data", log=tmp_path / "log", http=True, **SETTINGS) as broker,
    ):
        sent = Counter(f"{number:010d}" for number in range(MESSAGES))
        with Api(broker) as api:
            for name in ("a", "b", "c"):
                api.asked("PUT", f"/queues/%2F/{name}", durable=True)
            api.asked("POST", "/bindings/%2F/e/amq.topic/q/c", routing_key="key")
            for body in sorted(sent):
                assert api.publish("a", body + "x" * 30_000).json() == {"routed": True}
            ballast = fill_up(disk)
            fill_definitions(api)
            reasons = [
                refused(api.patch(f"{LEVERET}/c", json={"name": "renamed"})),
                refused(api.patch(f"{LEVERET}/b", json={"arguments": {"x-max-length": 100}})),
                refused(api.put(f"{LEVERET}/b/pause", json={})),
                refused(api.post(f"{LEVERET}/a/messages/move", json={"to_queue": "b"})),
            ]
            assert "full" in " ".join(reasons)
            assert api.bodies("a") == sent
            assert not api.bodies("b")
            time.sleep(2.5)  # statistics, usage and alerts have their turn
            assert api.get("/overview").status_code == 200
            assert request(broker.data / "control.sock", "node.diagnose", {})["ok"]
            ballast.unlink()
            moved = api.asked("POST", f"{LEVERET}/a/messages/move", to_queue="b")
            assert moved["moved"] == MESSAGES
            assert api.bodies("b") == sent
            if {"c", "renamed"} <= (names := api.names()) or not {"c", "renamed"} & names:
                raise AssertionError(names)
            api.asked("DELETE", f"{LEVERET}/b/pause")
            name = "renamed" if "renamed" in names else "c"
            api.asked("PATCH", f"{LEVERET}/{name}", name="again")
            audited = api.asked("GET", "/leveret/audit?limit=5")["rows"]
            assert audited[0]["operation"] == "queue.rename"
        getattr(broker, ends)()
        broker.start()
        with Api(broker) as api:
            assert api.bodies("b") == sent
            assert not api.bodies("a")
            assert "again" in api.names()
            assert not {"c", "renamed"} & api.names()
            bindings = api.get("/bindings/%2F").json()
            bound = [each["destination"] for each in bindings if each["source"] == "amq.topic"]
            assert bound == ["again"]
        broker.stop()
        broker.check_untroubled()


def test_a_stop_on_a_full_disk_says_what_it_could_not_write(tmp_path):
    with (
        small_disk(tmp_path / "disk", 32 * MIB) as disk,
        BrokerProcess(disk / "data", log=tmp_path / "log", http=True, **SETTINGS) as broker,
    ):
        with Api(broker) as api:
            api.asked("PUT", "/queues/%2F/a", durable=True)
            for number in range(MESSAGES):
                assert api.publish("a", f"{number:010d}" + "x" * 30_000).json() == {"routed": True}
        ballast = fill_up(disk)
        broker.stop()  # all that matters was written before
        assert "its next start will take a little longer" in broker.log()
        broker.start()
        with Api(broker) as api:
            fill_definitions(api)
        broker.terminate()
        assert broker.wait() == 1
        assert "stopped, and not all was written" in broker.log()
        assert "leveret.db: database or disk is full" in broker.log()
        assert "cannot start" not in broker.log()
        ballast.unlink()
        broker.start()
        with Api(broker) as api:
            assert api.bodies("a").total() == MESSAGES
        broker.check_untroubled()
