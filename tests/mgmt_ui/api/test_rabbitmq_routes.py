"""Every route of RabbitMQ's HTTP API is asked, and none of ours goes unlisted.

B12 of what is promised, written out: a line for each method and path, with the status that an
administrator's request gets where everything named in the path is there. What the answers say is
looked at in the neighbouring files.
"""

import json
import re

from tests.mgmt_ui.api.test_rights import ROUTES
from tests.support.client import Client
from tests.support.shovels import SaidShovels
from tests.support.site import Site

# Method, path with the names that the fixture fills, status, and the body where one is needed.
ASKED = """
GET overview 200
GET cluster-name 200
PUT cluster-name 204 {"name": "c"}
GET nodes 200
GET nodes/{node} 200
GET nodes/{node}/memory 200
GET nodes/{node}/memory/relative 200
GET extensions 200
GET whoami 200
GET version 200
GET config/effective 200
POST rebalance/queues 204
POST reset 400
DELETE reset 400
POST reset/{node} 400
DELETE reset/{node} 400
GET auth 200
GET auth/attempts/{node} 200
DELETE auth/attempts/{node} 400
GET auth/attempts/{node}/source 200
DELETE auth/attempts/{node}/source 400
GET auth/hash_password/secret 404
POST auth/hash_password 200 {"password": "secret"}
GET definitions 200
POST definitions 204 {}
GET definitions/v 200
POST definitions/v 204 {}
GET all-configuration 200
POST all-configuration 204 {}
GET connections 200
GET connections/{connection} 200
DELETE connections/{connection} 204
GET connections/username/guest 200
DELETE connections/username/guest 204
GET connections/{connection}/channels 200
GET connections/{connection}/sessions 200
GET vhosts/v/connections 200
GET vhosts/v/channels 200
GET channels 200
GET channels/{channel} 200
GET consumers 200
GET consumers/%2F 200
GET exchanges 200
GET exchanges/v 200
GET exchanges/v/e 200
PUT exchanges/v/new 201 {"type": "direct"}
DELETE exchanges/v/e 204
DELETE exchanges/v/e?if-unused=true 400
GET exchanges/v/e/bindings/source 200
GET exchanges/v/e/bindings/destination 200
GET queues 200
GET queues/detailed 200
GET queues/v 200
GET queues/v/q 200
PUT queues/v/new 201 {}
PUT queues/v/q 204 {"durable": true}
PUT queues/v/q 400 {"durable": false}
DELETE queues/v/q 204
DELETE queues/v/q?if-empty=true&if-unused=true 204
GET queues/v/q/bindings 200
DELETE queues/v/q/contents 204
POST queues/v/q/actions 400 {"action": "sync"}
POST queues/quorum/v/r/replicas/add 400 {"node": "other"}
DELETE queues/quorum/v/r/replicas/delete 400 {"node": "other"}
POST queues/quorum/replicas/on/{node}/grow 204 {}
DELETE queues/quorum/replicas/on/{node}/shrink 400 {}
GET queues/quorum/v/r/status 200
GET bindings 200
GET bindings/v 200
GET bindings/v/e/e/q/q 200
POST bindings/v/e/e/q/q 201 {"routing_key": "another"}
GET bindings/v/e/e/q/q/k 200
DELETE bindings/v/e/e/q/q/k 204
GET bindings/v/e/e/e/f 200
POST bindings/v/e/e/e/f 201 {"routing_key": "another"}
GET bindings/v/e/e/e/f/k 200
DELETE bindings/v/e/e/e/f/k 204
GET vhosts 200
GET vhosts/v 200
PUT vhosts/new 201 {}
DELETE vhosts/v 204
GET vhosts/v/permissions 200
GET vhosts/v/topic-permissions 200
POST vhosts/v/deletion/protection 204
DELETE vhosts/v/deletion/protection 204
POST vhosts/v/start/{node} 204
GET users 200
GET users/without-permissions 200
POST users/bulk-delete 204 {"users": ["u"]}
GET users/u 200
PUT users/new 201 {"tags": ""}
DELETE users/u 204
GET users/u/permissions 200
GET users/u/topic-permissions 200
GET user-limits 200
GET user-limits/u 200
PUT user-limits/u/max-channels 204 {"value": 5}
DELETE user-limits/u/max-connections 204
GET permissions 200
GET permissions/v/u 200
PUT permissions/v/guest 204 {"configure": "", "write": "", "read": ""}
DELETE permissions/v/u 204
GET topic-permissions 200
GET topic-permissions/v/u 200
PUT topic-permissions/v/guest 201 {"exchange": "amq.topic", "write": "", "read": ""}
DELETE topic-permissions/v/u 204
DELETE topic-permissions/v/u/amq.topic 204
GET parameters 200
GET parameters/alert-rule 200
GET parameters/alert-rule/v 200
GET parameters/vhost-limits/v/limits 200
PUT parameters/c/v/n 201 {"value": {}}
DELETE parameters/c/v/held 204
GET shovels 200
GET shovels/v 200
GET shovels/vhost/v/s 200
DELETE shovels/vhost/v/s/restart 204
DELETE shovels/vhost/v/s 204
GET global-parameters 200
GET global-parameters/g 200
PUT global-parameters/new 201 {"value": 1}
DELETE global-parameters/g 204
GET policies 200
GET policies/v 200
GET policies/v/p 200
PUT policies/v/new 201 {"pattern": "x", "definition": {"max-length": 1}}
DELETE policies/v/p 204
GET operator-policies 200
GET operator-policies/v 200
GET operator-policies/v/p 200
PUT operator-policies/v/new 201 {"pattern": "x", "definition": {"max-length": 1}}
DELETE operator-policies/v/p 204
GET vhost-limits 200
GET vhost-limits/v 200
PUT vhost-limits/v/max-connections 204 {"value": 5}
DELETE vhost-limits/v/max-queues 204
GET health/checks/alarms 200
GET health/checks/local-alarms 200
GET health/checks/metadata-store/initialized 200
GET health/checks/metadata-store/initialized/with-data 200
GET health/checks/certificate-expiration/1/weeks 200
GET health/checks/port-listener/5672 200
GET health/checks/port-listener/1 503
GET health/checks/protocol-listener/amqp 200
GET health/checks/protocol-listener/mqtt 503
GET health/checks/virtual-hosts 200
GET health/checks/node-is-quorum-critical 200
GET health/checks/quorum-queues-without-elected-leaders/all-vhosts 200
GET health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/x 200
GET health/checks/quorum-queues-without-elected-leaders/vhost/v 200
GET health/checks/quorum-queues-without-elected-leaders/vhost/v/pattern/x 200
GET health/checks/is-in-service 200
GET health/checks/below-node-connection-limit 200
GET health/checks/ready-to-serve-clients 200
GET health/checks/reached-target-cluster-size 200
GET aliveness-test/v 200
GET healthchecks/node 200
GET healthchecks/node/{node} 200
GET feature-flags 200
PUT feature-flags/quorum_queue/enable 204 {}
GET deprecated-features 200
GET deprecated-features/used 200
"""
# Routes that need a session of AMQP or a form, and the file that has them.
ELSEWHERE = {
    "POST exchanges/{vhost}/{name}/publish": "tests/mgmt_ui/test_publish_get.py",
    "POST queues/{vhost}/{name}/get": "tests/mgmt_ui/test_publish_get.py",
    "POST login": "tests/mgmt_ui/api/test_rights.py",
}
# What has no meaning here: RabbitMQ answers the same where the plugin is not enabled.
ABSENT = (
    "federation-links",
    "federation-links/v",
    "stream/connections",
    "stream/publishers",
    "stream/consumers",
    "traces",
    "trace-files",
    "top/{node}",
    "users/u/queues",  # who declared a queue is not kept
)
# What is answered beside B12: RabbitMQ 3.10's, the description, and what is Leveret's own.
BESIDE = re.compile(
    r"/metrics|/api/leveret/|/api/docs|/api/openapi.json"
    r"|/api/health/checks/node-is-mirror-sync-critical|/api/users/without-permissions/$"
)


def rows():
    """(method, path, status, body) of each line."""
    for line in ASKED.strip().splitlines():
        method, path, status, *body = line.split(" ", 3)
        yield method, path, int(status), json.loads(body[0]) if body else None


SHOVEL = {"src-uri": "amqp:///v", "src-queue": "q", "dest-uri": "amqp:///v", "dest-queue": "r"}
MADE = [
    ("PUT", "vhosts/v", {}),
    ("PUT", "permissions/v/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
    ("PUT", "queues/v/q", {"durable": True}),
    ("PUT", "queues/v/r", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
    ("PUT", "exchanges/v/e", {"type": "direct"}),
    ("PUT", "exchanges/v/f", {"type": "fanout"}),
    ("POST", "bindings/v/e/e/q/q", {"routing_key": "k"}),
    ("POST", "bindings/v/e/e/e/f", {"routing_key": "k"}),
    ("PUT", "users/u", {"tags": ""}),
    ("PUT", "permissions/v/u", {"configure": "", "write": "", "read": ""}),
    ("PUT", "topic-permissions/v/u", {"exchange": "amq.topic", "write": "", "read": ""}),
    ("PUT", "user-limits/u/max-connections", {"value": 5}),
    ("PUT", "vhost-limits/v/max-queues", {"value": 50}),
    ("PUT", "parameters/c/v/held", {"value": {}}),
    ("PUT", "parameters/shovel/v/s", {"value": SHOVEL}),
    ("PUT", "global-parameters/g", {"value": 1}),
    ("PUT", "policies/v/p", {"pattern": "x", "definition": {"max-length": 1}}),
    ("PUT", "operator-policies/v/p", {"pattern": "x", "definition": {"max-length": 1}}),
]


async def make(site):
    """Make what is not there of all that the lines name, and let a client consume."""
    site.stage.run()  # logs are deleted in the background
    for method, path, body in MADE:
        answer = await site.ask(method, f"/api/{path}", body)
        assert answer.status_code in {201, 204}, (path, answer.text)
    if not site.broker.connections:
        client = Client(site.stage).open()
        client.declare("c")
        client.consume("c")


async def filled(site, path):
    """A path of the list with the names of what is there."""
    (channel,) = await site.json("/api/channels")
    names = {
        "node": site.node.name,
        "channel": channel["name"],
        "connection": channel["connection_details"]["name"],
    }
    return "/api/" + path.format(**{key: name.replace(" ", "%20") for key, name in names.items()})


async def test_each_route_answers(tmp_path):
    site = Site(data_dir=tmp_path)
    site.equip(shovels=SaidShovels(site.broker.parameters))
    is_whole = False
    for method, path, status, body in rows():
        if not is_whole:
            await make(site)
        is_whole = method == "GET"
        answer = await site.ask(method, await filled(site, path), body)
        assert answer.status_code == status, (method, path, answer.text)
        if status == 200:
            answer.json()
        elif status in {400, 404}:
            assert answer.json().keys() == {"error", "reason"}, (method, path)
        elif status == 503:
            assert answer.json()["status"] == "failed", (method, path)
        else:
            assert not answer.content, (method, path)
    for path in ABSENT:
        status, error, _ = await site.error(await filled(site, path))
        assert (status, error) == (404, "not_found"), path
    site.stage.run()


def test_no_route_is_left_out():
    """A route of ours that nobody wrote into the list would be looked at by nobody."""
    asked = [(method, re.sub(r"\?.*", "", path)) for method, path, _, _ in rows()]
    for method, path in ROUTES:
        if BESIDE.match(path) or f"{method} {path.removeprefix('/api/')}" in ELSEWHERE:
            continue
        pattern = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path.removeprefix("/api/"))))
        assert any(method == verb and pattern.fullmatch(other) for verb, other in asked), (
            f"{method} {path} is asked by no line"
        )
