#include "transports/tcp_delta.h"
#include "transports/delta_stream.h"
#include <stdlib.h>
#include <sys/types.h>

#define PIECE_BYTES (512UL << 10)

struct body {
    struct MHD_Connection *connection;
    struct ws_delta *delta;
    struct ws_delta_writer writer;
    struct ws_delta_watch watch;
};

static void resume(void *arg)
{
    MHD_resume_connection(((struct body *)arg)->connection);
}

static ssize_t read_body(void *arg, uint64_t at, char *out, size_t room)
{
    struct body *b = arg;
    ssize_t n = ws_delta_write(&b->writer, (unsigned char *)out, room);
    (void)at;
    if (n < 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n > 0)
        return n;
    /* Suspended before it is told, resumed after: whoever tells comes after the suspension. */
    MHD_suspend_connection(b->connection);
    if (!ws_delta_wait(b->delta, b->writer.next, &b->watch))
        MHD_resume_connection(b->connection);
    return 0;
}

static void free_body(void *arg)
{
    struct body *b = arg;
    ws_delta_unwait(b->delta, &b->watch);
    ws_delta_writer_free(&b->writer);
    ws_delta_put(b->delta);
    free(b);
}

struct MHD_Response *ws_tcp_delta_response(struct MHD_Connection *c, struct ws_delta *delta, unsigned part,
                                           unsigned parts)
{
    const bool whole = ws_delta_state(delta) == WS_DELTA_WHOLE;
    const uint64_t size = whole ? ws_delta_stream_bytes(delta, part, parts) : MHD_SIZE_UNKNOWN;
    struct body *b = calloc(1, sizeof(*b));
    struct MHD_Response *r = NULL;
    if (b && ws_delta_writer_init(&b->writer, delta, part, parts) < 0) {
        free(b);
        b = NULL;
    }
    if (!b) {
        ws_delta_put(delta);
        return NULL;
    }
    b->connection = c;
    b->delta = delta;
    b->watch = (struct ws_delta_watch){.more = resume, .arg = b};
    r = MHD_create_response_from_callback(size, PIECE_BYTES, read_body, b, free_body);
    if (!r) {
        free_body(b);
        return NULL;
    }
    (void)MHD_add_response_header(r, "Content-Type", "application/octet-stream");
    (void)MHD_add_response_header(r, "Cache-Control",
                                  whole ? "public, max-age=31536000, immutable" : "no-store");
    return r;
}
