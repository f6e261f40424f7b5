"""Definitions of a cluster: the coordinator keeps them, and every node has all in memory.

    definitions/TABLE/VHOST/DIGEST    the columns of one definition, as JSON

TABLE is that of a single node's database; VHOST the virtual host, escaped, or `-` where a
definition has none; DIGEST that of the natural key, which may be longer than a key of the
coordinator can be. A definition is changed by the controller alone: so no two nodes can contradict
each other, and a controller that is none any more cannot write.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import quote

from leveret.errors import StorageError
from leveret.ports.coordination import (
    WRITE_BYTES_MAX,
    ConflictError,
    CoordinatorError,
    KeyChange,
    NotControllerError,
    WriteTooLargeError,
)
from leveret.ports.definitions import (
    Definition,
    Definitions,
    GroupDefinition,
    Home,
    QueueDefinition,
)
from leveret.storage.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping

    from leveret.ports.coordination import Coordinator

__all__ = [
    "DEFINITIONS_PREFIX",
    "ClusterDefinitions",
    "CompanionKeys",
    "decode_definition",
    "definition_key",
    "encode_definition",
]

logger = logging.getLogger(__name__)

DEFINITIONS_PREFIX: Final = "definitions/"
DIGEST_BYTES: Final = 16
NO_VHOST: Final = "-"  # no name is escaped to it: a minus would be
PORTION_BYTES_MAX: Final = WRITE_BYTES_MAX // 2
CHANGE_BYTES: Final = 64  # of a change beside key and value, at most
KINDS: Final = {table.name: kind for kind, table in TABLES.items()}


def definition_key(definition: Definition) -> str:
    """Return the coordinator's key of a definition."""
    table = TABLES[type(definition)]
    row = table.key_of(definition)
    digest = blake2b(json.dumps(row).encode(), digest_size=DIGEST_BYTES).hexdigest()
    vhost = NO_VHOST if table.vhost_column is None else _escaped(row[0])
    return f"{DEFINITIONS_PREFIX}{table.name}/{vhost}/{digest}"


def _escaped(vhost: str) -> str:
    return quote(vhost, safe="").replace("-", "%2D")


def encode_definition(definition: Definition) -> bytes:
    """Return the value of a definition: its columns, and the home of a queue that has one."""
    table = TABLES[type(definition)]
    columns = dict(zip(table.columns, table.row_of(definition), strict=True))
    if isinstance(definition, QueueDefinition) and definition.home is not None:
        columns["home"] = list(definition.home)
    return json.dumps(columns, separators=(",", ":")).encode()


def decode_definition(key: str, value: bytes) -> Definition:
    """Return the definition that a key has. Columns that it lacks have their defaults.

    Raises ValueError, which names the key.
    """
    try:
        kind = KINDS[key.split("/")[1]]
        columns = json.loads(value)
        definition = TABLES[kind].definition_from(columns)
        if isinstance(definition, QueueDefinition) and columns.get("home") is not None:
            definition = replace(definition, home=_home(*columns["home"]))
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the coordinator's key {key} has no definition: {error!r}") from error
    return definition


def _decoded(values: Mapping[str, bytes]) -> Definitions:
    """Return the definitions with these keys, ordered by key. Raises StorageError."""
    found = Definitions()
    for key, value in values.items():
        try:
            definition = decode_definition(key, value)
        except ValueError as error:
            raise StorageError(str(error)) from error
        target: list[Any] = getattr(found, TABLES[type(definition)].name)
        target.append(definition)
    for table in TABLES.values():
        getattr(found, table.name).sort(key=table.key_of)
    return found


def _home(node: object, session: object, connection: object) -> Home:
    if not (isinstance(node, int) and isinstance(session, int) and isinstance(connection, str)):
        raise TypeError("a home has a node, a session and a connection")
    return Home(node, session, connection)


# Takes a definition, and whether it was removed. Raises StorageError.
Forward: TypeAlias = "Callable[[Definition, bool], Awaitable[None]]"


class CompanionKeys(Protocol):
    """Keys that are written and removed together with queues: the states of their partitions."""

    def of_queue(self, queue: QueueDefinition, known: Iterable[str]) -> Mapping[str, bytes | None]:
        """Return the changes that a queue's definition needs where these of its keys are there."""
        ...

    def prefix_of(self, queue: QueueDefinition) -> str:
        """Return what all keys of a queue begin with."""
        ...


class ClusterDefinitions:
    """`MetadataStore` of a cluster. Only the controller may put and remove.

    `spawn` starts a task that writes what was put. On another node, which `is_following`, nothing
    is written: what it puts, and the groups that it removes, is told to the controller by
    `forward`, unless it `is_applying` what that has changed. `lost` is called when changes cannot
    be written, so that the node must begin anew with what the coordinator has.
    """

    keeps_all = True  # all nodes route to all queues

    def __init__(
        self,
        coordinator: Coordinator,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.is_following = self.is_applying = False
        self.companions: CompanionKeys | None = None
        self.forward: Forward = _refuse
        self.lost: Callable[[], None] = lambda: None
        self._coordinator = coordinator
        self._spawn = spawn
        self._unwritten: dict[str, bytes | None] = {}
        self._in_flight: dict[str, bytes | None] = {}
        self._unsent: list[tuple[Definition, bool]] = []  # with whether it was removed
        self._keys_of_queues: dict[str, str] = {}  # by incarnation, of what was put here
        self._waiting: list[asyncio.Future[StorageError | None]] = []
        self._is_writing = self._is_retried = False

    async def load(self) -> Definitions:
        """Return all definitions, ordered by key. Raises StorageError."""
        await self.flush()
        try:
            await self._coordinator.catch_up()
        except CoordinatorError as error:
            raise StorageError(f"the definitions cannot be read: {error}") from error
        return await self.known()

    async def known(self) -> Definitions:
        """Return all definitions as this node has them now, ordered by key. Raises StorageError."""
        entries = self._coordinator.entries
        values = {key: entries[key].value for key in entries.keys(DEFINITIONS_PREFIX)}
        return await asyncio.to_thread(_decoded, values)  # there may be ten thousands

    # -- what is changed

    def put(self, definition: Definition) -> None:
        """Queue the insert or replacement of a definition, by its natural key."""
        if self.is_following:
            self._forward_later(definition, is_removal=False)
            return
        key = definition_key(definition)
        if isinstance(definition, QueueDefinition):
            self._keys_of_queues[definition.incarnation] = key
            if self.companions is not None:
                known = self._present(self.companions.prefix_of(definition))
                # Before the definition: a queue without them would be of no use.
                for companion, value in self.companions.of_queue(definition, known).items():
                    self._note(companion, value)
        self._note(key, encode_definition(definition))

    def remove(self, definition: Definition) -> None:
        """Queue the deletion of a definition, by its natural key; a missing one is no error."""
        if self.is_following:
            if isinstance(definition, GroupDefinition):  # others go with what belongs to clients
                self._forward_later(definition, is_removal=True)
            return
        key = definition_key(definition)
        self._note(key, None)
        if isinstance(definition, QueueDefinition):
            if self._keys_of_queues.get(definition.incarnation, key) != key:
                return  # it has another name now
            self._keys_of_queues.pop(definition.incarnation, None)
            self._remove_companions(definition)

    def _forward_later(self, definition: Definition, *, is_removal: bool) -> None:
        if not self.is_applying:
            self._unsent.append((definition, is_removal))
            self._begin()

    def _remove_companions(self, queue: QueueDefinition) -> None:
        if self.companions is not None:
            for key in self._present(self.companions.prefix_of(queue)):
                self._note(key, None)

    def remove_vhost(self, name: str) -> None:
        """Queue the deletion of a virtual host with all its definitions."""
        if self.is_following:
            return
        for table in TABLES.values():
            if table.vhost_column is None:
                continue
            for key in self._present(f"{DEFINITIONS_PREFIX}{table.name}/{_escaped(name)}/"):
                if table.kind is QueueDefinition:
                    self._remove_companions_of(key)
                self._note(key, None)

    def _remove_companions_of(self, key: str) -> None:
        value = self._value(key)
        if value is not None:
            queue = decode_definition(key, value)
            assert isinstance(queue, QueueDefinition), "the key is of this table"
            self._keys_of_queues.pop(queue.incarnation, None)
            self._remove_companions(queue)

    def complete(self, queues: Iterable[QueueDefinition]) -> Iterator[None]:
        """Queue what is missing beside the definitions of queues, one in each step."""
        for queue in queues:
            if self.is_following or self.companions is None:
                return
            known = self._present(self.companions.prefix_of(queue))
            for key, value in self.companions.of_queue(queue, known).items():
                self._note(key, value)
            yield

    def wanted(self) -> dict[str, bytes]:
        """Return the values of all definitions by key, those that are being written included."""
        return {
            key: value
            for key in self._present(DEFINITIONS_PREFIX)
            if (value := self._value(key)) is not None
        }

    def _present(self, prefix: str) -> list[str]:
        """Return the keys that are there once everything is written."""
        changed = (key for key in (*self._unwritten, *self._in_flight) if key.startswith(prefix))
        found = dict.fromkeys((*self._coordinator.entries.keys(prefix), *changed))
        return [key for key in found if self._value(key) is not None]

    def _value(self, key: str) -> bytes | None:
        for changed in (self._unwritten, self._in_flight):
            if key in changed:
                return changed[key]
        entry = self._coordinator.entries.get(key)
        return None if entry is None else entry.value

    # -- writing

    def _note(self, key: str, value: bytes | None) -> None:
        self._unwritten[key] = value
        self._begin()

    def _begin(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._spawn(self._write_all())

    @property
    def pending(self) -> bool:
        """Whether anything queued is not written yet."""
        return bool(self._unwritten or self._unsent) or self._is_writing

    def is_written(self, definition: Definition) -> bool:
        """Whether nothing queued is about a definition, by its natural key."""
        key = definition_key(definition)
        return key not in self._unwritten and key not in self._in_flight

    async def flush(self) -> None:
        """Wait until everything queued before this call is written.

        Raises StorageError; what could not be written stays queued for the next attempt, unless
        this node is not the controller any more.
        """
        if not self.pending:
            return
        # The task goes on if this is cancelled: nobody would know what it has written.
        written: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(written)
        self._begin()
        error = await written
        if error is not None:
            raise StorageError(str(error)) from error

    async def _write_all(self) -> None:
        """Write what is queued, and tell those who wait; a failure is logged if nobody does."""
        failure: StorageError | None = StorageError("definitions are not written: the node stops")
        waiting: list[asyncio.Future[StorageError | None]] = []
        try:
            while True:
                waiting, self._waiting = self._waiting, []
                self._is_retried = False
                failure = await self._forward() or await self._write()
                if failure is not None and not waiting:
                    logger.error("definitions are not written yet: %s", failure)
                _tell(waiting, failure)
                waiting = []
                is_over = failure is not None and not self._is_retried
                is_done = is_over or not (self._unwritten or self._unsent)
                if is_done and not self._waiting:
                    return
        finally:
            self._is_writing = False
            _tell(waiting + self._waiting, failure)
            self._waiting = []

    async def _forward(self) -> StorageError | None:
        """Tell the controller what this node has changed by itself, and return what has failed."""
        unsent, self._unsent = self._unsent, []
        for definition, is_removal in unsent:
            if not self.is_following:
                (self.remove if is_removal else self.put)(definition)
                continue
            try:
                await self.forward(definition, is_removal)
            except StorageError as error:
                self.lost()
                return error
        return None

    async def _write(self) -> StorageError | None:
        """Write all once, and return what has failed; it is queued again where that may help."""
        self._in_flight, self._unwritten = self._unwritten, {}
        try:
            portions = list(_portions(self._in_flight))
            outcomes = await asyncio.gather(
                *map(self._coordinator.write_as_controller, portions), return_exceptions=True
            )
            errors = [
                error
                for portion, outcome in zip(portions, outcomes, strict=True)
                if (error := self._follow_up(portion, outcome)) is not None
            ]
        finally:
            self._in_flight = {}
        if not errors:
            return None
        if any(isinstance(error, NotControllerError) for error in errors):
            self._unwritten.clear()
        if any(isinstance(error, NotControllerError | WriteTooLargeError) for error in errors):
            self.lost()
        failure = StorageError(f"definitions cannot be written: {errors[0]}")
        failure.__cause__ = errors[0]
        return failure

    def _follow_up(
        self, portion: list[KeyChange], outcome: int | BaseException
    ) -> CoordinatorError | None:
        """Queue a portion again that may be written later. Returns the error that is to be told."""
        if not isinstance(outcome, BaseException):
            return None
        if not isinstance(outcome, CoordinatorError):
            raise outcome
        if isinstance(outcome, WriteTooLargeError):
            return outcome
        # What was to be new has been there: an earlier attempt had written it.
        there = outcome.keys if isinstance(outcome, ConflictError) else ()
        again = {change.key: change.value for change in portion if change.key not in there}
        self._unwritten = again | self._unwritten
        return None if there else outcome

    def retry(self) -> None:
        """Write what is still queued after a failure, also after one that is not known yet."""
        self._is_retried = True
        if self._unwritten:
            self._begin()

    async def close(self) -> None:
        """Write what is queued. Raises StorageError."""
        await self.flush()


async def _refuse(definition: Definition, _is_removal: bool) -> None:
    raise StorageError(f"only the controller changes definitions: {definition!r}")


def _tell(
    waiting: Iterable[asyncio.Future[StorageError | None]], failure: StorageError | None
) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(failure)


def _portions(changes: Mapping[str, bytes | None]) -> Iterator[list[KeyChange]]:
    """Yield changes in portions that are small enough for one write.

    Companions of definitions are changed by others as well, and only made here: they must not be
    there yet.
    """
    portion: list[KeyChange] = []
    size = 0
    for key, value in changes.items():
        added = len(key) + len(value or b"") + CHANGE_BYTES
        if portion and size + added > PORTION_BYTES_MAX:
            yield portion
            portion, size = [], 0
        is_made = value is not None and not key.startswith(DEFINITIONS_PREFIX)
        portion.append(KeyChange(key, value, 0 if is_made else None))
        size += added
    if portion:
        yield portion
