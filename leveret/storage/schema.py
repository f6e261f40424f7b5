"""The tables of `leveret.db`: one for each kind of definition, keyed by its natural key.

    user_version 1   vhosts, users, permissions, exchanges, queues, bindings
    user_version 2   topic_permissions, policies, parameters, global_parameters; limits of vhosts
                     and users, and vhosts that are protected from deletion
    user_version 3   queues that were renamed, and queues that are paused
    user_version 4   who created a queue, and when; vhosts that create queues for messages
    user_version 5   store: one row, which definitions these are and how often they were changed
    user_version 6   groups of consumers
    user_version 7   partitions of queues, where they were changed

A change of the layout is a new entry at the end of MIGRATIONS, never a change of an old one: a
database of any age is brought up to date by the entries it has not seen. No foreign keys: what
belongs together is decided in `core`, and writes arrive here in any order.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, Final, get_args

from leveret.ports.definitions import (
    BindingDefinition,
    Definition,
    ExchangeDefinition,
    GlobalParameterDefinition,
    GroupDefinition,
    ParameterDefinition,
    PartitionLayout,
    Paused,
    PermissionDefinition,
    PolicyDefinition,
    QueueDefinition,
    TopicPermissionDefinition,
    UserDefinition,
    VhostDefinition,
)
from leveret.storage.tagged_json import decode_arguments, encode_arguments, encode_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["MIGRATIONS", "TABLES", "Row", "Table"]

Row = tuple[Any, ...]

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        """CREATE TABLE vhosts (
            name TEXT PRIMARY KEY, description TEXT NOT NULL, tags TEXT NOT NULL,
            default_queue_type TEXT NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE users (
            name TEXT PRIMARY KEY, password_hash TEXT NOT NULL, tags TEXT NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE permissions (
            vhost TEXT, user TEXT, configure TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,
            PRIMARY KEY (vhost, user)
        ) WITHOUT ROWID""",
        """CREATE TABLE exchanges (
            vhost TEXT, name TEXT, type TEXT NOT NULL, durable INTEGER NOT NULL,
            auto_delete INTEGER NOT NULL, internal INTEGER NOT NULL, arguments TEXT NOT NULL,
            PRIMARY KEY (vhost, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE queues (
            vhost TEXT, name TEXT, durable INTEGER NOT NULL, exclusive INTEGER NOT NULL,
            auto_delete INTEGER NOT NULL, arguments TEXT NOT NULL, incarnation TEXT NOT NULL,
            PRIMARY KEY (vhost, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE bindings (
            vhost TEXT, source TEXT, destination TEXT, destination_type TEXT, routing_key TEXT,
            arguments TEXT,
            PRIMARY KEY (vhost, source, destination_type, destination, routing_key, arguments)
        ) WITHOUT ROWID""",
    ),
    (
        "ALTER TABLE vhosts ADD COLUMN limits TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE vhosts ADD COLUMN protected_from_deletion INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE users ADD COLUMN limits TEXT NOT NULL DEFAULT '{}'",
        """CREATE TABLE topic_permissions (
            vhost TEXT, user TEXT, exchange TEXT, write TEXT NOT NULL, read TEXT NOT NULL,
            PRIMARY KEY (vhost, user, exchange)
        ) WITHOUT ROWID""",
        """CREATE TABLE policies (
            vhost TEXT, operator INTEGER, name TEXT, pattern TEXT NOT NULL,
            definition TEXT NOT NULL, priority INTEGER NOT NULL, apply_to TEXT NOT NULL,
            PRIMARY KEY (vhost, operator, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE parameters (
            vhost TEXT, component TEXT, name TEXT, value TEXT NOT NULL,
            PRIMARY KEY (vhost, component, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE global_parameters (
            name TEXT PRIMARY KEY, value TEXT NOT NULL
        ) WITHOUT ROWID""",
    ),
    (
        "ALTER TABLE queues ADD COLUMN log_name TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE queues ADD COLUMN aliases TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE queues ADD COLUMN paused TEXT NOT NULL DEFAULT ''",
    ),
    (
        "ALTER TABLE queues ADD COLUMN created_ms INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE queues ADD COLUMN created_by TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE vhosts ADD COLUMN creates_queues INTEGER NOT NULL DEFAULT 0",
    ),
    (
        "CREATE TABLE store (identity BLOB NOT NULL, changes INTEGER NOT NULL)",
        "INSERT INTO store VALUES (randomblob(16), 0)",
    ),
    (
        """CREATE TABLE groups (
            vhost TEXT, queue TEXT, name TEXT, incarnation TEXT NOT NULL,
            created_ms INTEGER NOT NULL, PRIMARY KEY (vhost, queue, name)
        ) WITHOUT ROWID""",
    ),
    ("ALTER TABLE queues ADD COLUMN layout TEXT",),
    ("ALTER TABLE vhosts ADD COLUMN incarnation TEXT NOT NULL DEFAULT 'internal'",),
)


@dataclass(frozen=True, slots=True)
class Table:
    """Table of one kind of definition; columns are its fields, in their order."""

    name: str
    kind: type[Definition]
    key: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns, in the order of the definition's fields."""
        return _COLUMNS[self.kind]

    @property
    def select_sql(self) -> str:
        """Statement that reads every row, ordered by key."""
        columns, key = ", ".join(self.columns), ", ".join(self.key)
        return f"SELECT {columns} FROM {self.name} ORDER BY {key}"  # noqa: S608  # our own names

    @property
    def put_sql(self) -> str:
        """Statement that inserts or replaces a row; takes the values of `row_of`."""
        marks = ", ".join("?" for _ in self.columns)
        columns = ", ".join(self.columns)
        return f"INSERT OR REPLACE INTO {self.name} ({columns}) VALUES ({marks})"  # noqa: S608  # ours

    @property
    def remove_sql(self) -> str:
        """Statement that deletes a row; takes the values of `key_of`."""
        condition = " AND ".join(f"{column} = ?" for column in self.key)
        return f"DELETE FROM {self.name} WHERE {condition}"  # noqa: S608  # our own names

    @property
    def vhost_column(self) -> str | None:
        """Column with the virtual host's name, the first of the key, or None."""
        return self.key[0] if self.key[0] == "vhost" or self.kind is VhostDefinition else None

    def row_of(self, definition: Definition) -> Row:
        """Return the column values of a definition."""
        return self._values(definition, self.columns)

    def key_of(self, definition: Definition) -> Row:
        """Return the column values of a definition's natural key."""
        return self._values(definition, self.key)

    def key_in(self, row: Sequence[Any]) -> Row:
        """Return the natural key in a row."""
        return tuple(row[self.columns.index(column)] for column in self.key)

    def to_fields(self, row: Row) -> dict[str, Any]:
        """Return a row as columns and values, which JSON can hold."""
        return dict(zip(self.columns, row, strict=True))

    def row_in(self, values: Mapping[str, Any]) -> Row:
        """Return the row of columns and values that a release has written, perhaps another one.

        Columns that this one does not know are left out. Raises KeyError if one is missing that
        has no default.
        """
        columns = self.columns
        if len(values) == len(columns) and all(map(values.__contains__, columns)):
            return tuple(map(values.__getitem__, columns))
        defaults = {column.name: column for column in fields(self.kind)}
        return tuple(
            values[column] if column in values else _default_of(defaults[column])
            for column in columns
        )

    def definition_of(self, row: Sequence[Any]) -> Definition:
        """Return the definition of a row. Raises ValueError for a value of the wrong type."""
        values = {
            column: _READERS[column](value) if column in _READERS else value
            for column, value in zip(self.columns, row, strict=True)
        }
        return self.kind(**values)

    def _values(self, definition: Definition, columns: tuple[str, ...]) -> Row:
        return tuple(
            _WRITERS[column](value) if column in _WRITERS else value
            for column, value in ((column, getattr(definition, column)) for column in columns)
        )


def _default_of(column: Field[Any]) -> Any:
    """Return the value of a column in rows of releases that had none. Raises KeyError."""
    if column.default_factory is not MISSING:
        value = column.default_factory()
    elif column.default is not MISSING:
        value = column.default
    else:
        raise KeyError(column.name)
    return _WRITERS[column.name](value) if column.name in _WRITERS else value


def _encode_layout(layout: PartitionLayout | None) -> str | None:
    return None if layout is None else json.dumps([layout.active, layout.retired, layout.made])


def _decode_layout(text: str | None) -> PartitionLayout | None:
    if text is None:
        return None
    active, retired, made = json.loads(text)
    return PartitionLayout(tuple(active), tuple(retired), made)


# Columns that are not text both here and there; the names mean the same in every table.
_WRITERS: Final[dict[str, Callable[[Any], Any]]] = {
    "arguments": encode_arguments,
    "tags": json.dumps,
    "aliases": json.dumps,
    "paused": str,
    "durable": int,
    "exclusive": int,
    "auto_delete": int,
    "internal": int,
    "operator": int,
    "protected_from_deletion": int,
    "creates_queues": int,
    "definition": encode_json,
    "limits": encode_json,
    "value": encode_json,
    "layout": _encode_layout,
}
_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "arguments": decode_arguments,
    "tags": lambda text: tuple(json.loads(text)),
    "aliases": lambda text: tuple(json.loads(text)),
    "paused": Paused,
    "durable": bool,
    "exclusive": bool,
    "auto_delete": bool,
    "internal": bool,
    "operator": bool,
    "protected_from_deletion": bool,
    "creates_queues": bool,
    "definition": json.loads,
    "limits": json.loads,
    "value": json.loads,
    "layout": _decode_layout,
}

_COLUMNS: Final[dict[type[Definition], tuple[str, ...]]] = {
    kind: tuple(column.name for column in fields(kind)) for kind in get_args(Definition)
}
_BINDING_KEY = (
    "vhost",
    "source",
    "destination_type",
    "destination",
    "routing_key",
    "arguments",
)
TABLES: Final[dict[type[Definition], Table]] = {
    table.kind: table
    for table in (
        Table("vhosts", VhostDefinition, ("name",)),
        Table("users", UserDefinition, ("name",)),
        Table("permissions", PermissionDefinition, ("vhost", "user")),
        Table("topic_permissions", TopicPermissionDefinition, ("vhost", "user", "exchange")),
        Table("parameters", ParameterDefinition, ("vhost", "component", "name")),
        Table("global_parameters", GlobalParameterDefinition, ("name",)),
        Table("policies", PolicyDefinition, ("vhost", "operator", "name")),
        Table("exchanges", ExchangeDefinition, ("vhost", "name")),
        Table("queues", QueueDefinition, ("vhost", "name")),
        Table("groups", GroupDefinition, ("vhost", "queue", "name")),
        Table("bindings", BindingDefinition, _BINDING_KEY),
    )
}
