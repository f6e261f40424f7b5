"""`leveret encryption …` on the files of a stopped node."""

import pytest


@pytest.fixture
def key_file(tmp_path, leveret):
    file = tmp_path / "master.key"
    leveret("encryption", "generate-key", str(file))
    return str(file)


def states(leveret, *arguments):
    return [
        (row["vhost"], row["state"]) for row in leveret.json("encryption", "status", *arguments)
    ]


def test_a_vhost_is_encrypted_rotated_and_plain_again(leveret, key_file):
    assert states(leveret) == [("/", "plain")]
    with_key = ("--key-file", key_file)
    vhost = ("--vhost", "/")
    assert "'/' is encrypted" in leveret("encryption", "enable", *vhost, *with_key)
    assert "already encrypted" in leveret("encryption", "enable", *vhost, *with_key)
    assert states(leveret) == [("/", "active")]  # looking needs no master key
    assert "with the new key" in leveret("encryption", "rotate", *vhost, *with_key)
    assert states(leveret) == [("/", "active")]  # no segment needed the first
    assert "no longer encrypted" in leveret("encryption", "disable", *vhost, *with_key)
    assert "is not encrypted" in leveret("encryption", "disable", *vhost, *with_key)
    assert states(leveret, *vhost) == [("/", "plain")]


def test_status_is_for_people_too(leveret, key_file):
    leveret("encryption", "enable", "--vhost", "/", "--key-file", key_file)
    heading, row = leveret("encryption", "status").splitlines()
    assert heading.split() == ["vhost", "key", "state", "created", "segments", "removable"]
    assert row.split()[0] == "/"
    assert row.split()[2] == "active"
    assert row.split()[3].endswith("Z")
    assert row.split()[4:] == ["0", "false"]


def test_the_master_key_is_replaced(leveret, key_file, tmp_path):
    leveret("encryption", "enable", "--vhost", "/", "--key-file", key_file)
    new = str(tmp_path / "new.key")
    leveret("encryption", "generate-key", new)
    said = leveret("encryption", "rotate-master", "--new-key-file", new, "--key-file", key_file)
    assert "name it in encryption_key_file" in said
    refused = leveret("encryption", "rotate", "--vhost", "/", "--key-file", key_file, status=1)
    assert "belongs to the master key" in refused
    leveret("encryption", "rotate", "--vhost", "/", "--key-file", new)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["enable", "--vhost", "/"], "no master key"),
        (["enable", "--vhost", "nowhere"], "nowhere"),
        (["rotate", "--vhost", "/"], "not encrypted"),
        (["status", "--vhost", "nowhere"], "no vhost 'nowhere'"),
        (["rotate-master", "--new-key-file", "nowhere"], "cannot read the master key file"),
        (["enable", "--vhost", "/", "--key-file", "nowhere"], "cannot read the master key file"),
    ],
)
def test_refusals_say_why(leveret, arguments, said):
    assert said in leveret("encryption", *arguments, status=1)


def test_a_key_file_is_never_overwritten(leveret, key_file):
    assert "File exists" in leveret("encryption", "generate-key", key_file, status=1)


def test_the_key_may_stand_in_the_environment(leveret, key_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LEVERET_ENCRYPTION_KEY", (tmp_path / "master.key").read_text())
    leveret("encryption", "enable", "--vhost", "/")
    leveret("encryption", "rotate", "--vhost", "/", "--key-file", key_file)
    assert states(leveret) == [("/", "active")]
