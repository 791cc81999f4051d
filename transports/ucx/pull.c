/* The mount's side of ucx. A lane has a lease and a worker for the version that it fetches from, and asks for the
 * pieces of its blocks a few at a time. Whatever goes wrong ends lease and worker, so that nothing is written to the
 * caller's memory after a fetch has returned. */
#include "transports/base/clock.h"
#include "transports/protocol/api.h"
#include "transports/simd/copy.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/engine.h"
#include "transports/ucx/hex.h"
#include "transports/ucx/ucx.h"
#include "transports/ucx/wire.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX   "ucx+"
#define AHEAD    4   /* pieces that are asked for at a time */
#define LOOK_MS  100 /* between looks whether the fetch is to end */
#define STALL_MS 10000
#define DRAIN_MS 1000

struct ucx_source {
    struct ws_source head;
    struct ws_source *http;
    bool owns_http;
    unsigned stall_ms;
};

/* A piece that was asked for: pieces[id % AHEAD]. */
struct piece {
    uint64_t id;
    unsigned char *dst;
    size_t bytes;
    bool arrived;
};

struct ucx_lane {
    struct ws_lane head;
    struct ws_lane *http; /* for deltas; NULL until one is fetched */
    struct ws_hasher *hasher;
    /* the lease: */
    struct ws_ucx_worker *worker; /* NULL: none */
    char key[WS_UCX_KEY_CHARS + 1];
    char path[WS_API_PATH_BYTES]; /* of the version's leases */
    char digest[33];
    uint64_t used_ns, idle_ns; /* it stands at least until used_ns + idle_ns, unless it is revoked */
    /* what is under way: */
    struct piece pieces[AHEAD];
    uint64_t last_id;
    int failure; /* -errno */
    uint64_t moved_ns;
};

/* --- the source --- */

static void ucx_close(struct ws_source *source)
{
    struct ucx_source *s = (struct ucx_source *)source;
    if (s->owns_http)
        ws_source_close(s->http);
    free(s->head.url);
    free(s);
}

static int make_source(struct ws_source *http, bool owns_http, const struct ws_source_options *o,
                       struct ws_source **out, struct ws_error *err)
{
    struct ucx_source *s = calloc(1, sizeof(*s));
    const size_t n = sizeof(PREFIX) + strlen(http->url);
    if (!s || !(s->head.url = malloc(n))) {
        free(s);
        return ws_error_set(err, ENOMEM, "no memory for a source");
    }
    snprintf(s->head.url, n, PREFIX "%s", http->url);
    s->head.ops = &ws_ucx_ops;
    s->http = http;
    s->owns_http = owns_http;
    s->stall_ms = o->stall_ms ? o->stall_ms : STALL_MS;
    *out = &s->head;
    return 0;
}

int ws_ucx_source_beside(struct ws_source *http, const struct ws_source_options *o, struct ws_source **out,
                         struct ws_error *err)
{
    const int rc = ws_ucx_available(err);
    return rc < 0 ? rc : make_source(http, false, o, out, err);
}

static int ucx_open(const char *url, const struct ws_source_options *o, struct ws_source **out,
                    struct ws_error *err)
{
    struct ws_source *http = NULL;
    int rc = ws_ucx_available(err);
    if (rc == 0)
        rc = ws_source_open_by(&ws_tcp_ops, url + sizeof(PREFIX) - 1, o, &http, err);
    if (rc < 0)
        return rc;
    rc = make_source(http, true, o, out, err);
    if (rc < 0)
        ws_source_close(http);
    return rc;
}

static struct ws_source *http_of(const struct ws_source *source)
{
    return ((const struct ucx_source *)source)->http;
}

static int ucx_models(struct ws_source *s, const char *model, uint64_t since, unsigned timeout_ms,
                      const atomic_bool *cancel, json_t **out, struct ws_error *err)
{
    return ws_source_models(http_of(s), model, since, timeout_ms, cancel, out, err);
}

static int ucx_manifest(struct ws_source *s, const char *model, uint64_t version, const char *lineage,
                        const atomic_bool *cancel, struct ws_manifest **out, struct ws_error *err)
{
    return ws_source_manifest(http_of(s), model, version, lineage, cancel, out, err);
}

static int ucx_deltas(struct ws_source *s, const char *model, const struct ws_version_id *version,
                      const atomic_bool *cancel, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES], size_t *n,
                      struct ws_error *err)
{
    return ws_source_deltas(http_of(s), model, version, cancel, out, n, err);
}

static int ucx_call(struct ws_source *s, const char *method, const char *path, const json_t *body,
                    json_t **reply, struct ws_error *err)
{
    return ws_source_call(http_of(s), method, path, body, reply, err);
}

/* --- the lease --- */

static bool on_reply(void *arg, const struct ws_ucx_message *m);

/* Waits until something happened, a moment at most. */
static void await(struct ucx_lane *l)
{
    struct pollfd p = {.fd = ws_ucx_descriptor(l->worker), .events = POLLIN};
    if (!ws_ucx_progress(l->worker) && ws_ucx_arm(l->worker))
        (void)poll(&p, 1, LOOK_MS);
}

/* Pieces that were asked for are on their way: they may come, to memory that is still the caller's. */
static void drain(struct ucx_lane *l)
{
    const uint64_t until_ns = ws_clock_ns() + DRAIN_MS * WS_MS_NS;
    bool waits = true;
    while (waits && l->failure != -ETIMEDOUT && ws_ucx_failure(l->worker) == 0 && ws_clock_ns() < until_ns) {
        waits = false;
        for (size_t i = 0; i < AHEAD; i++)
            waits = waits || (l->pieces[i].id != 0 && !l->pieces[i].arrived);
        if (waits)
            await(l);
    }
    memset(l->pieces, 0, sizeof(l->pieces));
}

/* The agent is told; else it would notice after idle_ms. */
static void end_lease(struct ucx_lane *l)
{
    json_t *body, *reply = NULL;
    if (!l->worker)
        return;
    drain(l);
    ws_ucx_worker_free(l->worker);
    l->worker = NULL;
    body = l->key[0] ? json_pack("{s:s,s:b}", "key", l->key, "end", 1) : NULL;
    if (body && ws_source_call(http_of(l->head.source), "POST", l->path, body, &reply, NULL) == 0)
        json_decref(reply);
    json_decref(body);
}

static int read_lease(struct ucx_lane *l, const json_t *reply, unsigned char address[WS_UCX_ADDRESS_BYTES],
                      size_t *n, struct ws_error *err)
{
    const char *url = l->head.source->url;
    const char *key = json_string_value(json_object_get(reply, "key"));
    const char *release = json_string_value(json_object_get(reply, "release"));
    const json_int_t idle_ms = json_integer_value(json_object_get(reply, "idle_ms"));
    if (release && strcmp(release, ws_ucx_release()) != 0)
        return ws_error_set(err, EOPNOTSUPP,
                            "both ends need UCX of one release: the agent's is %.20s, this one's %s", release,
                            ws_ucx_release());
    if (!release || !key || strlen(key) != WS_UCX_KEY_CHARS || idle_ms < 1 || idle_ms > 3600000 ||
        ws_ucx_hex_parse(json_string_value(json_object_get(reply, "address")), address, WS_UCX_ADDRESS_BYTES,
                         n) < 0)
        return ws_error_set(err, EPROTO, "%s sent no lease by ucx", url);
    memcpy(l->key, key, sizeof(l->key));
    l->idle_ns = (uint64_t)idle_ms * WS_MS_NS;
    return 0;
}

/* The request, with this end's address. NULL and err: it cannot be made. */
static json_t *new_request(struct ucx_lane *l, struct ws_error *err)
{
    unsigned char address[WS_UCX_ADDRESS_BYTES];
    char text[2 * WS_UCX_ADDRESS_BYTES + 1];
    size_t n = 0;
    if (ws_ucx_worker_address(l->worker, address, &n, err) < 0)
        return NULL;
    ws_ucx_hex_format(address, n, text);
    json_t *body = json_pack("{s:s,s:s}", "release", ws_ucx_release(), "address", text);
    if (!body)
        ws_error_set(err, ENOMEM, "no memory for a request");
    return body;
}

static int check_digest(const struct ucx_lane *l, const struct ws_manifest *m, const json_t *reply,
                        struct ws_error *err)
{
    const char *digest = json_string_value(json_object_get(reply, "digest"));
    return digest && strcmp(digest, m->digest) == 0
               ? 0
               : ws_error_set(err, ESTALE, "%s/%llu at %s is another one by now", m->model,
                              (unsigned long long)m->version, l->head.source->url);
}

static int take_lease(struct ucx_lane *l, const struct ws_manifest *m, struct ws_error *err)
{
    unsigned char address[WS_UCX_ADDRESS_BYTES];
    struct ws_error why = {0};
    json_t *body = NULL, *reply = NULL;
    size_t n = 0;
    ws_api_version_path(l->path, "ucx", m->model, m->version, NULL, m->lineage);
    l->failure = 0;
    l->key[0] = 0;
    int rc = ws_ucx_worker_new(&l->worker, on_reply, l, &why);
    if (rc == 0 && !(body = new_request(l, &why)))
        rc = -why.code;
    if (rc == 0)
        rc = ws_source_call(http_of(l->head.source), "POST", l->path, body, &reply, &why);
    if (rc == 0)
        rc = read_lease(l, reply, address, &n, &why);
    if (rc == 0)
        rc = check_digest(l, m, reply, &why);
    if (rc == 0)
        rc = ws_ucx_connect(l->worker, address, n, &why);
    json_decref(body);
    json_decref(reply);
    if (rc < 0 && err)
        *err = why;
    if (rc < 0)
        end_lease(l);
    else
        memcpy(l->digest, m->digest, sizeof(l->digest));
    return rc;
}

/* With half of the idle time to spare. */
static int ensure_lease(struct ucx_lane *l, const struct ws_manifest *m, struct ws_error *err)
{
    const uint64_t now_ns = ws_clock_ns();
    if (l->worker && (strcmp(l->digest, m->digest) != 0 || now_ns > l->used_ns + l->idle_ns / 2))
        end_lease(l);
    const int rc = l->worker ? 0 : take_lease(l, m, err);
    l->used_ns = now_ns;
    return rc;
}

/* --- pieces --- */

static void on_asked(void *arg, int rc)
{
    struct ucx_lane *l = arg;
    if (rc < 0 && l->failure == 0)
        l->failure = rc;
}

static void on_piece(void *arg, int rc)
{
    struct piece *p = arg;
    p->arrived = rc == 0;
}

/* A reply to nothing that was asked, or with another size, is a failure of the peer's. */
static bool on_reply(void *arg, const struct ws_ucx_message *m)
{
    struct ucx_lane *l = arg;
    struct ws_ucx_reply r;
    if (m->n_header != sizeof(r)) {
        l->failure = -EPROTO;
        return false;
    }
    memcpy(&r, m->header, sizeof(r));
    struct piece *p = &l->pieces[r.id % AHEAD];
    if (r.mark == WS_UCX_REPLY_MARK && r.code != 0) {
        l->failure = r.code < 4096 ? -(int)r.code : -EPROTO;
        if (p->id == r.id)
            p->id = 0; /* it will not come */
        return false;
    }
    if (r.mark != WS_UCX_REPLY_MARK || r.id == 0 || p->id != r.id || !p->dst || m->bytes != p->bytes) {
        l->failure = -EPROTO;
        return false;
    }
    l->moved_ns = ws_clock_ns();
    unsigned char *dst = p->dst;
    p->dst = NULL; /* it comes once */
    if (m->eager) {
        memcpy(dst, m->eager, m->bytes);
        p->arrived = true;
        return false;
    }
    const int rc = ws_ucx_receive(l->worker, m->data, dst, m->bytes, on_piece, p);
    if (rc < 0)
        l->failure = rc;
    return rc == 0;
}

/* The pieces of a fetch, in order. */
struct run {
    struct ucx_lane *lane;
    const struct ws_fetch *fetch;
    uint64_t end;       /* of the file */
    uint64_t asked, at; /* of the file: the next to ask for, the next to arrive */
    uint64_t next_id;   /* of the piece at `at` */
    size_t block;       /* that `at` lies in */
};

/* Pieces end with their block. */
static size_t piece_bytes(const struct run *r, uint64_t at)
{
    const struct ws_manifest_file *f = &r->fetch->manifest->files[r->fetch->file];
    const size_t block = (size_t)(at / WS_BLOCK_BYTES);
    const uint64_t left = block * WS_BLOCK_BYTES + ws_manifest_block_bytes(f, block) - at;
    return left < WS_UCX_PIECE_BYTES ? (size_t)left : WS_UCX_PIECE_BYTES;
}

static unsigned char *place_of(const struct ws_fetch *f, uint64_t at)
{
    return ws_fetch_dst(f, (size_t)(at / WS_BLOCK_BYTES)) + at % WS_BLOCK_BYTES;
}

/* How far may be asked: where there is room for one block alone, to the end of that. */
static uint64_t end_of_room(const struct run *r)
{
    const uint64_t end = (r->block + 1) * WS_BLOCK_BYTES;
    return r->fetch->one_block && end < r->end ? end : r->end;
}

static int ask(struct run *r)
{
    struct ucx_lane *l = r->lane;
    while (r->asked < end_of_room(r) && l->last_id < r->next_id + AHEAD - 1) {
        const size_t bytes = piece_bytes(r, r->asked);
        const uint64_t id = ++l->last_id;
        struct ws_ucx_request q = {.mark = WS_UCX_REQUEST_MARK,
                                   .file = (uint32_t)r->fetch->file,
                                   .id = id,
                                   .at = r->asked,
                                   .bytes = bytes};
        memcpy(q.key, l->key, sizeof(q.key));
        l->pieces[id % AHEAD] = (struct piece){.id = id, .dst = place_of(r->fetch, r->asked), .bytes = bytes};
        const int rc = ws_ucx_send(l->worker, &q, sizeof(q), NULL, NULL, 0, on_asked, l);
        if (rc < 0)
            return rc;
        r->asked += bytes;
    }
    return 0;
}

/* Hashes what has arrived, in order, and reports whole blocks. */
static int take_arrived(struct run *r)
{
    struct ucx_lane *l = r->lane;
    const struct ws_fetch *f = r->fetch;
    const struct ws_manifest_file *file = &f->manifest->files[f->file];
    for (struct piece *p; r->at < r->end && (p = &l->pieces[r->next_id % AHEAD])->id == r->next_id;) {
        if (!p->arrived)
            break;
        ws_hasher_add(l->hasher, place_of(f, r->at), p->bytes);
        ws_fetch_came(f, p->bytes);
        r->at += p->bytes;
        r->next_id++;
        if (f->pace)
            ws_pace_note(f->pace, ws_clock_ns());
        if (r->at < r->block * WS_BLOCK_BYTES + ws_manifest_block_bytes(file, r->block))
            continue;
        const uint64_t hash = ws_hasher_digest(l->hasher);
        ws_hasher_reset(l->hasher);
        if (l->failure) /* the lease ended before the block was whole, perhaps */
            return l->failure;
        if (f->block(f->arg, r->block++, hash))
            return -ECANCELED;
    }
    return 0;
}

static int run(struct run *r)
{
    struct ucx_lane *l = r->lane;
    const uint64_t stall_ns = ((struct ucx_source *)l->head.source)->stall_ms * WS_MS_NS;
    l->moved_ns = ws_clock_ns();
    while (r->at < r->end) {
        int rc = l->failure ? l->failure : ws_ucx_failure(l->worker);
        if (r->fetch->cancel && atomic_load(r->fetch->cancel))
            rc = -ECANCELED;
        if (rc == 0)
            rc = ask(r);
        if (rc == 0) {
            await(l);
            rc = take_arrived(r);
        }
        if (rc == 0 && ws_clock_ns() - l->moved_ns > stall_ns)
            rc = -ETIMEDOUT;
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int explain(const struct ucx_lane *l, const struct ws_fetch *f, int rc, struct ws_error *err)
{
    const struct ws_manifest *m = f->manifest;
    const char *url = l->head.source->url;
    switch (rc) {
    case -ECANCELED:
        return ws_error_set(err, ECANCELED, "the transfer was stopped");
    case -ESTALE: /* the version may still be there, or made anew: the next lease says so */
        return ws_error_set(err, ECONNRESET, "%s ended the lease of %s/%llu by ucx", url, m->model,
                            (unsigned long long)m->version);
    case -ETIMEDOUT:
        return ws_error_set(err, ETIMEDOUT, "%s has sent nothing of %s/%llu by ucx for %u ms", url, m->model,
                            (unsigned long long)m->version, ((struct ucx_source *)l->head.source)->stall_ms);
    case -EPROTO:
        return ws_error_set(err, EPROTO, "%s does not keep to the protocol of ucx", url);
    default:
        return ws_error_set(err, -rc, "the transfer of %s from %s by ucx ended early: %s",
                            m->files[f->file].name, url, strerror(-rc));
    }
}

static int ucx_fetch(struct ws_lane *lane, const struct ws_fetch *f, struct ws_error *err)
{
    struct ucx_lane *l = (struct ucx_lane *)lane;
    const size_t last = f->first + f->n - 1;
    int rc = ensure_lease(l, f->manifest, err);
    if (rc < 0)
        return rc;
    struct run r = {.lane = l,
                    .fetch = f,
                    .asked = f->first * WS_BLOCK_BYTES,
                    .at = f->first * WS_BLOCK_BYTES,
                    .end =
                        last * WS_BLOCK_BYTES + ws_manifest_block_bytes(&f->manifest->files[f->file], last),
                    .next_id = l->last_id + 1,
                    .block = f->first};
    ws_hasher_reset(l->hasher);
    rc = run(&r);
    if (rc == 0)
        return 0;
    end_lease(l);
    return explain(l, f, rc, err);
}

/* --- lanes --- */

static int ucx_lane_open(struct ws_source *source, struct ws_lane **out, struct ws_error *err)
{
    struct ucx_lane *l = calloc(1, sizeof(*l));
    if (!l || !(l->hasher = ws_hasher_new())) {
        free(l);
        return ws_error_set(err, ENOMEM, "no memory for a lane to %s", source->url);
    }
    l->head.source = source;
    *out = &l->head;
    return 0;
}

static void ucx_lane_close(struct ws_lane *lane)
{
    struct ucx_lane *l = (struct ucx_lane *)lane;
    end_lease(l);
    ws_lane_close(l->http);
    ws_hasher_free(l->hasher);
    free(l);
}

static int ucx_delta(struct ws_lane *lane, const struct ws_delta_fetch *f, struct ws_error *err)
{
    struct ucx_lane *l = (struct ucx_lane *)lane;
    const int rc = l->http ? 0 : ws_lane_open(http_of(lane->source), &l->http, err);
    return rc < 0 ? rc : ws_lane_delta(l->http, f, err);
}

const struct ws_transport_ops ws_ucx_ops = {
    .name = "ucx",
    .schemes = (const char *const[]){PREFIX "http://", PREFIX "https://", NULL},
    .open = ucx_open,
    .close = ucx_close,
    .models = ucx_models,
    .manifest = ucx_manifest,
    .lane_open = ucx_lane_open,
    .lane_close = ucx_lane_close,
    .fetch = ucx_fetch,
    .deltas = ucx_deltas,
    .delta = ucx_delta,
    .call = ucx_call,
};
