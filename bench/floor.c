/* A broker without a broker: what no broker on this machine can go below.

   One thread makes the system calls that a broker cannot avoid. A turn waits for sockets with
   epoll, reads each ready socket once, writes what was published to one file with one call (with
   -s, one fdatasync follows), and sends once to each socket that has an answer. There is no
   routing, no queue and no storage format, and just enough AMQP 0-9-1 for `leveret perf`:

   - what sets up or ends a connection always gets the same answer;
   - a publish is confirmed once it is in the file, if its channel has asked for confirms;
   - it is delivered to the consumer that subscribed last, whatever that consumes from;
   - basic.get always gets the same message; acknowledgements are not looked at.

   usage: floor [-p] [-s] PORT FILE    (-p: poll instead of sleeping in epoll; -s: flush)

   The client is trusted to mean well: what this program does not understand ends it, with a line
   that says why.

   A frame (specification 4.2.3), integers big-endian:

       0      1         3             7                7 + size  8 + size
       +------+---------+-------------+----------------+----------+
       | type | channel | size        | payload        | 0xCE     |
       +------+---------+-------------+----------------+----------+
*/

#define _GNU_SOURCE

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define METHOD(class, method) ((uint32_t)(class) << 16 | (method))
#define BYTES(literal) literal, sizeof(literal) - 1

enum {
    FRAME_METHOD = 1,
    FRAME_HEARTBEAT = 8,
    FRAME_END = 0xCE,
    PAYLOAD_AT = 7,
    FRAME_OVERHEAD_BYTES = 8,
    FRAME_BYTES_MAX = 1 << 17,
    CONTENT_HEADER_BYTES_MIN = 14,
    BODY_SIZE_AT = 4,      /* in a content header's payload: class, weight, body size, flags */
    CHANNELS_MAX = 64,     /* of a connection, channel 0 included */
    INBOX_BYTES = 1 << 18, /* one read takes that much, and the longest message fits */
    EVENTS_MAX = 256,      /* sockets that are read in a turn */
    FILE_STEP_BYTES = 1 << 26,
    BACKLOG = 1024,
};

enum {
    CONNECTION_START = METHOD(10, 10),
    CONNECTION_TUNE_OK = METHOD(10, 31),
    CONFIRM_SELECT = METHOD(85, 10),
    BASIC_CONSUME = METHOD(60, 20),
    BASIC_PUBLISH = METHOD(60, 40),
    BASIC_DELIVER = METHOD(60, 60),
    BASIC_GET = METHOD(60, 70),
    BASIC_GET_OK = METHOD(60, 71),
    BASIC_ACK = METHOD(60, 80),
    BASIC_REJECT = METHOD(60, 90),
    BASIC_NACK = METHOD(60, 120),
};

/* Answers with constant arguments. */
static const struct {
    uint32_t request, reply;
    const char *arguments;
    size_t size;
} REPLIES[] = {
    /* connection.start-ok: tune, to channels up to 63, frames of FRAME_BYTES_MAX, no heartbeats */
    {METHOD(10, 11), METHOD(10, 30), BYTES("\0\x3F\0\x02\0\0\0\0")},
    {METHOD(10, 40), METHOD(10, 41), BYTES("\0")},       /* connection.open */
    {METHOD(10, 50), METHOD(10, 51), BYTES("")},         /* connection.close */
    {METHOD(20, 10), METHOD(20, 11), BYTES("\0\0\0\0")}, /* channel.open */
    {METHOD(20, 40), METHOD(20, 41), BYTES("")},         /* channel.close */
    {METHOD(40, 10), METHOD(40, 11), BYTES("")},         /* exchange.declare */
    {METHOD(40, 20), METHOD(40, 21), BYTES("")},         /* exchange.delete */
    /* queue.declare: no name, as many messages as a drain may ask for, no consumers */
    {METHOD(50, 10), METHOD(50, 11), BYTES("\0\x7F\xFF\xFF\xFF\0\0\0\0")},
    {METHOD(50, 20), METHOD(50, 21), BYTES("")},         /* queue.bind */
    {METHOD(50, 40), METHOD(50, 41), BYTES("\0\0\0\0")}, /* queue.delete */
    {METHOD(60, 10), METHOD(60, 11), BYTES("")},         /* basic.qos */
    {BASIC_CONSUME, METHOD(60, 21), BYTES("\0")},        /* the consumer tag is empty */
    {CONFIRM_SELECT, METHOD(85, 11), BYTES("")},
};

struct buffer {
    uint8_t *bytes;
    size_t used, capacity;
};

struct channel {
    bool confirms;
    uint64_t published, confirmed, delivered; /* the latest tags of each */
};

struct connection {
    int fd;
    bool touched;         /* it has answers to send, or is closed */
    bool closed;          /* by the client */
    uint16_t channels;    /* one more than the highest channel used for publishing */
    size_t received;      /* bytes in the inbox */
    struct buffer outbox;
    struct channel channel[CHANNELS_MAX];
    uint8_t inbox[INBOX_BYTES];
};

static struct connection *touched[EVENTS_MAX + 1]; /* in this turn: the consumer's is one more */
static size_t touched_count;
static struct buffer unwritten; /* what goes to the file at the end of the turn */
static struct connection *consumer;
static uint16_t consumer_channel;

static void fail(const char *what, unsigned long number)
{
    fprintf(stderr, "floor: %s %lu: %s\n", what, number, strerror(errno));
    exit(1);
}

static void require(bool understood, const char *what, unsigned long number)
{
    errno = EPROTO;
    if (!understood)
        fail(what, number);
}

static uint32_t load32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return be32toh(value);
}

static uint64_t load64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return be64toh(value);
}

static uint8_t *store16(uint8_t *at, uint16_t value)
{
    value = htobe16(value);
    return (uint8_t *)memcpy(at, &value, sizeof value) + sizeof value;
}

static uint8_t *store32(uint8_t *at, uint32_t value)
{
    value = htobe32(value);
    return (uint8_t *)memcpy(at, &value, sizeof value) + sizeof value;
}

static uint8_t *store64(uint8_t *at, uint64_t value)
{
    value = htobe64(value);
    return (uint8_t *)memcpy(at, &value, sizeof value) + sizeof value;
}

/* Return room for `size` bytes at the buffer's end, counted as used. */
static uint8_t *extend(struct buffer *buffer, size_t size)
{
    if (buffer->used + size > buffer->capacity) {
        buffer->capacity = 2 * (buffer->used + size);
        buffer->bytes = realloc(buffer->bytes, buffer->capacity);
        if (buffer->bytes == NULL)
            fail("a buffer of", buffer->capacity);
    }
    buffer->used += size;
    return buffer->bytes + buffer->used - size;
}

static void touch(struct connection *connection)
{
    if (!connection->touched)
        touched[touched_count++] = connection;
    connection->touched = true;
}

/* Answering */

/* Add a method frame to what is sent; return where its arguments of `size` bytes are to be put. */
static uint8_t *answer(struct connection *to, uint16_t channel, uint32_t method, size_t size)
{
    uint8_t *at = extend(&to->outbox, FRAME_OVERHEAD_BYTES + sizeof method + size);
    touch(to);
    *at++ = FRAME_METHOD;
    at = store32(store32(store16(at, channel), sizeof method + size), method);
    at[size] = FRAME_END;
    return at;
}

static void start(struct connection *connection)
{
    static const char arguments[] = "\0\x09\0\0\0\0\0\0\0\5PLAIN\0\0\0\5en_US";
    size_t size = sizeof arguments - 1;
    memcpy(answer(connection, 0, CONNECTION_START, size), arguments, size);
}

static void reply(struct connection *connection, uint16_t channel, uint32_t method)
{
    for (size_t i = 0; i < sizeof REPLIES / sizeof REPLIES[0]; i++) {
        if (REPLIES[i].request == method) {
            uint8_t *at = answer(connection, channel, REPLIES[i].reply, REPLIES[i].size);
            memcpy(at, REPLIES[i].arguments, REPLIES[i].size);
            return;
        }
    }
    require(false, "no answer is known to method", method);
}

/* Send the same 16 bytes to every basic.get: delivery tag, redelivered, exchange, key, count. */
static void get(struct connection *connection, uint16_t channel)
{
    static const uint8_t content[] =
        "\2\0\0\0\0\0\x0E\0\x3C\0\0\0\0\0\0\0\0\0\x10\0\0\xCE" /* a header: class 60, 16 bytes */
        "\3\0\0\0\0\0\x10leveret.leveret.\xCE";
    enum { SIZE = sizeof content - 1, BODY_AT = FRAME_OVERHEAD_BYTES + CONTENT_HEADER_BYTES_MIN };
    uint8_t *at = answer(connection, channel, BASIC_GET_OK, 15);
    at = store64(at, ++connection->channel[channel].delivered);
    memset(at, 0, 7);
    at = memcpy(extend(&connection->outbox, SIZE), content, SIZE);
    store16(at + 1, channel);
    store16(at + BODY_AT + 1, channel);
}

/* Confirm what has been published since the last confirm, in one frame for each channel. */
static void confirm(struct connection *connection)
{
    for (uint16_t number = 1; number < connection->channels; number++) {
        struct channel *channel = &connection->channel[number];
        if (channel->confirms && channel->confirmed < channel->published) {
            uint64_t count = channel->published - channel->confirmed;
            uint8_t *at = answer(connection, number, BASIC_ACK, 9);
            *store64(at, channel->published) = count > 1; /* multiple */
            channel->confirmed = channel->published;
        }
    }
}

/* Publishing */

/* Return the size of the whole frame that begins at `at`, or 0 if more of it is to come. */
static size_t frame_bytes(const uint8_t *at, size_t available)
{
    if (available < FRAME_OVERHEAD_BYTES)
        return 0;
    size_t size = (size_t)load32(at + 3) + FRAME_OVERHEAD_BYTES;
    require(size <= FRAME_BYTES_MAX, "a frame is too long, in bytes:", size);
    if (available < size)
        return 0;
    require(at[size - 1] == FRAME_END, "a frame ends in", at[size - 1]);
    return size;
}

/* Return the size of the content header and bodies at `at`, or 0 if more of them are to come. */
static size_t content_bytes(const uint8_t *at, size_t available)
{
    size_t size = frame_bytes(at, available);
    if (size == 0)
        return 0;
    require(size >= FRAME_OVERHEAD_BYTES + CONTENT_HEADER_BYTES_MIN, "a header of bytes:", size);
    uint64_t left = load64(at + PAYLOAD_AT + BODY_SIZE_AT);
    while (left > 0) {
        size_t frame = frame_bytes(at + size, available - size);
        if (frame == 0)
            return 0;
        require(frame - FRAME_OVERHEAD_BYTES <= left, "a body is too long, in bytes:", frame);
        left -= frame - FRAME_OVERHEAD_BYTES;
        size += frame;
    }
    return size;
}

/* Deliver a content: consumer tag, delivery tag, redelivered, exchange, routing key. */
static void deliver(const uint8_t *content, size_t size)
{
    uint8_t *at = answer(consumer, consumer_channel, BASIC_DELIVER, 12);
    *at++ = 0;
    at = store64(at, ++consumer->channel[consumer_channel].delivered);
    memset(at, 0, 3);
    at = memcpy(extend(&consumer->outbox, size), content, size);
    for (size_t done = 0; done < size; done += frame_bytes(at + done, size - done))
        store16(at + done + 1, consumer_channel);
}

static void publish(struct connection *from, uint16_t number, const uint8_t *content, size_t size)
{
    memcpy(extend(&unwritten, size), content, size);
    from->channel[number].published++;
    if (from->channels <= number)
        from->channels = number + 1;
    if (consumer != NULL)
        deliver(content, size);
}

/* Reading */

static void handle(struct connection *connection, uint16_t channel, uint32_t method)
{
    switch (method) {
    case BASIC_GET:
        get(connection, channel);
        return;
    case CONNECTION_TUNE_OK:
    case BASIC_ACK:
    case BASIC_REJECT:
    case BASIC_NACK:
        return;
    case CONFIRM_SELECT:
        connection->channel[channel].confirms = true;
        break;
    case BASIC_CONSUME:
        consumer = connection;
        consumer_channel = channel;
        break;
    }
    reply(connection, channel, method);
}

/* Handle the frame at `at`; return the bytes used, or 0 if more of it or its content is to come. */
static size_t take(struct connection *connection, const uint8_t *at, size_t available)
{
    if (available >= 8 && memcmp(at, "AMQP", 4) == 0) {
        start(connection);
        return 8;
    }
    size_t size = frame_bytes(at, available);
    if (size == 0 || at[0] == FRAME_HEARTBEAT)
        return size;
    uint16_t channel = (uint16_t)(at[1] << 8 | at[2]);
    require(channel < CHANNELS_MAX, "a channel too high:", channel);
    require(at[0] == FRAME_METHOD, "a method was expected, not a frame of type", at[0]);
    require(size >= FRAME_OVERHEAD_BYTES + sizeof(uint32_t), "a method frame of bytes:", size);
    uint32_t method = load32(at + PAYLOAD_AT);
    if (method == BASIC_PUBLISH) {
        size_t content = content_bytes(at + size, available - size);
        if (content == 0)
            return 0;
        publish(connection, channel, at + size, content);
        return size + content;
    }
    handle(connection, channel, method);
    return size;
}

static void receive(struct connection *connection)
{
    size_t room = INBOX_BYTES - connection->received, done = 0, used;
    require(room > 0, "a message is longer than bytes:", INBOX_BYTES);
    ssize_t got = recv(connection->fd, connection->inbox + connection->received, room, 0);
    if (got <= 0) {
        connection->closed = true;
        touch(connection);
        return;
    }
    connection->received += got;
    while ((used = take(connection, connection->inbox + done, connection->received - done)) > 0)
        done += used;
    connection->received -= done;
    memmove(connection->inbox, connection->inbox + done, connection->received);
    confirm(connection);
}

/* A turn */

/* The file grows by large steps ahead of what is written: a flush that finds its size unchanged
   has no metadata to write. */
static void write_out(int file, bool flush)
{
    static off_t position, size;
    if (unwritten.used == 0)
        return;
    while (position + (off_t)unwritten.used > size) {
        size += FILE_STEP_BYTES;
        if (ftruncate(file, size) < 0)
            fail("cannot grow the file to", (unsigned long)size);
    }
    if (pwrite(file, unwritten.bytes, unwritten.used, position) != (ssize_t)unwritten.used)
        fail("the file did not take", unwritten.used);
    position += unwritten.used;
    unwritten.used = 0;
    if (flush && fdatasync(file) < 0)
        fail("cannot flush file", (unsigned long)file);
}

/* Send what is to be sent. Sockets block, so a client that reads late holds up all, and no buffer
   grows beyond what a turn answers. */
static void send_out(struct connection *connection)
{
    struct buffer *outbox = &connection->outbox;
    connection->touched = false;
    if (!connection->closed && outbox->used > 0)
        send(connection->fd, outbox->bytes, outbox->used, MSG_NOSIGNAL);
    outbox->used = 0;
    if (connection->closed) {
        if (consumer == connection)
            consumer = NULL;
        close(connection->fd);
        free(outbox->bytes);
        free(connection);
    }
}

static void watch(int poll, int fd, struct connection *connection)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) < 0)
        fail("cannot watch file", (unsigned long)fd);
}

static void accept_connection(int poll, int listener)
{
    struct connection *connection = calloc(1, sizeof *connection);
    int fd = accept(listener, NULL, NULL), on = 1;
    if (connection == NULL || fd < 0)
        fail("cannot accept from", (unsigned long)listener);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection->fd = fd;
    watch(poll, fd, connection);
}

static void turn(int poll, int listener, int file, bool polling, bool flush)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(poll, events, EVENTS_MAX, polling ? 0 : -1);
    if (count < 0 && errno != EINTR)
        fail("cannot wait for", EVENTS_MAX);
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr == NULL)
            accept_connection(poll, listener);
        else
            receive(events[i].data.ptr);
    }
    write_out(file, flush);
    for (size_t i = 0; i < touched_count; i++)
        send_out(touched[i]);
    touched_count = 0;
}

static int listen_on(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, BACKLOG) < 0)
        fail("cannot listen on port", port);
    return listener;
}

int main(int argc, char **argv)
{
    bool polling = false, flush = false;
    for (int option; (option = getopt(argc, argv, "ps")) != -1;) {
        polling |= option == 'p';
        flush |= option == 's';
    }
    if (argc - optind != 2) {
        fprintf(stderr, "usage: floor [-p] [-s] PORT FILE\n");
        return 2;
    }
    int listener = listen_on((uint16_t)atoi(argv[optind]));
    int file = open(argv[optind + 1], O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int poll = epoll_create1(0);
    if (file < 0 || poll < 0)
        fail("cannot open file", 0);
    watch(poll, listener, NULL);
    for (;;)
        turn(poll, listener, file, polling, flush);
}
