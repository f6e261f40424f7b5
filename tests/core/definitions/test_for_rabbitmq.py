from leveret.core.access.passwords import hash_password, hash_password_as_rabbitmq, import_hash
from leveret.core.definitions.document import document
from leveret.core.definitions.for_rabbitmq import for_rabbitmq
from leveret.ports.definitions import (
    Definitions,
    ParameterDefinition,
    PolicyDefinition,
    QueueDefinition,
    UserDefinition,
    VhostDefinition,
)

ARGUMENTS = {"x-max-length": 1, "x-dedup-window": 5, "x-replicas": 3, "x-acks": 2, "x-min-isr": 2}
SHA512 = "rabbit_password_hashing_sha512"


def exported(**definitions):
    return for_rabbitmq(document(Definitions(**definitions), "Leveret", "1"))


def test_password_that_rabbitmq_cannot_check_is_told():
    theirs = import_hash(SHA512, hash_password_as_rabbitmq("p", bytes(4), SHA512))
    users = [
        UserDefinition("own", hash_password("p", bytes(16))),
        UserDefinition("theirs", theirs),
    ]
    found, told = exported(users=users)
    own, kept = found["users"]
    assert (own["password_hash"], own["hashing_algorithm"]) == (
        "",
        "rabbit_password_hashing_sha256",
    )
    assert kept["hashing_algorithm"] == SHA512
    assert kept["password_hash"]
    (sentence,) = told
    assert sentence.startswith("user 'own' is exported without a password")


def test_what_only_this_broker_knows_is_left_out_and_told():
    found, told = exported(
        vhosts=[VhostDefinition("/")],
        policies=[
            PolicyDefinition("/", "both", "", {"message-ttl": 1, "publish-rate": 5}),
            PolicyDefinition("/", "own", "", {"retry-delays": [1]}),
            PolicyDefinition("/", "limit", "", {"consume-rate": 5}, operator=True),
        ],
        parameters=[
            ParameterDefinition("/", "alert", "a", {}),
            ParameterDefinition("/", "shovel", "s", {}),
        ],
        queues=[QueueDefinition("/", "q", arguments=ARGUMENTS, aliases=("r",))],
    )
    assert [(row["name"], row["definition"]) for row in found["policies"]] == [
        ("both", {"message-ttl": 1})
    ]
    assert [row["component"] for row in found["parameters"]] == ["shovel"]
    assert found["queues"][0]["arguments"] == {"x-max-length": 1}
    assert "aliases" not in found["queues"][0]
    assert len(told) == 5
