"""Settings: the data directory, durability, segment files, and encryption at rest."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from leveret.config.settings import KIB, MIB, Settings, split_names
from leveret.ports import Durability

__all__ = ["CONFIRMABLE", "AcceptedLoss", "StorageSettings"]

CONFIRMABLE = (Durability.FSYNC, Durability.OS)


class AcceptedLoss(StrEnum):
    """A loss with which a node may start if its operator accepts it."""

    DEFINITIONS = "definitions"


class StorageSettings(Settings):
    """The data directory, its logs, and encryption at rest."""

    data_dir: Path = Field(
        Path("var"),
        description="Data directory: messages, definitions, keys and records. Only one running "
        "node can use it.",
    )
    definitions: Path | None = Field(
        None,
        description="File of definitions (`leveret definitions export`, or RabbitMQ's) that is "
        "imported at each start, before clients may connect; existing definitions stay.",
    )
    accept_loss: tuple[AcceptedLoss, ...] = Field(
        (),
        description="Data that the node may start without although there are logs: `definitions`, "
        "where leveret.db is damaged, missing or too old. Works once, until the loss is "
        "acknowledged (`leveret loss acknowledge`). By default such a node does not start: queues "
        "that clients declare again would not have the messages of the old ones. Comma-separated "
        "in the environment.",
    )
    durability: Durability = Field(
        Durability.FSYNC,
        description="Durability of confirmed persistent messages: with `fsync` they survive a "
        "power failure, with `os` only a crash of the broker process.",
    )

    segment_bytes_max: int = Field(
        64 * MIB,
        ge=64 * KIB,
        le=2048 * MIB,
        description="Bytes of a segment file before the next is opened: retention deletes whole "
        "segments, so smaller returns space earlier and larger needs fewer files.",
    )
    open_segments_max: int = Field(
        4096,
        ge=16,
        description="Segment files kept open for writing, one for each queue that is in use; of "
        "others the file is opened again with the next message. Lower where the system allows the "
        "process few open files, so that clients and operators have theirs.",
    )
    tail_cache_bytes_max: int = Field(
        64 * MIB,
        ge=1 * MIB,
        description="Bytes of recently appended batches kept in memory for all queues together: "
        "consumers that keep up never read a file. It is most of a node's memory.",
    )
    settle_flush_interval_ms: int = Field(
        50,
        ge=1,
        le=10_000,
        description="Milliseconds for which settlements gather before they are logged: after a "
        "crash, what was settled in the last interval is delivered again.",
    )
    compaction_bytes_per_s: int = Field(
        16 * MIB,
        ge=64 * KIB,
        description="Bytes per second that the compaction of streams reads and writes at most, all "
        "streams together: a fraction of what a disk does, so that publishers do not feel it.",
    )
    compaction_map_bytes_max: int = Field(
        32 * MIB,
        ge=64 * KIB,
        le=4096 * MIB,
        description="Bytes of memory for the keys of a stream while it is compacted: 24 for each, "
        "in a table that is three quarters full at most. A stream with more keys is compacted in "
        "parts, and read once for each part.",
    )

    # Encryption at rest: `leveret encryption enable --vhost V`.
    encryption_key: SecretStr = Field(
        SecretStr(""),
        description="Master key, 32 bytes in base64 or hexadecimal: for the environment, where a "
        "file cannot be. Other programs of the same user can read it there.",
    )
    encryption_key_file: Path | None = Field(
        None,
        description="File with the master key, which only its owner may write and only its group "
        "may read besides; `leveret encryption generate-key` makes one. Needed where a virtual "
        "host is encrypted.",
    )

    @property
    def database_path(self) -> Path:
        """Path of the definitions store."""
        return self.data_dir / "leveret.db"

    @property
    def control_socket_path(self) -> Path:
        """Path of the control socket, by which the command line reaches the running node."""
        return self.data_dir / "control.sock"

    @field_validator("accept_loss", mode="before")
    @classmethod
    def _split_losses(cls, value: object) -> object:
        return split_names(value)

    @field_validator("durability", mode="before")
    @classmethod
    def _survives_something(cls, value: object) -> object:
        """Refuse NONE, which is for transient queues: with it confirms would mean nothing."""
        if value not in (*CONFIRMABLE, *(each.value for each in CONFIRMABLE)):
            raise ValueError("expected 'fsync' or 'os'")
        return value

    @field_validator("encryption_key", mode="before")
    @classmethod
    def _is_shown_to_nobody(cls, value: object) -> object:
        """Convert any value to text: a value of a wrong type would be quoted in the error."""
        return value if isinstance(value, SecretStr) else str(value)

    @field_validator("encryption_key_file")
    @classmethod
    def _is_the_only_master_key(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        given = info.data.get("encryption_key")
        if value is not None and given is not None and given.get_secret_value():
            raise ValueError("cannot be given beside 'encryption_key'")
        return value
