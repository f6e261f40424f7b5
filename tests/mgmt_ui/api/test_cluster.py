"""The node, its channels and its definitions, as the API shows them."""

import json

import pytest

from leveret.core.access.passwords import hash_password_as_rabbitmq
from tests.support.client import Client
from tests.support.site import Site


@pytest.fixture
def site(tmp_path):
    return Site(data_dir=tmp_path)


async def status(site, method, path, body=None, user="guest"):
    return (await site.ask(method, path, body, user)).status_code


async def test_the_cluster_is_given_a_name(site):
    assert await site.json("/api/cluster-name") == {"name": "leveret"}
    assert await status(site, "PUT", "/api/cluster-name", {"name": "orders"}) == 204
    assert await site.json("/api/cluster-name") == {"name": "orders"}
    assert (await site.json("/api/overview"))["cluster_name"] == "orders"
    assert await site.json("/api/global-parameters/cluster_name") == {
        "name": "cluster_name",
        "value": "orders",
    }
    for wrong in ({}, {"name": ""}, {"name": 5}):
        assert await status(site, "PUT", "/api/cluster-name", wrong) == 400


async def test_the_node(site):
    (row,) = await site.json("/api/nodes")
    assert (row["name"], row["running"], row["mem_alarm"]) == ("leveret@test", True, False)
    assert (await site.json("/api/nodes/leveret@test"))["name"] == row["name"]
    assert await status(site, "GET", "/api/nodes/other") == 404
    memory = (await site.json("/api/nodes/leveret@test/memory"))["memory"]
    assert memory["total"]["rss"] > 0
    relative = (await site.json("/api/nodes/leveret@test/memory/relative"))["memory"]
    assert relative["total"] == 100


async def test_what_one_node_answers(site):
    for path in ("version", "extensions", "feature-flags", "deprecated-features/used"):
        await site.json(f"/api/{path}")
    settings = await site.json("/api/config/effective")
    assert settings["frame_max"] == site.stage.configuration.frame_max
    assert await status(site, "POST", "/api/rebalance/queues") == 204
    assert await status(site, "DELETE", "/api/reset") == 400
    assert await status(site, "PUT", "/api/feature-flags/quorum_queue/enable", {}) == 204
    assert await status(site, "PUT", "/api/feature-flags/none/enable", {}) == 400
    for plugin in ("federation-links", "traces", "top"):
        assert await status(site, "GET", f"/api/{plugin}") == 404


async def test_logins_are_counted(site):
    await site.get("/api/whoami", "stranger")
    (row,) = await site.json("/api/auth/attempts/leveret@test")
    assert (row["auth_attempts"], row["auth_attempts_failed"]) == (2, 1)
    assert await site.json("/api/auth/attempts/leveret@test/source") == []


async def test_a_hash_as_definitions_have_it(site):
    answer = await site.ask("POST", "/api/auth/hash_password", {"password": "secret"})
    assert len(answer.json()["ok"]) == len(hash_password_as_rabbitmq("secret", b"salt"))
    assert await status(site, "GET", "/api/auth/hash_password/secret") == 404


async def test_replicas_of_a_quorum_queue(site):
    quorum = {"arguments": {"x-queue-type": "quorum"}, "durable": True}
    await site.ask("PUT", "/api/queues/%2F/r", quorum)
    await site.ask("PUT", "/api/queues/%2F/c", {})
    replicas = "/api/queues/quorum/%2F/r"
    (row,) = await site.json(f"{replicas}/status")
    assert (row["Node Name"], row["Raft State"]) == ("leveret@test", "leader")
    assert await status(site, "GET", "/api/queues/quorum/%2F/c/status") == 400
    assert await status(site, "GET", "/api/queues/quorum/%2F/none/status") == 404
    assert await status(site, "POST", f"{replicas}/replicas/add", {}) == 400
    assert await status(site, "DELETE", f"{replicas}/replicas/delete", {}) == 400
    on = "/api/queues/quorum/replicas/on/"
    assert await status(site, "POST", f"{on}leveret@test/grow", {}) == 204
    assert await status(site, "DELETE", f"{on}leveret@test/shrink", {}) == 400
    assert await status(site, "POST", f"{on}other/grow", {}) == 404


async def test_channels_and_consumers(site):
    client = Client(site.stage).open()
    client.declare("q")
    client.consume("q")
    (row,) = await site.json("/api/channels")
    name = row["name"].replace(" ", "%20")
    connection = row["connection_details"]["name"].replace(" ", "%20")
    assert await site.json(f"/api/connections/{connection}/channels") == [row]
    assert await site.json("/api/vhosts/%2F/channels") == [row]
    assert await site.json(f"/api/connections/{connection}/sessions") == []
    shown = await site.json(f"/api/channels/{name}")
    (consumer,) = await site.json("/api/consumers")
    assert shown.pop("consumer_details") == [consumer]
    assert (shown.pop("publishes"), shown.pop("deliveries")) == ([], [])
    assert shown == row
    assert consumer["queue"] == {"name": "q", "vhost": "/"}
    assert await site.json("/api/consumers/%2F") == [consumer]
    for path in ("channels/none", f"channels/{connection}%20(9)", "connections/none/channels"):
        assert await status(site, "GET", f"/api/{path}") == 404
    site.add_user("other", "management")
    assert await site.json("/api/channels", "other") == []
    assert await site.json("/api/consumers", "other") == []
    assert await status(site, "GET", f"/api/channels/{name}", user="other") == 404


async def test_queues_have_more_than_one_list(site):
    assert await site.json("/api/queues/detailed") == await site.json("/api/queues")


DOCUMENT = {"queues": [{"name": "d", "vhost": "/", "durable": True, "arguments": {}}]}


async def test_definitions_go_out_and_in(site):
    for path in ("definitions", "all-configuration"):
        assert await status(site, "POST", f"/api/{path}", DOCUMENT) == 204
        assert (await site.json(f"/api/{path}"))["queues"][0]["name"] == "d"
    (queue,) = (await site.json("/api/definitions/%2F"))["queues"]
    assert "vhost" not in queue
    alone = {"queues": [{"name": "e", "durable": True, "arguments": {}}]}
    assert await status(site, "POST", "/api/definitions/%2F", alone) == 204
    assert "e" in site.broker.vhosts["/"].queues
    assert await status(site, "GET", "/api/definitions/none") == 400
    assert await status(site, "POST", "/api/definitions/none", alone) == 404
    answer = await site.get("/api/definitions?download=mine.json")
    assert answer.headers["content-disposition"] == "attachment; filename=mine.json"
    assert await status(site, "GET", "/api/definitions?download=a%0Ab") == 400


async def test_a_form_brings_definitions(site):
    files = {"file": ("x.json", json.dumps(DOCUMENT)), "redirect": (None, "/")}
    answer = await site.get("/api/definitions", method="POST", files=files)
    assert answer.status_code == 204, answer.text
    assert "d" in site.broker.vhosts["/"].queues
    answer = await site.get("/api/definitions", method="POST", files={"other": "{}"})
    assert answer.status_code == 400


@pytest.mark.parametrize("said", [b"x", b"[" * 100_000, b"[]", b'{"users": [{"name": "x"}, 5]}'])
async def test_what_is_no_document(site, said):
    answer = await site.get("/api/definitions", method="POST", content=said)
    assert answer.status_code == 400
    assert answer.json()["error"] == "bad_request"


@pytest.mark.parametrize(
    "check",
    [
        "node-is-quorum-critical",
        "node-is-mirror-sync-critical",
        "metadata-store/initialized",
        "metadata-store/initialized/with-data",
        "below-node-connection-limit",
        "reached-target-cluster-size",
        "quorum-queues-without-elected-leaders/all-vhosts",
        "quorum-queues-without-elected-leaders/vhost/%2F/pattern/.*",
        "certificate-expiration/1/weeks",
    ],
)
async def test_checks_that_one_node_passes(site, check):
    assert (await site.json(f"/api/health/checks/{check}"))["status"] == "ok"


async def test_certificates_that_end(site, tmp_path):
    for period in ("x/weeks", "1/fortnights", "9999999/days"):
        path = f"/api/health/checks/certificate-expiration/{period}"
        assert await status(site, "GET", path) == 400
    file = tmp_path / "no.pem"
    file.write_bytes(b"nothing")
    site = Site(tls_certificate_file=file, tls_key_file=file)
    path = "/api/health/checks/certificate-expiration/1/days"
    assert await status(site, "GET", path) == 503


async def test_the_checks_of_before(site):
    assert await site.json("/api/aliveness-test/%2F") == {"status": "ok"}
    assert await status(site, "GET", "/api/aliveness-test/none") == 404
    assert await site.json("/api/healthchecks/node/leveret@test") == {"status": "ok"}
    assert await status(site, "GET", "/api/healthchecks/node/none") == 404
