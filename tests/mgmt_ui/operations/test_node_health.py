"""Problems found in a running node."""

import json
import shlex
from dataclasses import replace

import pytest
from cryptography import x509
from typer.testing import CliRunner

from leveret.cli.app import app
from leveret.core.access.passwords import hash_password
from leveret.core.alarms import Resource
from leveret.mgmt_ui.control import COMMAND_LINE
from leveret.mgmt_ui.operations import node_health
from leveret.mgmt_ui.operations.dispatcher import perform
from leveret.mgmt_ui.operations.health_checks import check_certificates, check_passwords
from leveret.mgmt_ui.operations.runtime import Runtime
from leveret.ports import LogFile
from leveret.ports.check_results import Severity
from leveret.ports.definitions import PolicyDefinition, UserDefinition
from tests.support.client import Client
from tests.support.memory_log import MemoryTopicLog
from tests.support.site import Site


@pytest.fixture
def site(tmp_path):
    made = Site(data_dir=tmp_path)
    runtime = Runtime(made.stage.configuration, 0, lambda: made.stage.now)
    made.context = replace(made.context, runtime=runtime)
    return made


async def found(site):
    request = {"operation": "node.diagnose", "parameters": {}}
    answer = await perform(site.context, request, COMMAND_LINE)
    assert answer["ok"], answer
    lag = {"loop.lag"}  # of the machine that runs the tests
    return [row for row in answer["result"] if row["check"] not in lag]


async def test_a_healthy_node(site):
    assert await found(site) == []


async def test_alarms_come_first(site):
    site.broker.alarms.set(Resource.DISK, low=True)
    site.broker.alarms.set(Resource.MEMORY, low=True)
    rows = await found(site)
    assert [(row["check"], row["severity"]) for row in rows] == [
        ("alarm.memory", "error"),
        ("alarm.disk", "error"),
    ]


async def test_figures_near_their_limits(site, monkeypatch):
    monkeypatch.setattr(node_health, "NEAR", 1e-12)
    checks = {row["check"] for row in await found(site)}
    assert checks == {"memory.near", "disk.near", "files.near"}


async def test_queues_that_nobody_reads_or_settles(site, monkeypatch):
    monkeypatch.setattr(node_health, "BACKLOG_MIN", 2)
    monkeypatch.setattr(node_health, "UNACKNOWLEDGED_MIN", 2)
    monkeypatch.setattr(node_health, "QUEUES_NAMED_MAX", 1)
    client = Client(site.stage).open()
    for name in ("one", "two#halt", "three", "taken"):
        client.declare(name)
        client.publish(name, b"1", b"2")
    client.publish("two#halt", b"3")
    client.consume("taken")
    rows = await found(site)
    assert [(row["check"], row["subject"]) for row in rows] == [
        ("queue.unread", "queue 'two#halt' in vhost '/'"),
        ("queue.unread", "node"),
        ("queue.unacknowledged", "queue 'taken' in vhost '/'"),
    ]
    assert "`leveret queue delete 'two#halt' --vhost /`" in rows[0]["remedy"]
    assert rows[1]["what"].startswith("2 more queues")


async def test_queues_that_keep_for_ever_what_only_groups_read(site, monkeypatch):
    files = [LogFile(0, 2, 100, None, True), LogFile(2, 3, 50, None, False)]
    monkeypatch.setattr(MemoryTopicLog, "list_files", lambda _log: files)
    client = Client(site.stage).open()
    for name, settles in (("a b", {}), ("named", {"x-retention-settles": ["g"]})):
        client.declare(name, durable=True, arguments={"x-retention-messages": 1} | settles)
        client.publish(name, b"1", b"2", b"3")
        site.broker.groups.create(site.stage.queue(name), "g", {})
    assert await found(site) == []  # they have not been read
    for group in site.broker.groups.all():
        group.subscriptions[0].settle_below(3)
    (row,) = await found(site)
    assert (row["check"], row["subject"]) == ("queue.unsettled", "queue 'a b' in vhost '/'")
    assert row["what"].startswith("keeps 2 messages for longer")
    settings = '{"retention-messages": 1, "retention-settles": ["g"]}'
    command = f"leveret policy set 'a b-groups' '^a\\ b$' '{settings}' --apply-to queues --vhost /"
    assert f"`{command}`" in row["remedy"]
    client.consume("a b", "own")
    assert await found(site) == []  # it has somebody who settles


async def test_groups_that_are_to_settle_beside_what_a_policy_says(site, monkeypatch):
    files = [LogFile(0, 2, 100, None, True), LogFile(2, 3, 50, None, False)]
    monkeypatch.setattr(MemoryTopicLog, "list_files", lambda _log: files)
    client = Client(site.stage).open()
    for policy in (
        PolicyDefinition("/", "all", ".*", {"max-length": 9}, 4, "queues"),
        PolicyDefinition("/", "kept", "^q", {"retention-messages": 1}, 0, "queues", operator=True),
    ):
        site.broker.policies.put(policy)
    client.declare("q", durable=True)
    client.publish("q", b"1", b"2", b"3")
    site.broker.groups.create(site.stage.queue("q"), "g", {})
    site.broker.groups.all()[0].subscriptions[0].settle_below(3)
    (row,) = await found(site)
    _, _, _, name, pattern, settings, _, kind, _, vhost, _, priority = shlex.split(
        row["remedy"].split("`")[1]
    )
    assert json.loads(settings) == {
        "max-length": 9,
        "retention-messages": 1,
        "retention-settles": ["g"],
    }
    site.broker.policies.put(
        PolicyDefinition(vhost, name, pattern, json.loads(settings), int(priority), kind)
    )
    site.broker.apply_policies("/")
    assert site.stage.queue("q").settings.retention_settles == ("g",)
    assert await found(site) == []


async def test_groups_whose_queue_keeps_nothing_any_more(site):
    client = Client(site.stage).open()
    client.prefetch(10)
    client.declare("q", durable=True)
    policy = PolicyDefinition("/", "keeps", "^q$", {"retention": "1d"}, 0, "queues")
    site.broker.policies.put(policy)
    site.broker.apply_policies("/")
    client.consume("q", arguments={"x-consumer-group": "g"})
    assert await found(site) == []
    site.broker.policies.remove("/", "keeps", operator=False)
    site.broker.apply_policies("/")
    (row,) = await found(site)
    assert (row["check"], row["subject"]) == ("queue.unkept", "queue 'q' in vhost '/'")


@pytest.mark.parametrize(
    ("counts", "grows"),
    [
        ([0, 100, 100, 250], True),
        ([0, 250, 100, 250], False),
        ([200, 220, 250], False),
        ([], False),
    ],
)
async def test_deliveries_that_nobody_acknowledges_grow(site, monkeypatch, counts, grows):
    monkeypatch.setattr(node_health, "GROWN_MIN", 2)
    client = Client(site.stage).open()
    client.declare("q")
    client.publish("q", b"1", b"2")
    client.consume("q")
    past = [(0, (count,)) for count in counts]
    monkeypatch.setattr(type(site.broker.statistics), "history", lambda *_: past)
    checks = [row["check"] for row in await found(site)]
    assert checks == ["queue.unacknowledged.growing"] * grows


class Room:
    next_due_ms = 1

    def __repr__(self):
        return "a room"


async def test_what_is_long_due(site, monkeypatch):
    site.stage.now = 100_000
    monkeypatch.setattr(type(site.broker.delayed_stores), "opened", [Room()])
    (row,) = await found(site)
    assert (row["check"], row["severity"]) == ("waiting.overdue", "error")


async def test_a_loop_that_is_late(site, monkeypatch):
    monkeypatch.setattr(node_health, "LAG_SECONDS_MAX", 0)
    request = {"operation": "node.diagnose", "parameters": {}}
    answer = await perform(site.context, request, COMMAND_LINE)
    assert [row["check"] for row in answer["result"]] == ["loop.lag"]


def test_a_user_whose_password_is_its_name(site):
    users = [
        UserDefinition("app", hash_password("app", bytes(16)), ()),
        UserDefinition("guest", hash_password("guest", bytes(16)), ()),
        UserDefinition("safe", hash_password("other", bytes(16)), ()),
    ]
    configuration = site.stage.configuration
    assert list(check_passwords(users, configuration)) == []
    opened = configuration.model_copy(update={"host": "0.0.0.0"})
    assert [finding.subject for finding in check_passwords(users, opened)] == ["app"]
    trusting = opened.model_copy(update={"loopback_users": ()})
    assert [finding.subject for finding in check_passwords(users, trusting)] == ["app", "guest"]
    named = configuration.model_copy(update={"host": "localhost", "loopback_users": ()})
    assert list(check_passwords(users, named)) == []


DAY_MS = 86_400_000


def test_certificates_that_end(site, tmp_path):
    CliRunner().invoke(app, ["certs", str(tmp_path)])
    certificate = tmp_path / "server.pem"
    ends = x509.load_pem_x509_certificates(certificate.read_bytes())[0].not_valid_after_utc
    ends_ms = int(ends.timestamp() * 1000)
    configuration = site.stage.configuration.model_copy(
        update={"tls_certificate_file": certificate}
    )
    checks = [
        [finding.severity for finding in check_certificates(configuration, now_ms)]
        for now_ms in (ends_ms - 31 * DAY_MS, ends_ms - 5 * DAY_MS, ends_ms + 2 * DAY_MS)
    ]
    assert checks == [[], [Severity.WARNING], [Severity.ERROR]]
    certificate.write_text("none")
    (finding,) = check_certificates(configuration, 0)
    assert "is no certificate" in finding.what
    certificate.unlink()
    (finding,) = check_certificates(configuration, 0)
    assert "cannot be read" in finding.what
