/* Offload and delta in one pass: what a publisher keeps of its last versions for it, from one registration to the next
 * (the lines that changed and the blocks' hashes), the version before while it is mapped, and what it sends the agent. */
#include "backends/trainer/publisher/file_widths.h"
#include "backends/trainer/publisher/publisher_state.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK_EVERY 64 /* blocks: of so many one is read back from the slot */
#define SPARE_FDS   16 /* that other threads may take meanwhile */

/* The hashes of the blocks that this rank filled alone. */
struct hashes {
    struct ws_version_id version; /* without a lineage: none */
    uint64_t *hash;
    bool *has;
};

struct ws_publisher_compare {
    struct ws_copy_plan_compare plan;
    size_t n_files, n_blocks;
    uint64_t n_bytes, n_elements; /* of what this rank writes */
    size_t *first_block;
    struct ws_element_widths **widths;
    struct hashes last, next; /* of the version that was committed last; of the begun one */
    const unsigned char **base;
    struct ws_region **regions; /* of the version before, while a version is begun; NULL: it is not mapped */
    struct ws_version_bytes base_version, slot;
    unsigned n_runs;
    bool offered;         /* by the agent, for the begun version */
    bool gives;           /* it takes that version's records as they come, and has refused none */
    struct ws_error lost; /* why the connection ended with them; code 0: it did not */
    bool ran;             /* in it */
    bool doubts;          /* a block that was read back was wrong: lines are not trusted any more */
    struct ws_pass_choice choice;
    char how[WS_OFFLOAD_HOW];
};

static void end_base(struct ws_publisher_compare *c)
{
    for (size_t i = 0; c->regions && i < c->n_files; i++)
        ws_region_free(c->regions[i]);
    free(c->regions);
    c->regions = NULL;
}

static void free_hashes(struct hashes *h)
{
    free(h->hash);
    free(h->has);
}

void ws_publisher_compare_free(struct ws_publisher_compare *c)
{
    if (!c)
        return;
    end_base(c);
    ws_line_map_free(c->plan.lines);
    ws_history_free(c->plan.history);
    ws_copy_plan_compare_free(c->plan.scratch);
    ws_file_widths_free(c->widths, c->n_files);
    free_hashes(&c->last);
    free_hashes(&c->next);
    free(c->first_block);
    free(c->base);
    free(c);
}

static bool make_hashes(struct hashes *h, size_t n)
{
    h->hash = calloc(n + 1, sizeof(*h->hash));
    h->has = calloc(n + 1, sizeof(*h->has));
    return h->hash && h->has;
}

static void count(const struct wsync_publisher *p, struct ws_publisher_compare *c)
{
    for (size_t i = 0; i < p->n_params; i++) {
        const struct ws_registered_piece *r = &p->params[i];
        const uint64_t n = r->writes ? ws_piece_elements(&r->piece, r->tensor.n_dims) : 0;
        c->n_elements += n;
        c->n_bytes += n * ws_dtype_bits(r->tensor.dtype) / 8;
    }
}

/* WSYNC_COMPARE=check, for tests: every block is read back. */
static unsigned check_every(void)
{
    const char *asked = getenv("WSYNC_COMPARE");
    return asked && strcmp(asked, "check") == 0 ? 1 : CHECK_EVERY;
}

/* NULL: no memory, and versions are copied. */
static struct ws_publisher_compare *make(const struct wsync_publisher *p)
{
    struct ws_publisher_compare *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->n_files = p->n_files;
    c->first_block = calloc(p->n_files + 1, sizeof(*c->first_block));
    c->widths = calloc(p->n_files + 1, sizeof(*c->widths));
    c->base = calloc(p->n_files + 1, sizeof(*c->base));
    for (size_t i = 0; c->first_block && i < p->n_files; i++) {
        c->first_block[i] = c->n_blocks;
        c->n_blocks += (p->file_sizes[i] + WS_BLOCK_BYTES - 1) / WS_BLOCK_BYTES;
    }
    count(p, c);
    c->plan.lines = ws_line_map_new(c->n_blocks);
    c->plan.history = ws_history_new(c->n_blocks);
    c->plan.scratch = ws_copy_plan_compare_new(ws_workers_count(p->workers));
    c->plan.check_every = check_every();
    if (c->first_block && c->widths && c->base && c->plan.lines && c->plan.history && c->plan.scratch &&
        make_hashes(&c->last, c->n_blocks) && make_hashes(&c->next, c->n_blocks))
        return c;
    ws_publisher_compare_free(c);
    return NULL;
}

/* --- begin --- */

/* The descriptors of both versions come in one message, and are closed once they are mapped. Without room for all of them
 * in this process's table it would be lost, and with it the version. */
static bool has_room_for_both(const struct wsync_publisher *p)
{
    size_t need = SPARE_FDS, n = 0;
    for (size_t i = 0; i < p->n_files; i++)
        need += p->file_sizes[i] > 0 ? 2 : 0;
    int *fds = malloc(need * sizeof(*fds));
    int fd = fds ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    while (fd >= 0) {
        fds[n++] = fd;
        fd = n < need ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    }
    const bool has = n == need;
    while (n > 0)
        close(fds[--n]);
    free(fds);
    return has;
}

const char *ws_publisher_compare_request(struct wsync_publisher *p)
{
    struct ws_publisher_compare *c = p->compare;
    if (!p->puts_all || p->uses_pinned || !c || !c->last.version.lineage[0] ||
        !ws_pass_choice_make(&c->choice, p->prefer) || !has_room_for_both(p))
        return "no";
    return p->prefer == WS_PREFER_LATENCY ? "made" : "taken";
}

static void read_version(const json_t *reply, const char *key, struct ws_version_bytes *out)
{
    const json_t *v = json_object_get(reply, key);
    const char *run = json_string_value(json_object_get(v, "run")),
               *digest = json_string_value(json_object_get(v, "digest"));
    *out = (struct ws_version_bytes){0};
    if (!run || !digest || strlen(digest) != WS_DIGEST_CHARS)
        return;
    out->id = ws_version_id_make((uint64_t)json_integer_value(json_object_get(v, "version")), run);
    memcpy(out->digest, digest, sizeof(out->digest));
}

/* Takes over the descriptors: one for each file that is not empty. */
static void map_base(struct wsync_publisher *p, const int *fds, size_t n)
{
    struct ws_publisher_compare *c = p->compare;
    struct ws_error why;
    size_t used = 0;
    bool ok = (c->regions = calloc(c->n_files + 1, sizeof(struct ws_region *)));
    for (size_t i = 0; ok && i < c->n_files; i++) {
        c->base[i] = NULL;
        if (p->file_sizes[i] == 0)
            continue;
        ok = used < n && ws_region_import(&c->regions[i], fds[used++], p->file_sizes[i], false, &why) == 0;
        if (!ok)
            break;
        ws_region_close_descriptor(c->regions[i]); /* a child of the trainer would hold the slot by it */
        c->base[i] = ws_region_data(c->regions[i]);
    }
    while (used < n)
        close(fds[used++]);
    if (!ok)
        end_base(c);
}

void ws_publisher_compare_begin(struct wsync_publisher *p, const json_t *reply, const int *fds, size_t n)
{
    struct ws_publisher_compare *c = p->compare;
    for (size_t i = 0; !c && i < n; i++)
        close(fds[i]);
    if (!c)
        return;
    c->ran = false;
    c->gives = json_is_true(json_object_get(reply, "records"));
    c->lost.code = 0;
    read_version(reply, "base", &c->base_version);
    read_version(reply, "holds", &c->slot);
    c->offered = n > 0 && ws_version_id_equal(&c->base_version.id, &c->last.version);
    if (c->offered) {
        map_base(p, fds, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
}

/* --- the pass --- */

struct ws_copy_plan_compare *ws_publisher_compare_run(struct wsync_publisher *p)
{
    struct ws_publisher_compare *c = p->compare;
    struct ws_error why;
    if (!c && p->prefer != WS_PREFER_STALL && !p->uses_pinned)
        c = p->compare = make(p);
    if (!c || !c->regions || c->ran)
        return NULL;
    const struct ws_version_bytes unknown = {0};
    if (ws_file_widths_read(c->widths, p->data, p->file_sizes, p->n_files, &why) < 0 ||
        ws_history_begin(c->plan.history, &c->base_version.id, &why) < 0 ||
        ws_line_map_begin(c->plan.lines, &c->base_version, c->doubts ? &unknown : &c->slot) < 0)
        return NULL;
    c->plan.base = c->base;
    c->plan.widths = c->widths;
    c->plan.first_block = c->first_block;
    c->plan.base_hashes = c->last.hash;
    c->plan.base_hashed = c->last.has;
    c->plan.hashes = c->next.hash;
    c->plan.check = c->n_runs++;
    c->plan.n_lines = c->plan.n_whole = c->plan.wrong = 0;
    c->plan.changed = c->plan.bytes = 0;
    c->ran = true;
    return &c->plan;
}

bool ws_publisher_compare_gives(const struct wsync_publisher *p)
{
    return p->compare && p->compare->ran && p->compare->gives;
}

static json_t *new_hashes(const struct ws_publisher_compare *c, const struct wsync_publisher *p)
{
    json_t *all = json_array();
    for (size_t f = 0; all && f < c->n_files; f++) {
        const size_t end = f + 1 < c->n_files ? c->first_block[f + 1] : c->n_blocks;
        for (size_t i = c->first_block[f]; p->file_sizes[f] && i < end; i++)
            if (ws_history_is_new(c->plan.history, i))
                json_array_append_new(all,
                                      json_pack("[I,I,o]", (json_int_t)f, (json_int_t)(i - c->first_block[f]),
                                                ws_number_hash(c->next.hash[i])));
    }
    return all;
}

/* What is not taken is no reason to stop: the commit says what became of the version. */
void ws_publisher_compare_give(struct wsync_publisher *p)
{
    struct ws_publisher_compare *c = p->compare;
    json_t *list = NULL;
    struct ws_error err = {0};
    int fd = -1;
    if (!c->gives)
        return;
    json_t *body = json_pack("{s:o}", "hashes", new_hashes(c, p));
    int rc = body ? ws_history_export(c->plan.history, &list, &fd, &err) : -ENOMEM;
    if (rc == 0 && fd >= 0)
        json_object_set_new(body, "records", list);
    if (rc < 0 || json_array_size(json_object_get(body, "hashes")) == 0)
        json_decref(body);
    else
        rc = ws_publisher_send(p, "records", body, &fd, fd >= 0, NULL, &err);
    if (fd >= 0)
        close(fd);
    c->gives = rc == 0;
    if (rc < 0 && p->sock < 0)
        c->lost = err;
    if (rc < 0)
        ws_log(WS_LOG_DEBUG, "publisher", "no more records before the commit error=\"%s\"", err.text);
}

int ws_publisher_compare_gave(const struct wsync_publisher *p, struct ws_error *err)
{
    const struct ws_publisher_compare *c = p->compare;
    return c && c->lost.code ? ws_error_set(err, c->lost.code, "%s", c->lost.text) : 0;
}

static void doubt(struct ws_publisher_compare *c)
{
    ws_log(WS_LOG_ERROR, "publisher",
           "%zu blocks of a slot did not hold what the last versions left in them, and were written whole: "
           "their memory is broken, or was written by another process; slots are written whole from now on",
           (size_t)c->plan.wrong);
    c->doubts = true;
}

void ws_publisher_compare_ran(struct wsync_publisher *p, uint64_t took_ns)
{
    struct ws_publisher_compare *c = p->compare;
    const double seconds = (double)took_ns / 1e9;
    if (!c)
        return;
    if (!c->ran || c->plan.n_lines + c->plan.n_whole == 0) {
        ws_pass_choice_record_copy(&c->choice, c->n_bytes, seconds);
        snprintf(c->how, sizeof(c->how), "copy");
        return;
    }
    ws_pass_choice_record_pass(&c->choice, c->n_bytes, seconds, c->plan.changed, c->n_elements);
    if (c->plan.wrong > 0)
        doubt(c);
    snprintf(c->how, sizeof(c->how), "pass, %zu blocks by lines, %zu whole, %.2f%% changed",
             (size_t)c->plan.n_lines, (size_t)c->plan.n_whole, 100 * c->choice.density);
}

/* --- its end --- */

void ws_publisher_compare_end(struct wsync_publisher *p)
{
    if (p->compare)
        end_base(p->compare);
}

/* Kept until the agent has the version. */
static void keep_hashes(struct wsync_publisher *p)
{
    struct ws_publisher_compare *c = p->compare;
    memset(c->next.has, 0, c->n_blocks * sizeof(*c->next.has));
    for (size_t i = 0; i < p->hashes.len; i++) {
        const struct ws_block_hash *h = &p->hashes.ptr[i];
        c->next.hash[c->first_block[h->file] + h->block] = h->hash;
        c->next.has[c->first_block[h->file] + h->block] = true;
    }
    c->next.version = ws_version_id_make(p->version, p->lineage);
}

int ws_publisher_compare_export(struct wsync_publisher *p, json_t *body, struct ws_error *err)
{
    json_t *list = NULL;
    int fd = -1;
    if (!p->compare)
        return -1;
    keep_hashes(p);
    if (p->compare->how[0])
        json_object_set_new(body, "how", json_string(p->compare->how));
    if (!p->compare->ran || ws_history_export(p->compare->plan.history, &list, &fd, err) < 0)
        return -1;
    if (fd >= 0 && json_object_set_new(body, "records", list) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

void ws_publisher_compare_commit(struct wsync_publisher *p)
{
    struct ws_publisher_compare *c = p->compare;
    if (!c)
        return;
    const struct hashes before = c->last;
    c->last = c->next;
    c->next = before;
    if (c->ran) {
        ws_line_map_commit(c->plan.lines, &c->last.version);
        ws_history_commit(c->plan.history, &c->last.version, 0, 0);
    } else {
        ws_line_map_drop(c->plan.lines);
    }
}

const char *ws_publisher_compare_how(const struct wsync_publisher *p)
{
    return p->compare ? p->compare->how : "";
}
