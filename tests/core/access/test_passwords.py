import base64
import hashlib

import pytest

from leveret.core.access import passwords
from leveret.core.access.passwords import (
    ARGON2_ALGORITHM,
    PasswordCache,
    export_hash,
    hash_password,
    hash_password_as_rabbitmq,
    import_hash,
    verify_password,
)

SALT = bytes(range(16))
KEY = bytes(32)


def test_hash_is_an_argon2id_phc_string_with_the_recommended_cost():
    assert hash_password("secret", SALT).startswith("$argon2id$v=19$m=19456,t=2,p=1$")


def test_right_password_verifies_and_others_do_not():
    phc = hash_password("sécret", SALT)
    assert verify_password(phc, "sécret")
    assert not verify_password(phc, "secret")


def test_salt_changes_the_hash():
    assert hash_password("secret", SALT) != hash_password("secret", bytes(16))


@pytest.mark.covers("B-405")
def test_blank_password_never_verifies():
    assert not verify_password(hash_password("", SALT), "")
    assert not verify_password("", "")
    assert not verify_password("", "anything")


def test_user_that_does_not_exist_costs_as_much_as_one_that_does(monkeypatch):
    calls = []
    monkeypatch.setattr(passwords, "hash_password", lambda *arguments: calls.append(arguments))
    assert not verify_password("", "anything")
    assert calls == [("anything", bytes(16))]


@pytest.mark.parametrize("phc", ["plain text", "$argon2id$", "$argon2id$v=19$m=1,t=1,p=1$$"])
def test_what_is_no_hash_never_verifies(phc):
    assert not verify_password(phc, "secret")


@pytest.mark.covers("B-405")
@pytest.mark.parametrize("digest", ["md5", "sha256", "sha512"])
def test_hash_from_rabbitmq(digest):
    salted = b"salt" + hashlib.new(digest, b"salt" + b"secret").digest()
    phc = import_hash(f"rabbit_password_hashing_{digest}", base64.b64encode(salted).decode())
    assert verify_password(phc, "secret")
    assert not verify_password(phc, "Secret")


@pytest.mark.parametrize(
    ("algorithm", "encoded"),
    [
        ("rabbit_password_hashing_md4", "c2hvcnQ="),
        ("rabbit_password_hashing_sha256", "***"),
        ("rabbit_password_hashing_sha256", "c2hvcnQ="),
    ],
)
def test_what_is_no_hash_from_rabbitmq_is_refused(algorithm, encoded):
    with pytest.raises(ValueError, match=r"algorithm|base64|length"):
        import_hash(algorithm, encoded)


@pytest.mark.covers("B-405")
@pytest.mark.parametrize("digest", ["md5", "sha256", "sha512"])
def test_hash_made_for_rabbitmq_is_one_of_its(digest):
    algorithm = f"rabbit_password_hashing_{digest}"
    password_hash = hash_password_as_rabbitmq("sécret", b"salt", algorithm)
    phc = import_hash(algorithm, password_hash)
    assert verify_password(phc, "sécret")
    assert export_hash(phc) == (algorithm, password_hash)


def test_own_hash_goes_out_and_comes_back():
    phc = hash_password("secret", SALT)
    algorithm, exported = export_hash(phc)
    assert algorithm == ARGON2_ALGORITHM
    assert import_hash(algorithm, exported) == phc
    assert import_hash(*export_hash("")) == ""


@pytest.mark.parametrize(
    "phc",
    [
        "$argon2i$v=19$m=19456,t=2,p=1$AAECAwQFBgcICQoLDA0ODw$" + "A" * 43,
        "$argon2id$v=19$m=999999,t=2,p=1$AAECAwQFBgcICQoLDA0ODw$" + "A" * 43,
        "$argon2id$v=19$m=19456,t=99,p=1$AAECAwQFBgcICQoLDA0ODw$" + "A" * 43,
        "$argon2id$v=19$m=19456,t=2,p=99$AAECAwQFBgcICQoLDA0ODw$" + "A" * 43,
        "$rabbitmq-md5$AAAA",
    ],
)
def test_imported_hash_cannot_ask_for_the_world(phc):
    with pytest.raises(ValueError, match="password hash"):
        import_hash(ARGON2_ALGORITHM, phc)


def test_cache_knows_only_what_it_was_told():
    cache = PasswordCache(KEY)
    cache.remember("phc", "secret")
    assert cache.knows("phc", "secret")
    assert not cache.knows("phc", "other")
    assert not cache.knows("changed", "secret")


def test_cache_is_bounded_and_forgets_the_least_used():
    cache = PasswordCache(KEY, entries_max=2)
    cache.remember("phc", "1")
    cache.remember("phc", "2")
    assert cache.knows("phc", "1")
    cache.remember("phc", "3")
    assert len(cache) == 2
    assert [cache.knows("phc", password) for password in "123"] == [True, False, True]


def test_cache_holds_no_password():
    cache = PasswordCache(KEY)
    cache.remember("phc", "secret")
    assert b"secret" not in b"".join(cache._digests)


@pytest.mark.parametrize(
    "phc",
    [
        "",
        import_hash(
            "rabbit_password_hashing_sha256", hash_password_as_rabbitmq("secret", bytes(4))
        ),
        "$argon2id$v=19$m=8,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",
    ],
)
def test_refusal_takes_the_same_work_whoever_is_named(phc, monkeypatch):
    calls = []
    monkeypatch.setattr(passwords, "hash_password", lambda *about: calls.append(about))
    assert not verify_password(phc, "wrong")
    assert len(calls) == 1


def test_refusal_of_our_own_hash_is_that_work_already(monkeypatch):
    phc = hash_password("secret", SALT)
    monkeypatch.setattr(passwords, "hash_password", lambda *_: pytest.fail("twice the work"))
    assert not verify_password(phc, "wrong")


@pytest.mark.parametrize("parameters", ["m=131073,t=1", "m=65536,t=4", "m=19456,t=11"])
def test_imported_hash_that_takes_too_long_to_check_is_refused(parameters):
    phc = f"$argon2id$v=19${parameters},p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA"
    with pytest.raises(ValueError, match="more memory or time"):
        import_hash("leveret_password_hashing_argon2id", phc)


def test_imported_hash_of_the_usual_libraries_is_taken():
    phc = "$argon2id$v=19$m=65536,t=3,p=4$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA"
    assert import_hash("leveret_password_hashing_argon2id", phc) == phc
