"""Tokens, signed rightly and wrongly, and the keys that sign them."""

import base64
import hashlib
import hmac
import itertools
import json
import logging
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from leveret.auth.keys import UNKNOWN_KEY_SECONDS_MIN, KeySet, parse_keys
from leveret.auth.tokens import TOKEN_CHARACTERS_MAX, TokenAuthenticator, TokenRules
from leveret.ports.authentication import Login, SecretRefusedError

SECRET = b"s" * 32
RSA_KEY = rsa.generate_private_key(65537, 2048)
SIGNERS = {
    "RS256": ("rsa", RSA_KEY),
    "RS512": ("rsa", RSA_KEY),
    "ES256": ("ec", ec.generate_private_key(ec.SECP256R1())),
    "ES384": ("ec384", ec.generate_private_key(ec.SECP384R1())),
    "EdDSA": ("ed", ed25519.Ed25519PrivateKey.generate()),
    "HS256": (None, SECRET),
}
PUBLIC = {identifier: key.public_key() for identifier, key in SIGNERS.values() if identifier}


def jwk(identifier, key):
    kinds = {"rsa": jwt.algorithms.RSAAlgorithm, "ed": jwt.algorithms.OKPAlgorithm}
    algorithm = kinds.get(identifier, jwt.algorithms.ECAlgorithm)
    return {**algorithm.to_jwk(key, as_dict=True), "kid": identifier}


def jwks(*identifiers):
    chosen = identifiers or PUBLIC
    return json.dumps({"keys": [jwk(name, PUBLIC[name]) for name in chosen]}).encode()


def claims(**changes):
    now = int(time.time())
    whole = {"sub": "ann", "aud": ["broker"], "exp": now + 60, "scope": "broker.read:*/*"}
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def token(algorithm="RS256", *, kid="", key=None, **changes):
    identifier, signer = SIGNERS[algorithm]
    identifier = identifier if kid == "" else kid
    headers = {"kid": identifier} if identifier else {}
    return jwt.encode(claims(**changes), key or signer, algorithm, headers)


class Provider:
    """Hands keys out, and counts how often it was asked."""

    def __init__(self, text=None):
        self.text, self.asked, self.now = text or jwks(), 0, 0.0

    async def fetch(self):
        self.asked += 1
        if isinstance(self.text, Exception):
            raise self.text
        return self.text

    def authenticator(self, *, secret=SECRET, **rules):
        keys = KeySet(self.fetch, secret, 3600, lambda: self.now)
        defaults = {
            "resource_server_id": "broker",
            "scope_prefix": "broker.",
            "additional_scopes_key": "",
            "scope_aliases": {},
            "user_claims": ("preferred_username", "sub", "client_id"),
            "leeway_seconds": 5,
        }
        return TokenAuthenticator(keys, TokenRules(**{**defaults, **rules}))


async def log_in(authenticator, password, user="whoever"):
    return await authenticator.log_in(Login(user, password, "192.0.2.1"))


@pytest.mark.covers("B-408")
@pytest.mark.parametrize("algorithm", SIGNERS)
async def test_every_kind_of_key(algorithm):
    exp = int(time.time()) + 60
    rights = await log_in(Provider().authenticator(), token(algorithm, exp=exp))
    assert rights.user == "ann"
    assert rights.expires_at_ms == (exp + 5) * 1000
    assert rights.may_enter("/")
    assert rights.allows("/", "queue", "q", "read")
    assert not rights.allows("/", "queue", "q", "write")
    assert not rights.restricts_topics("/", "x")


LONG_AGO, FAR_AWAY = 1_000_000_000, 4_000_000_000  # 2001 and 2096


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": LONG_AGO},
        {"exp": None},
        {"exp": "soon"},
        {"exp": [5]},
        {"exp": 10**40},
        {"exp": True},
        {"nbf": FAR_AWAY},
        {"nbf": "soon"},
        {"aud": None},
        {"aud": "other"},
        {"aud": ["other", "broker2"]},
        {"aud": {"broker": 1}},
        {"sub": None},
        {"sub": 5},
        {"sub": ""},
        {"sub": "x" * 256},
        {"scope": " ".join(f"broker.read:v/q{number}" for number in range(2049))},
    ],
    ids=repr,
)
async def test_claims_that_are_refused(changes):
    assert await log_in(Provider().authenticator(), token(**changes)) is None


@pytest.mark.parametrize("audience", ["broker", "other broker", ["other", "broker"]])
async def test_audiences_that_are_ours(audience):
    assert await log_in(Provider().authenticator(), token(aud=audience))


async def test_the_operator_chooses_the_claim_that_names_the_user():
    rights = await log_in(Provider().authenticator(), token(preferred_username="ann.other"))
    assert rights.user == "ann.other"
    rights = await log_in(Provider().authenticator(), token(sub=None, client_id="robot"))
    assert rights.user == "robot"


async def test_clocks_may_differ_a_little():
    authenticator = Provider().authenticator()
    assert await log_in(authenticator, token(exp=int(time.time()) - 3, nbf=int(time.time()) + 3))


# -- attacks


def encoded(value):
    return base64.urlsafe_b64encode(value).rstrip(b"=")


def forged(header, key=b"", **changes):
    """A token whose header is anything, signed with HMAC by `key`."""
    body = b".".join(encoded(json.dumps(part).encode()) for part in (header, claims(**changes)))
    return (body + b"." + encoded(hmac.digest(key, body, hashlib.sha256))).decode()


def public_pem(identifier):
    return PUBLIC[identifier].public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@pytest.mark.parametrize(
    "bad",
    [
        forged({"alg": "none"}),
        forged({"alg": "None", "kid": "rsa"}),
        forged({"alg": "none"}).rpartition(".")[0] + ".",
        forged({"alg": "HS256", "kid": "rsa"}, public_pem("rsa")),
        forged({"alg": "HS256", "kid": "rsa"}, jwks("rsa")),
        forged({"alg": "RS256", "kid": "rsa"}, public_pem("rsa")),
        forged({"alg": "ES256", "kid": "rsa"}, public_pem("rsa")),
        forged({"alg": "HS256"}, b"x" * 32),
        forged({"alg": ["RS256"], "kid": "rsa"}),
        forged({"alg": "RS256", "kid": {"a": 1}}),
        forged({"kid": "rsa"}),
        forged([]),
        forged("RS256"),
        forged({"alg": "RS256", "kid": "rsa", "crit": ["x"]}),
        token("RS256", kid="ec"),
        token("RS256", kid="unknown"),
        token("RS256", key=rsa.generate_private_key(65537, 2048)),
        token()[:-8] + "AAAAAAAA",
        "",
        "a.b.c",
        "a" * (TOKEN_CHARACTERS_MAX + 1),
        "guest",
        encoded(b'{"a":' * 20_000).decode() + "..",
        "\udcff.\udcff.\udcff",
    ],
    ids=itertools.count(),  # signed anew by each process that runs tests
)
async def test_forged_tokens(bad, caplog):
    caplog.set_level(logging.DEBUG)
    authenticator = Provider().authenticator(secret=SECRET)
    assert await log_in(authenticator, bad) is None
    assert not bad or bad not in caplog.text


async def test_without_a_shared_secret_none_is_accepted():
    assert await log_in(Provider().authenticator(secret=None), token("HS256")) is None


@given(st.binary(max_size=200), st.integers(0, 2))
def test_any_header_claims_and_signature_are_refused_without_a_noise(value, place):
    parts = token().split(".")
    parts[place] = encoded(value).decode()
    authenticator = Provider().authenticator()
    with pytest.raises(StopIteration) as stopped:
        log_in(authenticator, ".".join(parts)).send(None)
    assert stopped.value.value is None or place == 2


async def test_tokens_are_never_logged(caplog):
    caplog.set_level(logging.DEBUG)
    authenticator = Provider().authenticator()
    secrets = [token(), token(exp=5), token(aud="other"), token(sub=None), token(kid="gone")]
    for secret in secrets:
        await log_in(authenticator, secret)
        for part in secret.split("."):
            assert part not in caplog.text
    assert "it has expired" in caplog.text


async def test_a_name_without_a_token_is_nobodys():
    assert await log_in(Provider().authenticator(), None) is None


# -- renewal


@pytest.mark.covers("B-313")
async def test_a_new_token_of_the_same_user_renews():
    rights = await log_in(Provider().authenticator(), token())
    later = int(time.time()) + 3600
    renewed = await rights.renewed(token("ES256", exp=later, scope="broker.write:*/*"))
    assert renewed.user == "ann"
    assert renewed.expires_at_ms == (later + 5) * 1000
    assert not renewed.allows("/", "queue", "q", "read")
    for bad in (token(sub="bob"), token(exp=5), "guest"):
        with pytest.raises(SecretRefusedError):
            await rights.renewed(bad)


# -- keys


async def test_keys_are_read_again_in_time_and_for_new_ones():
    provider = Provider(jwks("rsa"))
    authenticator = provider.authenticator()
    assert await log_in(authenticator, token("RS256"))
    assert await log_in(authenticator, token("RS256"))
    assert provider.asked == 1
    assert await log_in(authenticator, token("ES256")) is None  # just read: not again so soon
    assert provider.asked == 1
    provider.now += UNKNOWN_KEY_SECONDS_MIN
    provider.text = jwks("rsa", "ec")
    assert await log_in(authenticator, token("ES256"))
    assert provider.asked == 2
    provider.now += 3600
    provider.text = jwks("ec")  # the other was withdrawn
    assert await log_in(authenticator, token("RS256")) is None
    assert await log_in(authenticator, token("ES256"))


@pytest.mark.parametrize("trouble", [OSError("down"), b"<html>", b"[]", b'{"keys": 5}'])
async def test_old_keys_are_kept_while_there_are_no_new_ones(trouble):
    provider = Provider()
    authenticator = provider.authenticator()
    assert await log_in(authenticator, token())
    provider.text = trouble
    provider.now += 3600
    assert await log_in(authenticator, token())
    assert await log_in(authenticator, token())
    assert provider.asked == 2


async def test_the_only_key_needs_no_identifier():
    assert await log_in(Provider(jwks("rsa")).authenticator(), token(kid=None))
    two = json.dumps(
        {"keys": [jwk("rsa", PUBLIC["rsa"]), {**jwk("rsa", PUBLIC["rsa"]), "kid": "b"}]}
    )
    assert await log_in(Provider(two.encode()).authenticator(), token(kid=None)) is None


@pytest.mark.parametrize(
    "entry",
    [
        5,
        {},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "x"},
        {"kty": ["RSA"], "kid": "x"},
        {"kty": "RSA", "kid": {}},
        {"kty": "RSA", "kid": "x"},
        {"kty": "RSA", "n": "!", "e": "AQAB", "kid": "x"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "x"},
        {"kty": "EC", "crv": {}, "kid": "x"},
        {**jwk("rsa", PUBLIC["rsa"]), "use": "enc"},
        {**jwk("rsa", PUBLIC["rsa"]), "alg": "PS256"},
        jwk("rsa", rsa.generate_private_key(65537, 1024).public_key()),
    ],
)
def test_keys_that_cannot_be_used_are_passed_over(entry):
    good = jwk("ec", PUBLIC["ec"])
    keys = parse_keys(json.dumps({"keys": [entry, good]}).encode())
    assert list(keys) == [("ec", "ES256")]


@pytest.mark.parametrize("text", [b"", b"5", b"{}", b'{"keys": {}}', b"[" * 100_000, b"\xff"])
def test_what_is_no_key_set(text):
    with pytest.raises(ValueError):
        parse_keys(text)
