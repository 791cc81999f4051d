/* Deltas over a lane, applied as they come. */
#include "transports/delta/stream.h"
#include "transports/protocol/api.h"
#include "transports/tcp/delta_body.h"
#include "transports/tcp/pull.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

struct delta_sink {
    struct ws_tcp_lane *lane;
    struct ws_delta_stream_reader *reader;
    struct ws_tcp_guard guard; /* a record comes whole; between records its maker may still be at work */
    struct ws_error err;
    int rc;                      /* of the reader */
    struct ws_http_text refusal; /* the body of a response that is no 200 */
};

static size_t on_delta(char *data, size_t size, size_t n, void *arg)
{
    struct delta_sink *k = arg;
    long status = 0;
    n *= size;
    curl_easy_getinfo(k->lane->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200)
        return ws_http_receive_text(data, 1, n, &k->refusal);
    k->rc = ws_delta_stream_read(k->reader, data, n, &k->err);
    k->guard.owed = ws_delta_stream_reader_is_inside(k->reader);
    return k->rc ? 0 : n;
}

static bool is_given_up(CURL *c)
{
    struct curl_header *h;
    return curl_easy_header(c, WS_TCP_GIVEN_UP, 0, CURLH_TRAILER, -1, &h) == CURLHE_OK;
}

static int delta_result(struct delta_sink *k, const struct ws_delta_fetch *f, CURLcode code,
                        struct ws_error *err)
{
    struct ws_tcp_lane *l = k->lane;
    const char *url = l->head.source->url;
    long status = 0;
    bool whole = false;
    curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
    if (k->rc < 0)
        return ws_error_set(err, -k->rc, "the delta of %s/%" PRIu64 " from %s: %s", f->model,
                            f->link.target.version, url, k->err.text);
    if (k->rc > 0)
        return ws_error_set(err, ECANCELED, "the transfer was stopped");
    if (k->guard.trickles)
        return ws_tcp_trickled(url, "a delta", err);
    if (code != CURLE_OK)
        return ws_error_set(err, ws_tcp_errno_from_curl(l->head.source, code),
                            "the delta of %s/%" PRIu64 " from %s ended early: %s", f->model,
                            f->link.target.version, url, ws_http_why(&l->transfer, code));
    if (status != 200) {
        int rc = ws_tcp_status_error(l->head.source, url, status, &k->refusal, l->transfer.headers, err);
        (void)ws_error_prefix(err, "the delta of %s/%" PRIu64, f->model, f->link.target.version);
        return rc;
    }
    const bool ended = ws_delta_stream_reader_ended(k->reader, &whole);
    if (!ended && is_given_up(l->curl))
        return ws_error_set(
            err, ESTALE,
            "%s gave up a record of the delta of %s/%" PRIu64
            " that it was passing on, since its own source failed; another source may have it",
            url, f->model, f->link.target.version);
    if (!ended)
        return ws_error_set(err, ECONNRESET, "%s sent a delta without its end", url);
    return whole ? 0
                 : ws_error_set(err, ENODATA, "the delta of %s/%" PRIu64 " was given up by %s", f->model,
                                f->link.target.version, url);
}

int ws_tcp_fetch_delta(struct ws_lane *lane, const struct ws_delta_fetch *f, struct ws_error *err)
{
    struct ws_tcp_lane *l = (struct ws_tcp_lane *)lane;
    struct delta_sink k = {.lane = l,
                           .guard = {.cancel = f->cancel, .pace = f->pace, .stall_ns = ws_tcp_stall_ns(lane)},
                           .refusal.limit = WS_TCP_REFUSAL_BYTES};
    char path[WS_API_PATH_BYTES + sizeof("&only=") + WS_DELTA_FILTER_CHARS];
    k.reader = ws_delta_stream_reader_new(&f->link, f->n_blocks, &f->sink);
    if (!k.reader)
        return ws_error_set(err, ENOMEM, "no memory for a delta");
    ws_api_delta_path(path, f->model, &f->link.target, &f->link.base, f->part, f->parts, f->level);
    if (f->only)
        (void)stpcpy(stpcpy(path + strlen(path), "&only="), f->only);
    int rc = ws_tcp_lane_set_up(l, path, &k.guard, on_delta, &k, err);
    if (rc == 0)
        rc = delta_result(&k, f, curl_easy_perform(l->curl), err);
    ws_delta_stream_reader_free(k.reader);
    free(k.refusal.bytes.ptr);
    return rc;
}
