"""Route cache: destinations by exchange and routing key, until a binding changes.

The compiled frame reader calls `RouteCache.find` once per run of equal keys; a miss calls Python.
"""

from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint32_t

from leveret.ports.partitioner cimport Partitioner
from leveret.ports.records cimport HAS_HEADERS, BatchBuilder

# Publishers with unbounded key sets (a key per order, say) must not grow the process: a full cache
# is cleared. 64 Ki keys of 40 bytes are about 8 MB for an exchange.
ROUTES_MAX = 65536


cdef class Route:
    """Destinations of one key: the BatchBuilder of each queue, without repetition.

    A partitioned queue has a Partitioner there. Where it places by key, a message without headers
    goes where the last one of this routing key went, while the partitions are the same.
    """

    def __init__(self, builders):
        self.builders = tuple(builders)

    cdef BatchBuilder place(
        self, Partitioner partitioner, uint32_t flags, const uint8_t* address,
        const uint8_t* header, uint32_t header_size,
    ):
        """Return the builder that one of the route's partitioners has for a message of its key."""
        if flags & HAS_HEADERS or not partitioner.by_key:
            return partitioner.choose(flags, address, header, header_size)
        if self.placed_by is not partitioner or self.placed_layout != partitioner.layout:
            self.placed_in = partitioner.choose(flags, address, header, header_size)
            self.placed_by, self.placed_layout = partitioner, partitioner.layout
        return self.placed_in

    def __repr__(self):
        return f"Route({self.builders!r})"


cdef class RouteCache:
    """Route cache of one exchange.

    `resolve(routing_key: bytes) -> Route` is called on a miss; it raises the AMQP error for an
    invalid key. While `cacheable` is False the key alone does not decide (e.g. because of a headers
    exchange on the way): nothing is cached, and publishes are routed one by one, not by `find`.
    `counters` counts publishes to the exchange.
    """

    def __init__(self, exchange, resolve, cacheable=True, Counters counters=None):
        self.exchange = exchange
        self.counters = Counters() if counters is None else counters
        self.resolve = resolve
        self.cacheable = cacheable
        self.routes = {}

    cdef Route find(self, const uint8_t* key, size_t size):
        cdef bytes routing_key = (<const char*>key)[:size]
        cdef PyObject* found = PyDict_GetItemWithError(self.routes, routing_key)
        cdef Route route
        if found != NULL:
            return <Route>found
        route = self.resolve(routing_key)
        if not self.cacheable:
            return route
        if len(self.routes) >= ROUTES_MAX:
            self.routes.clear()
        self.routes[routing_key] = route
        return route

    def lookup(self, bytes routing_key):
        """Return the route of one key, for callers in Python."""
        return self.find(<const uint8_t*><const char*>routing_key, len(routing_key))

    def clear(self):
        """Drop all routes: a binding of this exchange, or behind it, has changed."""
        self.version += 1
        self.routes.clear()

    def forget(self, bytes routing_key):
        """Drop the route of one key: on the default exchange, a queue was added or removed."""
        self.version += 1
        self.routes.pop(routing_key, None)

    def set_cacheable(self, bint cacheable):
        """Set whether routes depend on the key alone; drops all routes."""
        self.cacheable = cacheable
        self.clear()
