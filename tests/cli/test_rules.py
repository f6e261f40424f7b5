"""The commands on policies, limits, topic permissions, parameters and definitions."""

import json
import stat

import pytest

from leveret.core.access.passwords import import_hash, verify_password


@pytest.mark.covers("B-400")
@pytest.mark.parametrize("group", ["policy", "operator-policy"])
def test_policies(leveret, group):
    definition = '{"max-length": 5}'
    leveret(group, "set", "p", "^q", definition, "--priority", "3", "--apply-to", "queues")
    assert leveret.json(group, "list") == [
        {
            "vhost": "/",
            "name": "p",
            "pattern": "^q",
            "apply-to": "queues",
            "definition": {"max-length": 5},
            "priority": 3,
        }
    ]
    assert '{"max-length": 5}' in leveret(group, "list", "--vhost", "/")
    leveret(group, "clear", "p")
    assert leveret.json(group, "list") == []


@pytest.mark.covers("B-403")
def test_a_bad_policy_is_refused_in_rabbitmqs_words(leveret):
    text = leveret("policy", "set", "p", "", '{"foo": "bar"}', status=1)
    assert "'foo' is not a policy setting" in text
    assert "not JSON" in leveret("policy", "set", "p", "", "{", status=1)
    assert "no policy 'p'" in leveret("policy", "clear", "p", status=1)


@pytest.mark.covers("B-404", "B-405")
def test_limits(leveret):
    leveret("limit", "set", "vhost", "/", "max-queues", "5")
    leveret("limit", "set", "vhost", "/", "max-connections", "-1")
    leveret("limit", "set", "user", "guest", "max-channels", "0")
    assert [list(row.values()) for row in leveret.json("limit", "list")] == [
        ["user", "guest", "max-channels", 0],
        ["vhost", "/", "max-connections", -1],
        ["vhost", "/", "max-queues", 5],
    ]
    leveret("limit", "clear", "vhost", "/", "max-queues")
    leveret("limit", "clear", "user", "guest")
    assert [row["limit"] for row in leveret.json("limit", "list")] == ["max-connections"]
    assert "'max-queues' is not a limit" in leveret(
        "limit", "set", "user", "guest", "max-queues", "1", status=1
    )


@pytest.mark.covers("B-404")
def test_vhosts_have_a_default_queue_type_and_protection(leveret):
    leveret("vhost", "add", "v", "--default-queue-type", "quorum")
    leveret("vhost", "protect", "v")
    assert "protected" in leveret("vhost", "delete", "v", status=1)
    row = leveret.json("vhost", "list")[1]
    assert (row["default_queue_type"], row["protected"]) == ("quorum", True)
    leveret("vhost", "unprotect", "v")
    leveret("vhost", "delete", "v")


@pytest.mark.covers("B-407")
def test_topic_permissions(leveret):
    leveret("topic-permission", "set", "guest", "amq.topic", "^{username}", ".*")
    assert leveret.json("topic-permission", "list", "--user", "guest") == [
        {
            "vhost": "/",
            "user": "guest",
            "exchange": "amq.topic",
            "write": "^{username}",
            "read": ".*",
        }
    ]
    leveret("topic-permission", "clear", "guest", "amq.topic")
    assert leveret.json("topic-permission", "list") == []


def test_parameters(leveret):
    leveret("parameter", "set", "shovel", "s", '{"src-uri": "amqp://"}')
    leveret("global-parameter", "set", "n", "[1, null]")
    assert leveret.json("parameter", "list", "--component", "shovel") == [
        {"vhost": "/", "component": "shovel", "name": "s", "value": {"src-uri": "amqp://"}}
    ]
    assert leveret.json("global-parameter", "list") == [{"name": "n", "value": [1, None]}]
    leveret("parameter", "clear", "shovel", "s")
    leveret("global-parameter", "clear", "n")
    assert leveret.json("parameter", "list") == leveret.json("global-parameter", "list") == []


@pytest.mark.parametrize("json_option", [[], ["--json"]])
@pytest.mark.parametrize(
    ("command", "warning"),
    [
        (["parameter", "set", "shovel", "s", "{}"], "parameter of 'shovel' has no effect: "),
        (["global-parameter", "set", "n", "1"], "global parameter 'n' has no effect: "),
        (["policy", "set", "p", "", '{"ha-mode": "all"}'], "setting ha-mode of policies has no"),
        (
            ["operator-policy", "set", "p", "", '{"ha-mode": "all", "max-length": 1}'],
            "setting ha-mode of policies has no",
        ),
    ],
)
def test_what_has_no_effect_is_set_with_a_warning(leveret, command, warning, json_option):
    result = leveret.run(*command, *json_option)
    assert result.stderr.startswith(warning)
    assert result.stderr.count("\n") == 1
    assert "warning" not in result.stdout
    if json_option:
        assert json.loads(result.stdout) == {"ok": True}
    else:
        assert result.stdout.endswith("was set\n")


@pytest.mark.parametrize(
    "command",
    [
        ["policy", "set", "p", "", '{"max-length": 5}'],
        ["parameter", "set", "alert", "a", '{"condition": "no_consumers"}'],
        ["global-parameter", "set", "cluster_name", '"c"'],
    ],
)
def test_what_has_an_effect_is_set_without_a_warning(leveret, command):
    assert leveret.run(*command).stderr == ""


@pytest.mark.covers("B-405")
def test_hash_of_a_password_is_as_good_as_the_password(leveret):
    made = leveret("hash-password", "--password-stdin", stdin="secret\n").strip()
    assert verify_password(import_hash("rabbit_password_hashing_sha256", made), "secret")
    leveret("user", "add", "u", "--password-hash", made)
    user = leveret.json("definitions", "export")["users"][1]
    assert (user["password_hash"], user["hashing_algorithm"]) == (
        made,
        "rabbit_password_hashing_sha256",
    )
    assert "not base64" in leveret("user", "set-password", "u", "--password-hash", "***", status=1)
    assert "blank" in leveret("hash-password", "--password-stdin", stdin="\n", status=1)


@pytest.mark.covers("B-422")
def test_definitions_go_out_and_come_in(leveret, tmp_path):
    file = tmp_path / "definitions.json"
    leveret("policy", "set", "p", "", '{"expires": 1000}')
    leveret("definitions", "export", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    leveret("policy", "clear", "p")
    leveret("vhost", "add", "v")
    assert "1 permission, 1 policy\n" in leveret("definitions", "import", str(file))
    assert [policy["name"] for policy in leveret.json("policy", "list")] == ["p"]

    of_one = leveret("definitions", "export", "--vhost", "/")
    summary = leveret("definitions", "import", "-", "--vhost", "v", "--json", stdin=of_one)
    assert json.loads(summary) == {
        "imported": {"policies": 1},
        "left_out": [],
        "ignored": [],
        "warnings": [],
        "kept": [],
    }
    assert [policy["vhost"] for policy in leveret.json("policy", "list")] == ["/", "v"]


@pytest.mark.covers("B-422")
def test_what_an_import_leaves_out_is_said(leveret):
    binding = {"vhost": "/", "source": "x", "destination": "q"}
    text = leveret(
        "definitions", "import", "-", stdin=json.dumps({"bindings": [binding], "extra": 1})
    )
    assert "bindings[0] was skipped" in text
    assert "extra is not supported" in text


@pytest.mark.covers("B-422")
def test_a_bad_document_is_refused_whole(leveret, tmp_path):
    document = {"vhosts": [{"name": "v"}], "queues": [{"name": "q", "vhost": "w"}]}
    text = leveret("definitions", "import", "-", stdin=json.dumps(document), status=1)
    assert "queues[0]: no vhost 'w'" in text
    assert [vhost["name"] for vhost in leveret.json("vhost", "list")] == ["/"]
    assert "cannot read" in leveret("definitions", "import", str(tmp_path / "none"), status=1)
    assert "no vhost 'none'" in leveret("definitions", "export", "--vhost", "none", status=1)


def test_alert_rules(leveret):
    rule = {"condition": "backlog", "above": 5, "secret": "hush"}
    leveret("alert", "set", "r", json.dumps(rule))
    assert leveret.json("alert", "rules") == [
        {"vhost": "/", "name": "r", "rule": {**rule, "secret": "…"}}
    ]
    assert "condition is one of" in leveret("alert", "set", "r", "{}", status=1)
    assert "no node is running on" in leveret("alert", "list", status=1)
    leveret("alert", "clear", "r")
    assert leveret.json("alert", "rules") == []


def test_what_was_changed_is_in_the_audit_log(leveret):
    leveret("limit", "set", "vhost", "/", "max-queues", "5")
    leveret("limit", "clear", "vhost", "none", status=1)
    rows = leveret.json("audit", "--operation", "limits.")
    assert [(row["operation"], row["error"], row["user"]) for row in rows] == [
        ("limits.clear", "not_found", "rmq-cli"),
        ("limits.set", "", "rmq-cli"),
    ]
    assert "limits.set" in leveret("audit", "--limit", "2")


FROM_RABBITMQ = {
    "parameters": [{"vhost": "/", "component": "shovel", "name": "move", "value": {}}],
    "exchanges": [
        {"vhost": "/", "name": "jms", "type": "x-jms-topic"},
        {"vhost": "/", "name": "plain", "type": "direct"},
    ],
    "queues": [{"vhost": "/", "name": "q"}],
    "bindings": [{"vhost": "/", "source": "jms", "destination": "q"}],
}


def test_import_from_rabbitmq_tells_what_has_no_effect(leveret):
    said = leveret("definitions", "import", "-", stdin=json.dumps(FROM_RABBITMQ))
    assert "imported 1 parameter, 1 queue, 1 exchange" in said
    assert "parameter of 'shovel' has no effect: there are no shovels" in said
    assert "exchange of type 'x-jms-topic' has no effect: the type is unknown, it is left out" in (
        said
    )
    assert "bindings[0] was skipped" in said
    exported = leveret.json("definitions", "export")
    assert [row["name"] for row in exported["exchanges"]] == ["plain"]


def test_rehearsed_import_changes_nothing(leveret):
    said = leveret("definitions", "import", "-", "--dry-run", stdin=json.dumps(FROM_RABBITMQ))
    assert "would import 1 parameter," in said
    assert "there are no shovels" in said
    assert leveret.json("parameter", "list") == []
    assert leveret.json("definitions", "export")["queues"] == []


def test_strict_import_refuses_what_has_no_effect(leveret):
    document = json.dumps(FROM_RABBITMQ)
    said = leveret("definitions", "import", "-", "--strict", stdin=document, status=1)
    assert "parameter of 'shovel' has no effect" in said
    assert leveret.json("definitions", "export")["queues"] == []


OTHERWISE = {
    "exchanges": [{"vhost": "/", "name": "plain", "type": "fanout"}],
    "queues": [{"vhost": "/", "name": "q", "durable": False}, {"vhost": "/", "name": "new"}],
}
KEPT = [
    "exchange 'plain' in vhost '/' stays as it is: type is direct, the document says fanout",
    "queue 'q' in vhost '/' stays as it is: durable is true, the document says false",
]


@pytest.fixture
def imported(leveret):
    leveret("definitions", "import", "-", stdin=json.dumps(FROM_RABBITMQ))


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_import_tells_what_exists_otherwise(imported, leveret, dry_run):
    before = leveret.json("definitions", "export")["exchanges"]
    command, document = ["definitions", "import", "-", *dry_run], json.dumps(OTHERWISE)
    result = leveret.run(*command, stdin=document)
    assert result.stdout == ("would import 1 queue\n" if dry_run else "imported 1 queue\n")
    assert result.stderr.splitlines() == KEPT
    summary = json.loads(leveret.run(*command, "--json", stdin=document).stdout)
    assert (summary["imported"], summary["kept"]) == ({"queues": 1}, KEPT)
    assert leveret.json("definitions", "export")["exchanges"] == before


def test_strict_import_refuses_what_exists_otherwise(imported, leveret):
    document = json.dumps(OTHERWISE)
    said = leveret("definitions", "import", "-", "--strict", stdin=document, status=1)
    assert f"{KEPT[0]} (and 1 more)" in said
    assert [queue["name"] for queue in leveret.json("definitions", "export")["queues"]] == ["q"]


def test_export_for_rabbitmq_tells_whose_password_it_cannot_hold(leveret):
    said = leveret("definitions", "export", "--for-rabbitmq")
    assert "user 'guest' is exported without a password" in said
    assert "argon2" not in said
