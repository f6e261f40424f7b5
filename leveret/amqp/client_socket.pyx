"""The compiled half of a client's socket: what each read and each write passes through.

The transport reads for it, and writes what the socket has no room for, and what is encrypted. Other
output is sent to the socket itself: the transport would do so later, and at the cost of three calls.
"""

from leveret.amqp.deliveries cimport Outbox
from leveret.core.turn cimport Turn


cdef class ClientSocket:
    """Reads from the shared buffer into a connection, and writes its output once a turn.

    Subclasses have `_keep(nbytes)` for the input of strangers, `_pace()`, `_resume_reading()` and
    `_check_unread()`.
    """

    def __init__(self, Turn turn not None, poller, buffer):
        self._turn = turn
        self._poller = poller
        self._buffer = buffer
        self._is_stranger = True
        self.writable = True
        self._descriptor = -1

    def get_buffer(self, sizehint):
        """Return the shared buffer: its content is processed before another socket is read."""
        return self._buffer

    def buffer_updated(self, Py_ssize_t nbytes):
        """Process the bytes that were read."""
        cdef bint more
        if self._is_stranger:
            self._keep(nbytes)
            return
        self._heard = True
        more = nbytes == len(self._buffer)
        self._turn.begin_read()
        try:
            self._connection.received(self._buffer[:nbytes])
            if more:
                self._pace()
        finally:
            self._turn.end_read(more)
        if self._turn.has_single_reader:
            self._poller.expect_more()

    def send_directly(self, int descriptor):
        """Send to a socket what it has room for, and leave only the rest to the transport.

        It must be the transport's own, with nothing between them; -1 sends by the transport alone.
        """
        self._descriptor = descriptor

    def touch(self):
        """Schedule the output to be sent at the end of this turn."""
        if not self.touched:
            self._turn.touch_sender(self)

    def send_pending(self):
        """Write the output to the socket; wake consumers that only waited for room in it."""
        cdef Outbox outbox
        cdef bint was_full
        if self._paced:
            self._paced = False
            self._resume_reading()
        if self._transport is None:
            return
        outbox = self._connection.outbox
        was_full = outbox.is_full
        if not outbox.size and not outbox.is_torn:
            return
        if not self._send_directly(outbox):
            buffers = outbox.take()
            if not buffers:
                self._transport.abort()     # it is torn
                return
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)
        self._sent = True
        if not self.writable:
            self._check_unread()
        elif was_full:
            self._connection.channels.wake_consumers()

    cdef bint _send_directly(self, Outbox outbox) except -1:
        """Send all output to the socket, unless earlier output waits; False if some is left."""
        if self._descriptor < 0 or self._transport.is_closing():
            return False        # a socket that is closed may be another's already
        return not self._transport.get_write_buffer_size() and outbox.send(self._descriptor)
