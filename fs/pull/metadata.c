#include "fs/pull/metadata.h"
#include "fs/pull/block_table.h"
#include "fs/pull/signatures.h"
#include "fs/store/content.h"
#include "fs/store/model.h"
#include "fs/store/parents.h"
#include "fs/store/part_description.h"
#include "fs/store/waiters.h"
#include "transports/base/clock.h"
#include "transports/base/workers.h"
#include "transports/format/node_part_map.h"
#include "transports/protocol/source.h"
#include <errno.h>
#include <stdlib.h>

static int use_manifest(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct ws_version *v = arg;
    struct ws_manifest *m = NULL;
    const uint64_t began_ns = ws_clock_ns();
    int rc = ws_source_manifest(attempt->poller->source, ws_model_source_name(v->model), v->number,
                                v->lineage, &attempt->leave, &m, err);

    /* A serving mount has waited for it as long as it does, and says that it moves there (fs/relay.c). */
    if (rc == -EAGAIN && ws_clock_ns() - began_ns > WS_ARRIVAL_MS * WS_MS_NS / 2)
        atomic_store(&attempt->selection->progress_ns, ws_clock_ns());
    if (rc < 0)
        return rc;
    rc = ws_signatures_check_manifest(v, m, err);
    if (rc < 0) {
        ws_manifest_free(m);
        return rc;
    }
    pthread_mutex_lock(&v->store->lock);
    rc = ws_content_set_manifest(v, m, err);
    pthread_mutex_unlock(&v->store->lock);
    return rc;
}

int ws_metadata_manifest(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    struct ws_source_attempt attempt = {.any_strategy = true};
    int rc = 0;

    if (!atomic_load(&v->manifest))
        rc = ws_source_select_try(sel, &attempt, use_manifest, v, err);
    if (rc == 0)
        ws_waiters_wake(v);
    return rc;
}

/* Blocks of a file, which come into memory of their own. */
struct blocks {
    struct ws_version *version;
    const struct ws_manifest *manifest;
    size_t file, first, n;
    unsigned char *bytes;          /* of the file, from its first byte on */
    struct ws_part_description *d; /* is told of each; NULL: it keeps none of the file */
    struct ws_pace *pace;
    size_t n_good;
    unsigned n_bad; /* attempts with other bytes than the manifest's */
};

static int on_block(void *arg, size_t block, uint64_t hash)
{
    struct blocks *h = arg;

    if (hash != h->manifest->files[h->file].hashes[block] ||
        !ws_content_is_as_signed(h->version, h->file, block, h->bytes + block * WS_BLOCK_BYTES))
        return 0;
    h->n_good++;
    if (h->d) {
        ws_part_description_arrived(h->d, h->file, block);
        ws_waiters_wake(h->version);
    }
    return 0;
}

static int fetch_blocks(struct blocks *h, struct ws_lane *lane, struct ws_source_attempt *attempt,
                        struct ws_error *err)
{
    const struct ws_manifest *m = h->manifest;
    struct ws_fetch fetch = {
        .manifest = m,
        .file = h->file,
        .first = h->first,
        .n = h->n,
        .dst = h->bytes,
        .block = on_block,
        .arg = h,
        .cancel = &attempt->leave,
        .pace = h->pace,
    };

    h->n_good = 0;
    const int rc = ws_lane_fetch(lane, &fetch, err);
    if (rc < 0 || h->n_good == fetch.n)
        return rc;
    return ws_error_set(err, ++h->n_bad >= WS_BLOCK_TRIES ? EBADMSG : EAGAIN,
                        "the header of %s/%lu/%s came with bytes that are not the manifest's", m->model,
                        m->version, m->files[h->file].name);
}

static int use_blocks(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct blocks *h = arg;
    struct ws_lane *lane = NULL;

    for (; h->d && h->n > 0 && ws_part_description_has(h->d, h->file, h->first, 1); h->first++)
        h->n--; /* they came by an attempt that was cut off then */
    if (h->n == 0)
        return 0;
    int rc = ws_lane_open(attempt->poller->source, &lane, err);

    if (rc < 0)
        return rc;
    rc = fetch_blocks(h, lane, attempt, err);
    ws_lane_close(lane);
    return rc;
}

/* *bytes: the first n blocks of a file, checked; the caller's. Parents are not asked while another source answers: what
 * comes here is of any stripe, and is not passed on, so two mounts would wait for each other. */
static int get_blocks(struct ws_source_select *sel, size_t file, size_t n, unsigned char **bytes,
                      struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct ws_source_attempt attempt = {.needs_whole = true, .not_parents = true};
    struct blocks h = {.version = v,
                       .manifest = m,
                       .file = file,
                       .n = n,
                       .bytes = malloc(n * WS_BLOCK_BYTES),
                       .pace = &sel->pace};
    int rc;

    *bytes = NULL;
    if (!h.bytes)
        return ws_error_set(err, ENOMEM, "out of memory for the header of %s", m->files[file].name);
    rc = ws_source_select_try(sel, &attempt, use_blocks, &h, err);
    if (rc == 0)
        *bytes = h.bytes;
    else
        free(h.bytes);
    return rc;
}

/* --- what describes a part --- */

#define FILES_AT_ONCE 4 /* of a stripe: most are small, and a pull of the rest waits for all of them */

/* Each stripe comes by threads of its own: it may wait for the parent of that stripe, and a mount whose stripes waited
 * for one another could wait for one that waits for it. */
struct describing {
    struct ws_source_select *selection;
    struct ws_part_description *d;
    unsigned n_stripes, at_once;
    atomic_bool failed;
    struct {
        int rc;
        struct ws_error err;
    } of[WS_FANOUT_STRIPES * FILES_AT_ONCE];
};

/* The whole of what describes a part in a file whose blocks are not kept. */
static int get_unkept(struct describing *g, size_t file, struct ws_error *err)
{
    struct ws_part_described_file *f = &g->d->files[file];
    unsigned char *bytes, *less;
    int rc = get_blocks(g->selection, file, ws_manifest_count_blocks(f->described), &bytes, err);

    if (rc < 0)
        return rc;
    f->bytes = bytes;
    if ((less = realloc(bytes, f->described)))
        f->bytes = less;
    atomic_store(&f->is_whole, true);
    return 0;
}

/* Blocks of one stripe, one after the other in a file. */
static int get_kept(struct describing *g, size_t file, size_t first, size_t n, unsigned stripe,
                    struct ws_error *err)
{
    struct ws_version *v = g->selection->version;
    struct ws_source_attempt attempt = {.needs_whole = true, .stripe = stripe};
    struct blocks h = {.version = v,
                       .manifest = atomic_load(&v->manifest),
                       .file = file,
                       .first = first,
                       .n = n,
                       .bytes = g->d->files[file].bytes,
                       .d = g->d,
                       .pace = &g->selection->pace};

    return ws_source_select_try(g->selection, &attempt, use_blocks, &h, err);
}

/* What is of the stripe in a file. before: blocks of the files before it; total: of all. */
static int get_of_file(struct describing *g, size_t file, size_t before, size_t total, unsigned stripe,
                       struct ws_error *err)
{
    const struct ws_part_described_file *f = &g->d->files[file];
    const size_t n_blocks = ws_manifest_count_blocks(f->described);
    int rc = 0;

    if (f->described == 0 || atomic_load(&f->is_whole))
        return 0;
    if (!f->is_kept)
        return file % g->n_stripes == stripe ? get_unkept(g, file, err) : 0;
    for (size_t first = 0, n; first < n_blocks && rc == 0; first += n) {
        const unsigned of = ws_block_stripe(before + first, total, g->n_stripes);
        for (n = 1; first + n < n_blocks && ws_block_stripe(before + first + n, total, g->n_stripes) == of;)
            n++;
        if (of == stripe && !atomic_load(&g->failed))
            rc = get_kept(g, file, first, n, stripe, err);
    }
    return rc;
}

/* Of one stripe, and of one file among at_once. */
static void get_share(void *arg, size_t share)
{
    struct describing *g = arg;
    const unsigned stripe = (unsigned)share % g->n_stripes;
    const struct ws_manifest *m = atomic_load(&g->selection->version->manifest);
    size_t before = 0, total = 0;
    int rc = 0;

    for (size_t i = 0; i < m->n_files; i++)
        total += m->files[i].n_blocks;
    for (size_t i = 0; i < m->n_files && rc == 0 && !atomic_load(&g->failed); i++) {
        if (i % g->at_once == share / g->n_stripes)
            rc = get_of_file(g, i, before, total, stripe, &g->of[share].err);
        before += m->files[i].n_blocks;
    }
    if (rc < 0)
        atomic_store(&g->failed, true);
    g->of[share].rc = rc;
}

static int check_description(const struct ws_manifest *m, struct ws_error *err)
{
    for (size_t i = 0; i < m->n_files; i++)
        if (ws_node_part_described(&m->files[i]) > WS_MAX_NODE_PART_BYTES)
            return ws_error_set(err, EBADMSG, "%s/%lu/%s: what describes a part is longer than the limit",
                                m->model, m->version, m->files[i].name);
    return 0;
}

/* Counted. It goes on with what came by a pull before. NULL: no memory. */
static struct ws_part_description *begin_description(struct ws_version *v, unsigned *n_stripes)
{
    struct ws_store *s = v->store;

    pthread_mutex_lock(&s->lock);
    *n_stripes = ws_parents_stripes(v);
    if (!atomic_load(&v->description))
        atomic_store(&v->description, ws_part_description_new(atomic_load(&v->manifest)));
    struct ws_part_description *d = ws_part_description_get(v);
    pthread_mutex_unlock(&s->lock);
    return d;
}

int ws_metadata_description(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    struct describing g = {.selection = sel};
    int rc = ws_content_has_headers(v) ? 1 : check_description(m, err);

    if (rc == 0)
        rc = ws_signatures_get_tree(sel, err);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    g.d = begin_description(v, &g.n_stripes);
    if (!g.d)
        return ws_error_set(err, ENOMEM, "out of memory for what describes %s/%lu", m->model, m->version);
    g.at_once = m->n_files < FILES_AT_ONCE ? (unsigned)m->n_files : FILES_AT_ONCE;
    ws_workers_run_at_once(get_share, &g, g.n_stripes * g.at_once);
    for (unsigned k = 0; k < g.n_stripes * g.at_once && rc == 0; k++) {
        rc = g.of[k].rc;
        if (rc < 0 && err)
            *err = g.of[k].err;
    }
    if (rc == 0 && ws_part_description_is_whole(g.d))
        atomic_store(&v->is_described, true);
    ws_part_description_put(g.d);
    if (rc == 0)
        ws_waiters_wake(v);
    return rc;
}

/* --- headers --- */

/* A header is the begin of a block, and all of the block has to come, since its hash is what it is checked by: of a
 * model of hundreds of files a gigabyte. So several lanes get headers at once, of every n-th file each, and use their
 * connection and their memory for all of them. */
struct header_lane {
    struct ws_source_select *selection;
    size_t next, step;    /* files */
    struct blocks blocks; /* of file `next` */
    size_t room;          /* blocks that its memory has room for */
    atomic_bool *failed;
    int rc;
    struct ws_error err;
};

static bool lacks_header(struct ws_version *v, size_t file)
{
    const struct ws_manifest *m = atomic_load(&v->manifest);
    const struct ws_manifest_file *f = &m->files[file];

    return f->header_bytes && !atomic_load(&v->files[file].header) &&
           !ws_content_has(v, file, 0, ws_content_header_blocks(f));
}

static int make_room(struct header_lane *h, size_t n, struct ws_error *err)
{
    if (n <= h->room)
        return 0;
    free(h->blocks.bytes);
    h->blocks.bytes = malloc(n * WS_BLOCK_BYTES);
    h->room = h->blocks.bytes ? n : 0;
    return h->room ? 0
                   : ws_error_set(err, ENOMEM, "out of memory for the header of %s",
                                  h->blocks.manifest->files[h->next].name);
}

/* 1: what came is what was published, and is no header; no other source has another one. */
static int use_headers(void *arg, struct ws_source_attempt *attempt, struct ws_error *err)
{
    struct header_lane *h = arg;
    struct ws_version *v = h->selection->version;
    const struct ws_manifest *m = h->blocks.manifest;
    struct ws_lane *lane = NULL;
    int rc = ws_lane_open(attempt->poller->source, &lane, err);

    if (rc < 0)
        return rc;
    while (rc == 0 && h->next < m->n_files && !atomic_load(h->failed)) {
        const size_t n = ws_content_header_blocks(&m->files[h->next]);
        if (lacks_header(v, h->next)) {
            h->blocks.file = h->next;
            h->blocks.n = n;
            rc = make_room(h, n, err);
            if (rc == 0)
                rc = fetch_blocks(&h->blocks, lane, attempt, err);
            if (rc < 0)
                break;
            ws_source_select_progress(h->selection, attempt);
            h->rc = ws_content_parse_header(v, h->next, h->blocks.bytes, n * WS_BLOCK_BYTES, err);
            rc = h->rc < 0;
        }
        h->next += h->step;
        h->blocks.n_bad = 0;
    }
    ws_lane_close(lane);
    return rc;
}

/* Parents are not asked while another source answers, as for get_blocks. */
static void get_headers_of_lane(void *arg, size_t i)
{
    struct header_lane *h = (struct header_lane *)arg + i;
    struct ws_source_attempt attempt = {.needs_whole = true, .not_parents = true};
    const int rc = ws_source_select_try(h->selection, &attempt, use_headers, h, &h->err);

    if (rc < 0)
        h->rc = rc;
    if (h->rc < 0)
        atomic_store(h->failed, true);
    free(h->blocks.bytes);
}

static int get_headers(struct ws_source_select *sel, size_t n_lacking, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const size_t streams = v->store->options.streams, n = n_lacking < streams ? n_lacking : streams;
    struct header_lane *lanes = calloc(n, sizeof(*lanes));
    atomic_bool failed = false;
    int rc = 0;

    if (!lanes)
        return ws_error_set(err, ENOMEM, "out of memory for the headers of %s/%lu", v->model->name,
                            v->number);
    for (size_t i = 0; i < n; i++)
        lanes[i] = (struct header_lane){
            .selection = sel,
            .next = i,
            .step = n,
            .blocks = {.version = v, .manifest = atomic_load(&v->manifest), .pace = &sel->pace},
            .failed = &failed};
    ws_workers_run_at_once(get_headers_of_lane, lanes, n);
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = lanes[i].rc;
        if (rc < 0 && err)
            *err = lanes[i].err;
    }
    free(lanes);
    return rc;
}

/* A look at the tensors of a version that is not here costs its headers, and no space in the cache. */
int ws_metadata_headers(struct ws_source_select *sel, struct ws_error *err)
{
    struct ws_version *v = sel->version;
    const struct ws_manifest *m = atomic_load(&v->manifest);
    size_t n_lacking = 0;
    int rc = 0;

    for (size_t i = 0; i < m->n_files; i++)
        n_lacking += lacks_header(v, i);
    if (n_lacking > 0)
        rc = ws_signatures_get_tree(sel, err);
    if (rc == 0 && n_lacking > 0)
        rc = get_headers(sel, n_lacking, err);
    if (rc == 0)
        ws_waiters_wake(v);
    return rc;
}
