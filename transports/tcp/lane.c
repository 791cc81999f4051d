/* Lane: one easy handle whose connection is kept. It hashes the bytes that it receives and stores them where they
 * belong, in the same pass. */
#include "transports/base/clock.h"
#include "transports/base/text.h"
#include "transports/protocol/api.h"
#include "transports/tcp/pull.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES (128L << 10) /* received, hashed and stored while it is in the second-level cache */

int ws_tcp_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct ws_tcp_lane *l = calloc(1, sizeof(*l));
    if (l) {
        l->head.source = source;
        l->curl = curl_easy_init();
        l->hasher = ws_hasher_new();
    }
    if (!l || !l->curl || !l->hasher) {
        if (l && l->curl)
            curl_easy_cleanup(l->curl);
        if (l)
            ws_hasher_free(l->hasher);
        free(l);
        return ws_error_set(err, ENOMEM, "no memory for a lane to %s", source->url);
    }
    *out = &l->head;
    return 0;
}

uint64_t ws_tcp_stall_ns(const struct ws_lane *lane)
{
    const unsigned ms = ((const struct ws_tcp_source *)lane->source)->options.stall_ms;
    return ms ? ms * WS_MS_NS : (uint64_t)WS_TCP_STALL_SECONDS * 1000 * WS_MS_NS;
}

void ws_tcp_lane_close(struct ws_lane *lane)
{
    struct ws_tcp_lane *l = (struct ws_tcp_lane *)lane;
    curl_easy_cleanup(l->curl);
    ws_hasher_free(l->hasher);
    free(l);
}

int ws_tcp_lane_set_up(struct ws_tcp_lane *l, const char *path, struct ws_tcp_guard *guard,
                       curl_write_callback take, void *arg, struct ws_error *err)
{
    struct ws_source *source = l->head.source;
    char *url;
    const int rc = ws_tcp_headers_check(&((struct ws_tcp_source *)source)->headers, err);
    if (rc < 0)
        return rc;
    if (asprintf(&url, "%s%s", source->url, path) < 0)
        return ws_error_set(err, ENOMEM, "no memory for a request to %s", source->url);
    l->transfer = (struct ws_http_transfer){.url = url};
    CURLcode bad = ws_tcp_set_up(l->curl, (struct ws_tcp_source *)source, &l->transfer, l->why, guard) < 0;
    l->transfer.url = NULL; /* curl has its own copy */
    free(url);
    bad |= curl_easy_setopt(l->curl, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    bad |= curl_easy_setopt(l->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    bad |= curl_easy_setopt(l->curl, CURLOPT_LOW_SPEED_TIME,
                            (long)((ws_tcp_stall_ns(&l->head) + WS_SECOND_NS - 1) / WS_SECOND_NS));
    bad |= curl_easy_setopt(l->curl, CURLOPT_WRITEFUNCTION, take);
    bad |= curl_easy_setopt(l->curl, CURLOPT_WRITEDATA, arg);
    return bad ? ws_error_set(err, ENOMEM, "no memory for a request to %s", source->url) : 0;
}

/* Where the next received byte goes. Nothing is ever stored outside [at, end). */
struct sink {
    struct ws_tcp_lane *lane;
    const struct ws_fetch *fetch;
    const struct ws_manifest_file *file;
    uint64_t at, end; /* of the file */
    size_t block;
    struct ws_tcp_guard guard;
    bool checked, stopped;
    struct ws_http_text refusal; /* the body of a response that is no 206 */
    const char *violation;       /* how the answer broke the protocol */
};

/* "bytes 5-9/100". RFC 9110, 14.4. */
static bool is_content_range(const char *text, uint64_t *first, uint64_t *last, uint64_t *size)
{
    return strncmp(text, "bytes ", 6) == 0 && (text += 6, ws_text_digits(&text, first) == 0) &&
           *text++ == '-' && ws_text_digits(&text, last) == 0 && *text++ == '/' &&
           ws_text_u64(text, size) == 0;
}

/* Before the first byte: is this the answer to the request? */
static bool check_answer(struct sink *k)
{
    long status = 0;
    struct curl_header *h;
    curl_easy_getinfo(k->lane->curl, CURLINFO_RESPONSE_CODE, &status);
    k->checked = true;
    if (status != 206 && !(status == 200 && k->at == 0 && k->end == k->file->size_bytes))
        return true; /* its body is kept as the reason */
    if (status == 206) {
        uint64_t a = 0, b = 0, size = 0;
        if (curl_easy_header(k->lane->curl, "Content-Range", 0, CURLH_HEADER, -1, &h) != CURLHE_OK ||
            !is_content_range(h->value, &a, &b, &size) || a != k->at || b + 1 != k->end ||
            size != k->file->size_bytes) {
            k->violation = "it sent another range than was requested";
            return false;
        }
    }
    return true;
}

static size_t on_bytes(char *data, size_t size, size_t n, void *arg)
{
    struct sink *k = arg;
    long status = 0;
    n *= size;
    if (!k->checked && !check_answer(k))
        return 0;
    curl_easy_getinfo(k->lane->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 206 && status != 200)
        return ws_http_receive_text(data, 1, n, &k->refusal);
    if (n > k->end - k->at) {
        k->violation = "it sent more bytes than were requested";
        return 0;
    }
    ws_fetch_came(k->fetch, n);
    for (size_t left = n; left > 0;) {
        uint64_t block_end = k->block * WS_BLOCK_BYTES + ws_manifest_block_bytes(k->file, k->block);
        size_t piece = left < block_end - k->at ? left : (size_t)(block_end - k->at);
        if (k->fetch->store)
            k->fetch->store(k->fetch->arg, k->lane->hasher, k->at, (const unsigned char *)data, piece);
        else
            ws_hasher_copy(k->lane->hasher,
                           ws_fetch_dst(k->fetch, k->block) + (k->at - k->block * WS_BLOCK_BYTES), data,
                           piece);
        k->at += piece;
        data += piece;
        left -= piece;
        if (k->at < block_end) {
            if (k->fetch->grows)
                k->fetch->grows(k->fetch->arg, k->block, k->at - k->block * WS_BLOCK_BYTES);
            continue;
        }
        uint64_t hash = ws_hasher_digest(k->lane->hasher);
        ws_hasher_reset(k->lane->hasher);
        if (k->fetch->block(k->fetch->arg, k->block++, hash)) {
            k->stopped = true;
            return 0;
        }
    }
    return n;
}

static int fetch_result(struct sink *k, CURLcode code, struct ws_error *err)
{
    struct ws_tcp_lane *l = k->lane;
    const char *url = l->head.source->url;
    long status = 0;
    curl_easy_getinfo(l->curl, CURLINFO_RESPONSE_CODE, &status);
    if (k->stopped)
        return ws_error_set(err, ECANCELED, "the transfer was stopped");
    if (k->guard.trickles)
        return ws_tcp_trickled(url, k->file->name, err);
    if (k->violation)
        return ws_error_set(err, EPROTO, "%s does not keep to the protocol: %s", url, k->violation);
    if (code != CURLE_OK)
        return ws_error_set(err, ws_tcp_errno_from_curl(l->head.source, code),
                            "the transfer of %s from %s ended early: %s", k->file->name, url,
                            ws_http_why(&l->transfer, code));
    if (status != 206 && status != 200) {
        int rc = ws_tcp_status_error(l->head.source, url, status, &k->refusal, l->transfer.headers, err);
        (void)ws_error_prefix(err, "%s/%" PRIu64 "/%s", k->fetch->manifest->model,
                              k->fetch->manifest->version, k->file->name);
        return rc;
    }
    if (k->at != k->end)
        return ws_error_set(err, ECONNRESET, "%s sent %" PRIu64 " bytes too few of %s", url, k->end - k->at,
                            k->file->name);
    return 0;
}

int ws_tcp_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err)
{
    struct ws_tcp_lane *l = (struct ws_tcp_lane *)lane;
    const struct ws_manifest *m = f->manifest;
    const struct ws_manifest_file *file = &m->files[f->file];
    size_t last = f->first + f->n - 1;
    struct sink k = {
        .lane = l,
        .fetch = f,
        .file = file,
        .at = f->first * WS_BLOCK_BYTES,
        .end = last * WS_BLOCK_BYTES + ws_manifest_block_bytes(file, last),
        .block = f->first,
        .guard = {.cancel = f->cancel, .pace = f->pace, .stall_ns = ws_tcp_stall_ns(lane), .owed = true},
        .refusal.limit = WS_TCP_REFUSAL_BYTES};
    char path[WS_API_PATH_BYTES], range[64];
    ws_api_version_path(path, "files", m->model, m->version, file->name, m->lineage);
    snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, k.at, k.end - 1);
    int rc = ws_tcp_lane_set_up(l, path, &k.guard, on_bytes, &k, err);
    if (rc < 0)
        return rc;
    if (curl_easy_setopt(l->curl, CURLOPT_RANGE, range) != CURLE_OK)
        return ws_error_set(err, ENOMEM, "no memory for a request to %s", lane->source->url);
    ws_hasher_reset(l->hasher);
    CURLcode code = curl_easy_perform(l->curl);
    rc = fetch_result(&k, code, err);
    free(k.refusal.bytes.ptr);
    return rc;
}
