"""Users and rules that every broker under comparison knows; a user's password is its name.

`limited` may do something to names that end in one of a few words; `stranger` may enter no vhost;
`topical` may use some routing keys of amq.topic; `frugal` may have one connection, `thrifty` two
channels. Vhost `lonely` has room for one connection, `narrow` for one queue; one conversation each,
since a broker takes its time to notice who has gone. Policies count for conversations by name.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CONFIGURE = r"\.mine$"
WRITE = r"\.(mine|inbox)$"
READ = r"\.(mine|outbox)$"


def add_to_leveret(data_dir: Path) -> None:
    """Tell a running Leveret of them."""
    command = [sys.executable, "-m", "leveret", "definitions", "import", "-"]
    subprocess.run(
        [*command, "--data-dir", str(data_dir)],
        input=definitions(),
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def definitions() -> str:
    """A definitions file with guest as RabbitMQ would make it, and with these."""
    users = [
        _user("guest", "administrator"),
        _user("limited", ""),
        _user("stranger", ""),
        _user("topical", ""),
        {**_user("frugal", ""), "limits": {"max-connections": 1}},
        {**_user("thrifty", ""), "limits": {"max-channels": 2}},
    ]
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    permissions = [
        {"user": "guest", "vhost": "/", **everything},
        {"user": "guest", "vhost": "lonely", **everything},
        {"user": "guest", "vhost": "narrow", **everything},
        {"user": "limited", "vhost": "/", "configure": CONFIGURE, "write": WRITE, "read": READ},
        {"user": "topical", "vhost": "/", **everything},
        {"user": "frugal", "vhost": "/", **everything},
        {"user": "thrifty", "vhost": "/", **everything},
    ]
    topics = {"vhost": "/", "user": "topical", "exchange": "amq.topic"}
    limits = {"component": "vhost-limits", "name": "limits"}
    return json.dumps(
        {
            "users": users,
            "vhosts": [{"name": "/"}, {"name": "lonely"}, {"name": "narrow"}],
            "permissions": permissions,
            "topic_permissions": [{**topics, "write": "^{username}\\.", "read": "^{vhost}$|^open"}],
            "parameters": [
                {**limits, "vhost": "lonely", "value": {"max-connections": 1}},
                {**limits, "vhost": "narrow", "value": {"max-queues": 1}},
            ],
            "policies": [
                _policy("own", "^policies", {"message-ttl": 0}, priority=1),
                _policy("weak", "^policies", {"max-length": 1}),
                _policy("alternate", "^alternate_by_policy", {"alternate-exchange": "amq.fanout"}),
            ],
        }
    )


def _policy(
    name: str, pattern: str, definition: dict[str, object], priority: int = 0
) -> dict[str, object]:
    return {
        "vhost": "/",
        "name": name,
        "pattern": pattern,
        "definition": definition,
        "priority": priority,
        "apply-to": "all",
    }


def _user(name: str, tags: str) -> dict[str, str]:
    salt = b"salt"
    digest = hashlib.sha256(salt + name.encode()).digest()
    return {
        "name": name,
        "password_hash": base64.b64encode(salt + digest).decode(),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": tags,
    }
