"""Users besides guest that every broker under comparison knows; the password is the name.

`limited` may do something to names that end in one of a few words; `stranger` may enter no vhost.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING

from leveret.cli.session import ask

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURE = r"\.mine$"
WRITE = r"\.(mine|inbox)$"
READ = r"\.(mine|outbox)$"


def add_to_leveret(data_dir: Path) -> None:
    """Tell a running Leveret of them."""
    for name in ("limited", "stranger"):
        ask(data_dir, "user.add", name=name, password=name, tags=[])
    ask(
        data_dir,
        "permission.set",
        vhost="/",
        user="limited",
        configure=CONFIGURE,
        write=WRITE,
        read=READ,
    )


def rabbitmq_definitions() -> str:
    """A definitions file with guest as RabbitMQ would make it, and with these."""
    users = [_user("guest", "administrator"), _user("limited", ""), _user("stranger", "")]
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    limits = {"configure": CONFIGURE, "write": WRITE, "read": READ}
    permissions = [
        {"user": "guest", "vhost": "/", **everything},
        {"user": "limited", "vhost": "/", **limits},
    ]
    return json.dumps({"users": users, "vhosts": [{"name": "/"}], "permissions": permissions})


def _user(name: str, tags: str) -> dict[str, str]:
    salt = b"salt"
    digest = hashlib.sha256(salt + name.encode()).digest()
    return {
        "name": name,
        "password_hash": base64.b64encode(salt + digest).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": tags,
    }
