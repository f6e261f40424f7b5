"""Checks of a content header, before its message is stored: whoever has sent it, and by whichever way.

The properties whose values must be true or valid are checked, and the headers say which features the
message asks for. Called for each message that has such properties, so no object is made.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from leveret.core.ledgers.groups cimport check_group
from leveret.ports.contents cimport Piece, Properties, field_end, field_is
from leveret.ports.records cimport (
    HAS_EXPIRATION, HAS_GROUP, HAS_HEADERS, HAS_RETRY, HAS_TAGS, HAS_USER_ID, SELECTS_KEYS, WANTS_DELAY,
    WANTS_ORDER, WANTS_PREPARE,
)
from leveret.ports.tags cimport checked_mask

from leveret.core.queues.expiration import expiration_fault
from leveret.errors import ChannelError

cdef const char* REPLY_NAME = b"amq.rabbitmq.reply-to"
cdef enum:
    REPLY_NAME_BYTES = 21


cdef int check_content(int flags, Properties* properties, bytes user, uint64_t* tag_mask) except -1:
    """Return the flags of a message with those of the features that its headers ask for.

    `flags` and `properties` are of `read_properties`. `user` is who may be named as its user; None: anyone.
    The mask of its tags is stored if it has any. Raises ChannelError 406.
    """
    cdef const uint8_t* fields
    cdef const uint8_t* stop
    if flags & HAS_USER_ID:
        check_user_id(user, properties.user_id)
    if flags & HAS_EXPIRATION:
        check_expiration(properties.expiration)
    if flags & HAS_HEADERS:
        fields, stop = properties.headers.data, properties.headers.data + properties.headers.size
        flags |= feature_flags_of(fields, stop)
        if flags & HAS_TAGS:
            tag_mask[0] = checked_mask(fields, stop)
        if flags & HAS_GROUP:
            check_group(fields, stop)
    return flags


cdef int check_user_id(bytes user, Piece user_id) except -1:
    """Raise ChannelError 406 if the user-id names another user than `user`."""
    if user is None or (len(user) == user_id.size and not memcmp(<const char*>user, user_id.data, user_id.size)):
        return 0
    claimed = (<const char*>user_id.data)[: user_id.size].decode("utf-8", "replace")
    raise ChannelError(
        406, f"user_id property set to '{claimed}' but authenticated user was '{user.decode()}'"
    )


cdef int check_expiration(Piece expiration) except -1:
    """Check that an expiration is a number of ms: up to nine digits here, else by the full rule."""
    cdef uint32_t i
    cdef bytes text
    cdef bint plain = 0 < expiration.size < 10
    for i in range(expiration.size):
        if not c"0" <= expiration.data[i] <= c"9":
            plain = False
    if plain:
        return 0
    text = (<const char*>expiration.data)[: expiration.size]
    fault = expiration_fault(text)
    if fault is not None:
        raise ChannelError(406, f"invalid expiration '{text.decode('utf-8', 'replace')}': {fault}")
    return 0


cdef int feature_flags_of(const uint8_t* field, const uint8_t* stop) noexcept nogil:
    """Return the RecordFlags of the headers that ask for a feature."""
    cdef const uint8_t* end
    cdef int asked = 0
    while field < stop:
        end = field_end(field, stop)
        if end == NULL:
            return asked    # the rest cannot be parsed
        if field[0] > 5:
            if field[1] == c"x" and field[2] == c"-":
                asked |= feature_flag(field)
        elif field_is(field, b"CC", 2) or field_is(field, b"BCC", 3):
            asked |= SELECTS_KEYS
        field = end
    return asked


cdef int feature_flag(const uint8_t* field) noexcept nogil:
    """Return the RecordFlag of a header whose name begins with `x-`; 0 in most cases."""
    cdef uint8_t size = field[0]
    if size == 6:
        if field_is(field, b"x-tags", 6):
            return HAS_TAGS
        if field_is(field, b"x-cron", 6):
            return WANTS_DELAY
    elif size == 7:
        if field_is(field, b"x-delay", 7):
            return WANTS_DELAY
    elif size == 9:
        if field_is(field, b"x-prepare", 9):
            return WANTS_PREPARE
    elif size == 12:
        if field_is(field, b"x-deliver-at", 12):
            return WANTS_DELAY
    elif size == 13:
        if field_is(field, b"x-delay-level", 13):
            return WANTS_DELAY
        if field_is(field, b"x-producer-id", 13):
            return WANTS_ORDER
    elif size == 14:
        if field_is(field, b"x-repeat-every", 14):
            return WANTS_DELAY
        if field_is(field, b"x-retry-delays", 14):
            return HAS_RETRY
    elif size == 15:
        if field_is(field, b"x-message-group", 15):
            return HAS_GROUP
    elif size == 20 and field_is(field, b"x-retry-max-attempts", 20):
        return HAS_RETRY
    return 0


cdef bint is_reply_name(Piece* reply_to) noexcept nogil:
    """Whether reply-to is the pseudo-queue of the channel's own direct replies."""
    return reply_to.size == REPLY_NAME_BYTES and memcmp(reply_to.data, REPLY_NAME, REPLY_NAME_BYTES) == 0
