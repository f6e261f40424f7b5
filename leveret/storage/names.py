"""Directory names of virtual hosts, topics and logs: any text, made safe for file systems.

topics/VHOST/TOPIC~~INCARNATION/PARTITION/     files of a log
topics/.deleted/                               those that were deleted (storage/trash.py)
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from leveret.storage.files import storage_error

if TYPE_CHECKING:
    from pathlib import Path

    from leveret.storage.files import FileSystem

__all__ = ["TRASH", "encode_name", "list_logs", "log_key"]

TRASH = ".deleted"  # no encoded name is hidden

SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")
NAME_BYTES_MAX = 150  # with an incarnation of up to 100 behind it below the usual limit of 255
INCARNATION_BYTES_MAX = 100


def encode_name(name: str, bytes_max: int = NAME_BYTES_MAX) -> str:
    """Return a file name for `name`, unique to it; never empty, hidden or with a slash.

    Bytes outside `SAFE` and a leading dot become %XX. What would be too long keeps a prefix and
    gets a hash behind `~`, a sign that no encoded name holds.
    """
    if len(name) <= bytes_max and SAFE_NAME.fullmatch(name):
        return name
    raw = name.encode("utf-8", "surrogatepass")
    encoded = "".join(chr(byte) if byte in SAFE else f"%{byte:02X}" for byte in raw)
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) > bytes_max:
        digest = hashlib.blake2b(raw, digest_size=16).hexdigest()
        encoded = f"{encoded[: bytes_max - 33]}~{digest}"
    return encoded or "%"


_encode_vhost = lru_cache(encode_name)


def log_key(vhost: str, topic: str, incarnation: str, partition: int) -> str:
    """Return VHOST/TOPIC~~INCARNATION/PARTITION: a redeclared queue never meets older files.

    It is the log's directory below that of all logs, and below 511 bytes, LMDB's limit for keys.
    """
    topic_name = f"{encode_name(topic)}~~{encode_name(incarnation, INCARNATION_BYTES_MAX)}"
    return f"{_encode_vhost(vhost)}/{topic_name}/{partition}"


def list_logs(files: FileSystem, topics: Path) -> list[str]:
    """Return the keys of all logs that have a directory. Waits for the device.

    Raises StorageError.
    """
    names = files.list_names
    try:
        return [
            f"{vhost}/{topic}/{partition}"
            for vhost in names(topics)
            if vhost != TRASH
            for topic in names(topics / vhost)
            for partition in names(topics / vhost / topic)
        ]
    except OSError as error:
        raise storage_error("list", topics, error) from error
