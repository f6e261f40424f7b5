import json
from datetime import UTC, datetime
from decimal import Decimal

from leveret.mgmt_ui.api.views import plain, properties_key, user_row
from leveret.ports.definitions import UserDefinition


def test_every_field_value_becomes_json():
    table = {
        "bytes": b"a\xff",
        "time": datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC),
        "decimal": Decimal("1.5"),
        "infinite": float("inf"),
        "list": [1, True, None, {"deep": b"x"}],
    }
    assert plain(table) == {
        "bytes": {"$base64": "Yf8="},
        "time": 1_000_000_000,
        "decimal": 1.5,
        "infinite": "inf",
        "list": [1, True, None, {"deep": "x"}],
    }


def test_properties_key_tells_bindings_apart():
    assert properties_key("", {}) == "~"
    assert properties_key("a.b/c~d e", {}) == "a.b%2Fc%7Ed+e"
    with_arguments = properties_key("k", {"x": 1, "y": 2})
    assert with_arguments.startswith("k~")
    assert with_arguments == properties_key("k", {"y": 2, "x": 1})
    assert with_arguments != properties_key("k", {"x": 1, "y": 3})


def test_hashes_from_rabbitmq_are_given_back_as_they_came():
    row = user_row(UserDefinition("u", "$rabbitmq-sha256$c2FsdA==", ("a", "b")))
    assert (row["password_hash"], row["hashing_algorithm"]) == (
        "c2FsdA==",
        "rabbit_password_hashing_sha256",
    )
    assert row["tags"] == ["a", "b"]
    ours = user_row(UserDefinition("u", "$argon2id$v=19$m=1$x$y"))
    assert ours["password_hash"].startswith("$argon2id$")
    assert ours["hashing_algorithm"] == "leveret_password_hashing_argon2id"
    assert user_row(UserDefinition("u"))["password_hash"] == ""


def test_keys_that_are_no_utf8_can_be_said():
    said = plain({"k\udcff": "v\udcff", "ö": "ü"})
    assert json.dumps(said, ensure_ascii=False).encode()
    assert said["ö"] == "ü"
