"""The broker's servers as the data source sees them: requests that are retried, on any of them.

One `BrokerServers` for each set of options and process (`servers_of`), which keeps its connection
from one micro-batch to the next. A server that cannot be reached, or is too busy, is asked again,
and so are the others in turn, for `retryTimeout` at most; a refusal is an error at once.
"""

from __future__ import annotations

import http.client
import logging
import os
import random
import ssl
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from leveret.api_connection import ApiClient, RequestRefusedError, WrongPortError
from leveret.batch_writer import BatchWriter
from leveret.range_reader import LeaseClient, LeaseLostError, OutOfRangeError, RangeReader
from leveret.spark.errors import (
    AccessRefusedError,
    BatchTooLargeError,
    BrokerUnreachableError,
    SourceError,
    TopicMissingError,
    WrongCredentialsError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from leveret.range_reader import (
        LeasedOffsets,
        LeaseName,
        ReadChunk,
        SettledMessages,
        TopicBounds,
    )
    from leveret.spark.connection_options import ConnectionOptions
    from leveret.spark.offsets import OffsetRange
    from leveret.spark.read_options import MessageFilters

__all__ = ["BrokerServers", "PartName", "servers_of"]

T = TypeVar("T")
C = TypeVar("C", bound=ApiClient)

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0
BUSY_STATUSES: Final = (429, 502, 503, 504)
NOT_PERMITTED: Final = "not_authorised"  # of a 401: the password was right
CHUNK_BYTES: Final = 4 << 20


class PartName(NamedTuple):
    """Name of a part of a staged batch: the number of its batch, and its name there."""

    number: int
    name: str


class Access(NamedTuple):
    """Thing that a request reads or writes."""

    what: str
    permission: str  # read, or write

    def __str__(self) -> str:
        done = "read" if self.permission == "read" else "written"
        return f"{self.what} cannot be {done}"


class Clients:
    """Clients of one server, each connected when it is used first."""

    def __init__(self, url: str, options: ConnectionOptions) -> None:
        self.url = url
        self._options = options
        self._connected: dict[type[ApiClient], ApiClient] = {}

    @property
    def reader(self) -> RangeReader:
        """Reader of partitions by offset."""
        return self._client(RangeReader)

    @property
    def writer(self) -> BatchWriter:
        """Writer of staged batches."""
        return self._client(BatchWriter)

    @property
    def leases(self) -> LeaseClient:
        """Client of batch leases."""
        return self._client(LeaseClient)

    def _client(self, kind: type[C]) -> C:
        found = self._connected.get(kind)
        if not isinstance(found, kind):
            its = self._options
            found = kind(self.url, its.user, its.password, its.vhost, context=self._context())
            self._connected[kind] = found
        return found

    def _context(self) -> ssl.SSLContext | None:
        options = self._options
        if not self.url.startswith("https:"):
            return None
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.cert_file is not None:
            context.load_cert_chain(options.cert_file, options.key_file)
        return context

    def close(self) -> None:
        """Close the connections; they are opened again when they are needed."""
        for client in self._connected.values():
            client.close()


def _consumed(queue: str) -> Access:
    return Access(f"queue '{queue}'", "read")


class Attempt(NamedTuple):
    """Failed attempt: its reason, and how long to wait before the next one at least."""

    reason: str
    after_s: float


class BrokerServers:
    """The servers of one broker, of which one is talked to. For one thread."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._server = random.randrange(len(options.servers))  # noqa: S311
        self._clients: Clients | None = None

    def topic(self, name: str, time_ms: int | None = None, *, sizes: bool = False) -> TopicBounds:
        """Return the partitions of a topic, with the offsets of a time if one is given."""
        access = Access(f"topic '{name}'", "read")
        return self._ask(access, lambda clients: clients.reader.topic(name, time_ms, sizes=sizes))

    def topic_names(self) -> list[str]:
        """Return the names of all topics that can be read by offset."""
        access = Access("the list of topics", "read")
        return self._ask(access, lambda clients: clients.reader.topic_names())

    def resource(self, what: str, *path: str, **query: object) -> Any:
        """Return the JSON of a resource of the HTTP API; `what` names it in errors."""
        access = Access(what, "read")
        return self._ask(access, lambda clients: clients.reader.resource(*path, **query))

    def check_filters(self, place: tuple[str, int, int], filters: MessageFilters) -> None:
        """Have filters parsed by a read at `place`, a topic, a partition and its end.

        What is gone meanwhile is told where it is read. Raises SourceError.
        """
        topic, partition, end = place
        with suppress(OutOfRangeError, TopicMissingError):
            self._ask(
                Access(f"topic '{topic}'", "read"),
                lambda clients: clients.reader.read(
                    topic,
                    partition,
                    end,
                    rows_max=1,
                    columns=("offset",),
                    tags=filters.tags,
                    where=filters.where,
                ),
            )

    def commit_offsets(self, topic: str, group: str, offsets: dict[int, int]) -> None:
        """Let a consumer group have come to these offsets, one try. Raises OSError and others."""
        self._connected().reader.commit_offsets(topic, group, offsets)

    def stage(self, writer: str, part: PartName, chunks: list[bytes]) -> int:
        """Stage a part of a batch; return its rows. Raises SourceError."""
        access = Access(f"part {part.name} of batch {part.number} of writer '{writer}'", "write")
        return self._ask(
            access, lambda clients: clients.writer.stage(writer, part.number, part.name, chunks)
        )

    def commit(self, writer: str, number: int, parts: Sequence[str], *, mandatory: bool) -> None:
        """Publish the messages of parts, all or none, and once. Raises SourceError."""
        access = Access(f"batch {number} of writer '{writer}'", "write")
        self._ask(
            access,
            lambda clients: clients.writer.commit(writer, number, parts, mandatory=mandatory),
        )

    def abort(self, writer: str, number: int) -> None:
        """Drop what is staged of a batch. Raises SourceError."""
        access = Access(f"batch {number} of writer '{writer}'", "write")
        self._ask(access, lambda clients: clients.writer.abort(writer, number))

    def last_committed(self, writer: str) -> int | None:
        """Return the number of the batch that a writer has committed last. Raises SourceError."""
        user = self._options.user
        return self._ask(
            Access(f"writer '{writer}'", "write"),
            lambda clients: clients.writer.last_committed(writer, user),
        )

    def forget(self, writer: str) -> None:
        """Forget a writer that will not come again. Raises SourceError."""
        self._ask(
            Access(f"writer '{writer}'", "write"), lambda clients: clients.writer.forget(writer)
        )

    def chunks(
        self, wanted: OffsetRange, columns: Sequence[str], filters: MessageFilters
    ) -> Iterator[ReadChunk]:
        """Yield chunks with the records of a range, and maybe more behind it in the last one.

        A connection that ends is opened again where the last chunk ended. Raises OutOfRangeError.
        """
        rest = wanted
        while rest.first < rest.end:
            begin = partial(self._begin, rest, columns, filters)
            for chunk in self._ask(Access(str(rest), "read"), begin):
                if chunk.next_offset == rest.first:
                    raise OutOfRangeError("the log ends before", chunk.first, chunk.end)
                rest = rest._replace(first=chunk.next_offset)
                yield chunk

    def _begin(
        self,
        wanted: OffsetRange,
        columns: Sequence[str],
        filters: MessageFilters,
        clients: Clients,
    ) -> Iterator[ReadChunk]:
        """Return the chunks of a range, of which the first has come, until something fails."""
        topic, partition, first, end = wanted
        chunks = clients.reader.chunks(
            topic,
            partition,
            first,
            end,
            bytes_max=CHUNK_BYTES,
            columns=columns,
            tags=filters.tags,
            where=filters.where,
        )
        return self._until_failure(next(chunks), chunks)

    # -- batch leases

    def ready(self, queue: str) -> int:
        """Return how many messages of a queue are ready."""
        return self._ask(_consumed(queue), lambda clients: clients.leases.ready(queue))

    def lease(self, name: LeaseName, wish: Mapping[str, int | None]) -> LeasedOffsets:
        """Lease the next messages of a queue; `wish` is that of LeaseClient.lease."""
        access = _consumed(name.queue)
        return self._ask(access, lambda clients: clients.leases.lease(name, **wish))

    def lease_again(self, name: LeaseName, wanted: LeasedOffsets, idle_ms: int) -> LeasedOffsets:
        """Lease what a lease had, as far as it is there. Raises LeaseLostError."""
        return self._ask(
            _consumed(name.queue),
            lambda clients: clients.leases.lease_again(name, wanted, idle_ms=idle_ms),
        )

    def settle(self, name: LeaseName, known: LeasedOffsets) -> SettledMessages:
        """Settle the leases up to one. Raises LeaseLostError."""
        return self._ask(_consumed(name.queue), lambda clients: clients.leases.settle(name, known))

    def release(self, queue: str, holder: str) -> None:
        """End a holder, which has nothing leased, one try. Raises OSError and others."""
        self._connected().leases.release(queue, holder)

    def leased_chunks(
        self, name: LeaseName, wanted: OffsetRange, columns: Sequence[str]
    ) -> Iterator[ReadChunk]:
        """Yield chunks with what a lease has of a range, and maybe more behind it in the last one.

        A connection that ends is opened again where the last chunk ended. Raises LeaseLostError.
        """
        rest = wanted
        while rest.first < rest.end:
            begin = partial(self._begin_leased, name, rest, columns)
            before = rest.first
            for chunk in self._ask(Access(str(rest), "read"), begin):
                rest = rest._replace(first=chunk.next_offset)
                yield chunk
            if rest.first == before:
                return  # the lease has nothing behind it

    def _begin_leased(
        self, name: LeaseName, wanted: OffsetRange, columns: Sequence[str], clients: Clients
    ) -> Iterator[ReadChunk]:
        leases = clients.leases
        chunks = leases.leased_chunks(name, *wanted[1:], bytes_max=CHUNK_BYTES, columns=columns)
        return self._until_failure(next(chunks), chunks)

    @staticmethod
    def _until_failure(first: ReadChunk, rest: Iterator[ReadChunk]) -> Iterator[ReadChunk]:
        yield first
        try:
            yield from rest
        except (OSError, http.client.HTTPException, RequestRefusedError) as error:
            logger.info("reading is begun anew: %s", error)  # the next request is told why

    def _ask(self, access: Access, request: Callable[[Clients], T]) -> T:
        """Return the answer to a request, which is repeated while it may help.

        Raises LeaseLostError, OutOfRangeError, and the errors of leveret.spark.errors.
        """
        until = time.monotonic() + self._options.retry_timeout_s
        pause = FIRST_PAUSE_S
        while True:
            try:
                return request(self._connected())
            except (LeaseLostError, OutOfRangeError):
                raise
            except RequestRefusedError as error:
                failed = self._refused(access, error)
            except WrongPortError as error:
                raise BrokerUnreachableError(f"{access}: {error}") from error
            except ssl.SSLCertVerificationError as error:
                raise self._unreachable(access, f"its certificate is refused: {error}") from error
            except (OSError, http.client.HTTPException) as error:
                failed = Attempt(f"{self._url}: {self._reason(error)}", 0)
            self._next_server()
            wait = max(failed.after_s, pause * random.uniform(0.5, 1))  # noqa: S311
            if time.monotonic() + wait > until:
                raise self._unreachable(access, failed.reason)
            logger.warning("%s now, and this is tried again: %s", access, failed.reason)
            time.sleep(wait)
            pause = min(2 * pause, PAUSE_MAX_S)

    def _connected(self) -> Clients:
        if self._clients is None:
            self._clients = Clients(self._url, self._options)
        return self._clients

    @property
    def _url(self) -> str:
        return self._options.servers[self._server]

    def _next_server(self) -> None:
        self.close()
        self._server = (self._server + 1) % len(self._options.servers)

    def _refused(self, access: Access, error: RequestRefusedError) -> Attempt:
        """Return what to do about a refusal that may pass. Raises for others."""
        vhost = self._options.vhost
        if error.status in BUSY_STATUSES:
            return Attempt(f"{self._url}: {error.reason}", error.retry_after_s or 0)
        if error.status == 401 and error.details.get("error") != NOT_PERMITTED:
            raise WrongCredentialsError(
                f"{self._url} refuses user '{self._options.user}': wrong user or password"
            ) from error
        if error.status in {401, 403}:
            raise AccessRefusedError(
                f"user '{self._options.user}' may not {access.permission} {access.what} in virtual "
                f"host '{vhost}': {error.reason}"
            ) from error
        if error.status == 404 and access.permission == "read":
            raise TopicMissingError(
                f"{access.what} does not exist in virtual host '{vhost}': {error.reason}"
            ) from error
        if error.status == 404:
            raise SourceError(f"{access} in virtual host '{vhost}': {error.reason}") from error
        if error.status == 413:
            raise BatchTooLargeError(f"{access}: {error.reason}") from error
        raise SourceError(f"{access}: {error}") from error

    def _reason(self, error: Exception) -> str:
        """Return why a request has failed; a port with TLS closes what is none without a word."""
        reason = str(error) or type(error).__name__
        is_closed = isinstance(error, http.client.RemoteDisconnected)
        is_plain = self._url.startswith("http:")
        return f"{reason}: is it a port for https://?" if is_closed and is_plain else reason

    def _unreachable(self, access: Access, reason: str) -> BrokerUnreachableError:
        tried = (
            f"within {self._options.retry_timeout_s:g} s" if self._options.retry_timeout_s else ""
        )
        return BrokerUnreachableError(
            f"{access}: none of {', '.join(self._options.servers)} has answered {tried}: {reason}"
        )

    def close(self) -> None:
        """Close the connections."""
        if self._clients is not None:
            self._clients.close()
            self._clients = None


_known: dict[tuple[int, ConnectionOptions], BrokerServers] = {}


def servers_of(options: ConnectionOptions) -> BrokerServers:
    """Return this process's connection to the broker with these options."""
    key = (os.getpid(), options)  # a forked process has its parent's dictionary
    if key not in _known:
        _known[key] = BrokerServers(options)
    return _known[key]
