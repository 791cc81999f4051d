#include "transports/format/subset.h"
#include "transports/base/json_cursor.h"
#include "transports/base/name.h"
#include "transports/format/folder_index.h"
#include "transports/format/node_part_segments.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOWHERE      SIZE_MAX
#define DIGEST_CHARS 32
#define BEFORE       "{\n  \"source_digest\": \""

/* What is made here: the first bytes of a file of the whole. */
struct made {
    void *bytes;
    uint64_t n;
};

struct ws_subset {
    size_t n_sources;                /* files of the source */
    struct ws_safetensors **headers; /* of those; NULL: it has none */
    bool *chosen, **chosen_of;       /* by tensor of all headers; by file, into that */
    uint64_t **wanted;               /* by file of the source: a bit a block */
    uint64_t left_out_bytes;
    struct made *made;  /* by file of the whole */
    size_t n_files;     /* of the whole */
    size_t description; /* WS_SUBSET_FILE among them */
};

/* A file of the whole while the map is made. */
struct target {
    char name[WS_MAX_NAME + 1];
    enum { SHARD, COPY, INDEX, EDGES, DESCRIPTION } kind;
    size_t source; /* of SHARD and COPY */
};
WS_VECTOR(targets, struct target);

struct making {
    const struct ws_node_part_source *source;
    const struct ws_manifest *manifest;
    const struct ws_need *need;
    struct ws_node_part_map *map;
    struct ws_subset *s;
    size_t n_tensors, n_chosen;
    struct ws_safetensors *
        *laid;    /* by file of the source: the new file's header; NULL: nothing of it is needed */
    void **texts; /* ... as it is written */
    struct targets targets;
    size_t *to;   /* by file of the source: where it goes among the whole's; NOWHERE */
    size_t edges; /* WS_SUBSET_EDGES among them */
    uint64_t edge_bytes;
};

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for a subset");
}

/* --- what is needed --- */

static int read_headers(struct making *m, struct ws_error *err)
{
    for (size_t i = 0; i < m->manifest->n_files; i++) {
        const struct ws_manifest_file *f = &m->manifest->files[i];
        struct ws_safetensors **st = &m->s->headers[i];
        if (!f->header_bytes)
            continue;
        int rc = m->source->files[i]
                     ? ws_safetensors_parse(m->source->files[i], f->header_bytes, f->size_bytes, st, err)
                     : ws_error_set(err, EBADMSG, "its header is not here");
        if (rc == 0 && (*st)->data_begin != f->header_bytes)
            rc = ws_error_set(err, EBADMSG, "its header has another size than its manifest says");
        if (rc < 0)
            return ws_error_prefix(err, "%s", f->name);
        m->n_tensors += (*st)->n_tensors;
    }
    return 0;
}

static int choose(struct making *m, struct ws_error *err)
{
    const struct ws_tensor **all = calloc(m->n_tensors + 1, sizeof(const struct ws_tensor *));
    size_t n = 0;

    m->s->chosen = calloc(m->n_tensors + 1, sizeof(bool));
    for (size_t i = 0; all && m->s->chosen && i < m->manifest->n_files; i++) {
        const struct ws_safetensors *st = m->s->headers[i];
        m->s->chosen_of[i] = m->s->chosen + n;
        for (size_t t = 0; st && t < st->n_tensors; t++)
            all[n++] = &st->tensors[t];
    }
    int rc = all && m->s->chosen ? ws_need_select(m->need, all, n, m->s->chosen, err) : no_memory(err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        m->n_chosen += m->s->chosen[i];
    free(all);
    return rc;
}

/* --- the new files --- */

static int lay_out(struct making *m, size_t i, struct ws_error *err)
{
    const struct ws_safetensors *st = m->s->headers[i];
    struct ws_tensor *specs = calloc(st->n_tensors + 1, sizeof(*specs));
    size_t n = 0;
    int rc = specs ? 0 : no_memory(err);

    for (size_t t = 0; specs && t < st->n_tensors; t++)
        if (m->s->chosen_of[i][t])
            specs[n++] = st->tensors[t];
    if (rc == 0 && n > 0)
        rc = ws_safetensors_layout(specs, n, st->metadata, &m->laid[i], &m->texts[i], err);
    free(specs);
    return rc;
}

static bool is_copied(const struct ws_manifest_file *f)
{
    return !f->header_bytes && strcmp(f->name, WS_FOLDER_INDEX_NAME) != 0 &&
           strcmp(f->name, WS_SUBSET_FILE) != 0 && strcmp(f->name, WS_SUBSET_EDGES) != 0;
}

static int by_name(const void *x, const void *y)
{
    const struct target *a = x, *b = y;
    return strcmp(a->name, b->name);
}

static int add_target(struct making *m, int kind, size_t source, const char *name)
{
    struct target t = {.kind = kind, .source = source};

    snprintf(t.name, sizeof(t.name), "%s", name);
    return targets_append(&m->targets, t);
}

static int name_files(struct making *m, struct ws_error *err)
{
    const struct ws_manifest *from = m->manifest;
    size_t n_shards = 0, n_left = 0, k = 0;
    char name[WS_MAX_NAME + 1];
    int rc = 0;

    for (size_t i = 0; i < from->n_files; i++) {
        n_shards += m->s->headers[i] != NULL;
        n_left += m->laid[i] != NULL;
    }
    for (size_t i = 0; i < from->n_files && rc == 0; i++) {
        const bool anew = m->laid[i] && n_left < n_shards;
        if (anew && n_left == 1)
            snprintf(name, sizeof(name), "model.safetensors");
        else if (anew)
            snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", ++k, n_left);
        else
            snprintf(name, sizeof(name), "%s", from->files[i].name);
        if (m->laid[i] || is_copied(&from->files[i]))
            rc = add_target(m, m->laid[i] ? SHARD : COPY, i, name);
    }
    if (rc == 0 && n_left > 1)
        rc = add_target(m, INDEX, 0, WS_FOLDER_INDEX_NAME);
    if (rc == 0)
        rc = add_target(m, EDGES, 0, WS_SUBSET_EDGES);
    if (rc == 0)
        rc = add_target(m, DESCRIPTION, 0, WS_SUBSET_FILE);
    if (rc < 0)
        return no_memory(err);
    qsort(m->targets.ptr, m->targets.len, sizeof(m->targets.ptr[0]), by_name);
    for (size_t i = 0; i + 1 < m->targets.len; i++)
        if (strcmp(m->targets.ptr[i].name, m->targets.ptr[i + 1].name) == 0)
            return ws_error_set(err, EBADMSG, "it has a file %s, as one of the subset is to be called",
                                m->targets.ptr[i].name);
    for (size_t i = 0; i < from->n_files; i++)
        m->to[i] = NOWHERE;
    for (size_t i = 0; i < m->targets.len; i++) {
        const struct target *t = &m->targets.ptr[i];
        if (t->kind == SHARD || t->kind == COPY)
            m->to[t->source] = i;
        if (t->kind == EDGES)
            m->edges = i;
        if (t->kind == DESCRIPTION)
            m->s->description = i;
    }
    return 0;
}

static int by_tensor(const void *x, const void *y)
{
    const struct ws_folder_index_entry *a = x, *b = y;
    return strcmp(a->tensor, b->tensor);
}

static int write_index(struct making *m, struct made *out, struct ws_error *err)
{
    struct ws_folder_index_entry *all = calloc(m->n_chosen + 1, sizeof(*all));
    size_t n = 0, size = 0;
    uint64_t bytes = 0;
    char *text = NULL;
    FILE *f = all ? open_memstream(&text, &size) : NULL;
    int rc = f ? 0 : no_memory(err);

    for (size_t i = 0; all && i < m->manifest->n_files; i++) {
        for (size_t t = 0; m->laid[i] && t < m->laid[i]->n_tensors; t++)
            all[n++] =
                (struct ws_folder_index_entry){m->laid[i]->tensors[t].name, m->targets.ptr[m->to[i]].name};
        bytes += m->laid[i] ? m->laid[i]->file_bytes - m->laid[i]->data_begin : 0;
    }
    if (all)
        qsort(all, n, sizeof(*all), by_tensor);
    for (size_t i = 0; rc == 0 && i + 1 < n; i++)
        if (strcmp(all[i].tensor, all[i + 1].tensor) == 0)
            rc = ws_error_set(err, EBADMSG, "tensor \"%.160s\" is in two files", all[i].tensor);
    if (rc == 0)
        rc = ws_folder_index_write(f, all, n, bytes, err);
    if (f && fclose(f) != 0 && rc == 0)
        rc = no_memory(err);
    *out = (struct made){text, size};
    free(all);
    return rc;
}

/* With zeros for the digest, which is a version's. */
static int write_description(const struct making *m, struct made *out, struct ws_error *err)
{
    size_t size = 0;
    char *text = NULL;
    FILE *f = open_memstream(&text, &size);
    int rc = f ? 0 : -ENOMEM;

    if (f) {
        fprintf(f, BEFORE "%0*d\",\n  \"need\": ", DIGEST_CHARS, 0);
        rc = ws_json_put_string(f, ws_need_text(m->need));
        fprintf(f, ",\n  \"tensors\": %zu,\n  \"left_out\": %zu\n}\n", m->n_chosen,
                m->n_tensors - m->n_chosen);
    }
    if (f && fclose(f) != 0)
        rc = -ENOMEM;
    *out = (struct made){text, size};
    return rc == -EINVAL ? ws_error_set(err, EINVAL, "need= is no UTF-8") : rc < 0 ? no_memory(err) : 0;
}

static int make_texts(struct making *m, struct ws_error *err)
{
    int rc = 0;

    m->s->n_files = m->targets.len;
    m->s->made = calloc(m->targets.len + 1, sizeof(*m->s->made));
    if (!m->s->made)
        return no_memory(err);
    for (size_t i = 0; rc == 0 && i < m->targets.len; i++) {
        const struct target *t = &m->targets.ptr[i];
        if (t->kind == SHARD) {
            m->s->made[i] = (struct made){m->texts[t->source], m->laid[t->source]->data_begin};
            m->texts[t->source] = NULL;
        } else if (t->kind == INDEX) {
            rc = write_index(m, &m->s->made[i], err);
        } else if (t->kind == DESCRIPTION) {
            rc = write_description(m, &m->s->made[i], err);
        }
    }
    return rc;
}

/* --- where the source's bytes go --- */

static void want(uint64_t *wanted, uint64_t begin, uint64_t end)
{
    for (uint64_t b = begin / WS_BLOCK_BYTES; begin < end && b <= (end - 1) / WS_BLOCK_BYTES; b++)
        wanted[b / 64] |= 1UL << (b % 64);
}

static bool has_bit(const uint64_t *wanted, size_t block)
{
    return wanted[block / 64] >> (block % 64) & 1;
}

static int mark_wanted(struct making *m, size_t i, struct ws_error *err)
{
    const struct ws_manifest_file *f = &m->manifest->files[i];
    const struct ws_safetensors *st = m->s->headers[i];
    uint64_t *wanted = m->s->wanted[i] = calloc(f->n_blocks / 64 + 1, sizeof(*wanted));

    if (!wanted)
        return no_memory(err);
    if (is_copied(f))
        want(wanted, 0, f->size_bytes);
    want(wanted, 0, f->header_bytes);
    for (size_t t = 0; st && t < st->n_tensors; t++)
        if (m->s->chosen_of[i][t])
            want(wanted, st->tensors[t].begin, st->tensors[t].end);
    for (size_t b = 0; b < f->n_blocks; b++)
        if (!has_bit(wanted, b))
            m->s->left_out_bytes += ws_manifest_block_bytes(f, b);
    return 0;
}

/* Adds a segment, to the one before where it goes on there. */
static int put(struct ws_node_part_segments *list, struct ws_node_part_segment s)
{
    struct ws_node_part_segment *last = list->len ? &list->ptr[list->len - 1] : NULL;

    assert(s.at == (last ? last->at + last->n : 0));
    if (last && !last->own && !s.own && last->left_out == s.left_out &&
        (s.left_out || (last->file == s.file && last->to + last->n == s.to))) {
        last->n += s.n;
        return 0;
    }
    return ws_node_part_segments_append(list, s);
}

/* Bytes of the source that are not needed: to the edges, or nowhere. */
static int put_other(struct making *m, size_t i, uint64_t begin, uint64_t end)
{
    struct ws_node_part_segments *list = &m->map->segments[0][i];
    int rc = 0;

    for (uint64_t at = begin, n; at < end && rc == 0; at += n) {
        const size_t block = (size_t)(at / WS_BLOCK_BYTES);
        const uint64_t room = WS_BLOCK_BYTES - at % WS_BLOCK_BYTES;
        n = end - at < room ? end - at : room;
        if (!has_bit(m->s->wanted[i], block)) {
            rc = put(list, (struct ws_node_part_segment){.at = at, .n = n, .left_out = true});
            continue;
        }
        rc =
            put(list, (struct ws_node_part_segment){.at = at, .n = n, .file = m->edges, .to = m->edge_bytes});
        m->edge_bytes += n;
    }
    return rc;
}

static int put_header(struct making *m, size_t i)
{
    const uint64_t n = m->manifest->files[i].header_bytes;
    struct ws_node_part_segment s = {.n = n, .own = malloc(n)};
    int rc = s.own ? 0 : -ENOMEM;

    if (rc == 0) {
        memcpy(s.own, m->source->files[i], n);
        rc = put(&m->map->segments[0][i], s);
    }
    if (rc < 0)
        free(s.own);
    return rc;
}

static int by_begin(const void *x, const void *y)
{
    const struct ws_tensor *const *a = x, *const *b = y;
    return (*a)->begin != (*b)->begin ? ((*a)->begin < (*b)->begin ? -1 : 1) : 0;
}

/* In the order in which they lie there. */
static int put_tensors(struct making *m, size_t i)
{
    const struct ws_safetensors *st = m->s->headers[i];
    const struct ws_tensor **order = calloc(st->n_tensors + 1, sizeof(const struct ws_tensor *));
    size_t n = 0;
    int rc = order ? 0 : -ENOMEM;

    for (size_t t = 0; order && t < st->n_tensors; t++)
        if (st->tensors[t].end > st->tensors[t].begin)
            order[n++] = &st->tensors[t];
    if (order)
        qsort(order, n, sizeof(const struct ws_tensor *), by_begin);
    for (size_t k = 0; k < n && rc == 0; k++) {
        const struct ws_tensor *t = order[k];
        const struct ws_tensor *there =
            m->s->chosen_of[i][t - st->tensors] ? ws_safetensors_find(m->laid[i], t->name) : NULL;
        rc = there ? put(&m->map->segments[0][i],
                         (struct ws_node_part_segment){
                             .at = t->begin, .n = t->end - t->begin, .file = m->to[i], .to = there->begin})
                   : put_other(m, i, t->begin, t->end);
    }
    free(order);
    return rc;
}

static int put_file(struct making *m, size_t i, struct ws_error *err)
{
    const struct ws_manifest_file *f = &m->manifest->files[i];
    int rc = 0;

    if (f->header_bytes)
        rc = put_header(m, i);
    if (rc == 0 && f->header_bytes)
        rc = put_tensors(m, i);
    else if (rc == 0 && f->size_bytes && m->to[i] != NOWHERE)
        rc =
            put(&m->map->segments[0][i], (struct ws_node_part_segment){.n = f->size_bytes, .file = m->to[i]});
    else if (rc == 0 && f->size_bytes)
        rc = put_other(m, i, 0, f->size_bytes);
    return rc < 0 ? no_memory(err) : 0;
}

/* --- the whole --- */

static int list_files(struct making *m, struct ws_error *err)
{
    struct ws_node_part *whole = m->map->whole = calloc(1, sizeof(*whole));

    if (whole)
        whole->files = calloc(m->targets.len + 1, sizeof(*whole->files));
    if (!whole || !whole->files)
        return no_memory(err);
    whole->count = 1;
    for (size_t i = 0; i < m->targets.len; i++) {
        const struct target *t = &m->targets.ptr[i];
        struct ws_node_part_file *f = &whole->files[i];
        whole->n_files = i + 1;
        f->name = strdup(t->name);
        if (!f->name)
            return no_memory(err);
        f->header_bytes = t->kind == SHARD ? m->laid[t->source]->data_begin : 0;
        f->size_bytes = t->kind == SHARD   ? m->laid[t->source]->file_bytes
                        : t->kind == COPY  ? m->manifest->files[t->source].size_bytes
                        : t->kind == EDGES ? m->edge_bytes
                                           : m->s->made[i].n;
    }
    return 0;
}

static int make_tables(struct making *m, struct ws_error *err)
{
    const size_t n = m->manifest->n_files;
    struct ws_node_part_map *map = m->map = calloc(1, sizeof(*map));
    struct ws_subset *s = m->s = calloc(1, sizeof(*s));

    if (!map || !s) {
        free(s);
        return no_memory(err);
    }
    atomic_init(&map->refs, 1);
    map->subset = s;
    map->n_parts = 1;
    map->n_files = calloc(1, sizeof(*map->n_files));
    map->segments = calloc(1, sizeof(struct ws_node_part_segments *));
    s->headers = calloc(n + 1, sizeof(struct ws_safetensors *));
    s->chosen_of = calloc(n + 1, sizeof(bool *));
    s->wanted = calloc(n + 1, sizeof(uint64_t *));
    m->laid = calloc(n + 1, sizeof(struct ws_safetensors *));
    m->texts = calloc(n + 1, sizeof(void *));
    m->to = calloc(n + 1, sizeof(*m->to));
    if (!map->n_files || !map->segments || !s->headers || !s->chosen_of || !s->wanted || !m->laid ||
        !m->texts || !m->to)
        return no_memory(err);
    map->segments[0] = calloc(n + 1, sizeof(struct ws_node_part_segments));
    map->n_files[0] = s->n_sources = n;
    return map->segments[0] ? 0 : no_memory(err);
}

static void release_tables(struct making *m)
{
    for (size_t i = 0; i < m->manifest->n_files; i++) {
        if (m->laid)
            ws_safetensors_free(m->laid[i]);
        if (m->texts)
            free(m->texts[i]);
    }
    free(m->laid);
    free(m->texts);
    free(m->to);
    targets_reset(&m->targets);
}

int ws_subset_map_new(struct ws_node_part_map **out, const struct ws_node_part_source *source,
                      const struct ws_need *need, struct ws_error *err)
{
    struct making m = {.source = source, .manifest = source->manifest, .need = need};
    const size_t n = source->manifest->n_files;
    int rc = make_tables(&m, err);

    *out = NULL;
    if (rc == 0)
        rc = read_headers(&m, err);
    if (rc == 0)
        rc = choose(&m, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = m.s->headers[i] ? lay_out(&m, i, err) : 0;
    if (rc == 0)
        rc = name_files(&m, err);
    if (rc == 0)
        rc = make_texts(&m, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = mark_wanted(&m, i, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = put_file(&m, i, err);
    if (rc == 0)
        rc = list_files(&m, err);
    release_tables(&m);
    if (rc == 0)
        *out = m.map;
    else
        ws_node_part_map_put(m.map);
    return rc;
}

void ws_subset_free(struct ws_subset *s)
{
    if (!s)
        return;
    for (size_t i = 0; s->headers && i < s->n_sources; i++)
        ws_safetensors_free(s->headers[i]);
    for (size_t i = 0; s->wanted && i < s->n_sources; i++)
        free(s->wanted[i]);
    for (size_t i = 0; s->made && i < s->n_files; i++)
        free(s->made[i].bytes);
    free(s->headers);
    free(s->chosen);
    free(s->chosen_of);
    free(s->wanted);
    free(s->made);
    free(s);
}

/* --- using it --- */

bool ws_subset_is(const struct ws_node_part_map *m)
{
    return m->subset != NULL;
}

bool ws_subset_wants(const struct ws_node_part_map *m, size_t part_file, size_t block)
{
    return !m->subset || has_bit(m->subset->wanted[part_file], block);
}

uint64_t ws_subset_left_out_bytes(const struct ws_node_part_map *m)
{
    return m->subset ? m->subset->left_out_bytes : 0;
}

bool ws_subset_has_tensor(const struct ws_node_part_map *m, const char *tensor)
{
    const struct ws_subset *s = m->subset;

    for (size_t i = 0; s && i < s->n_sources; i++) {
        const struct ws_tensor *t = s->headers[i] ? ws_safetensors_find(s->headers[i], tensor) : NULL;
        if (t)
            return s->chosen_of[i][t - s->headers[i]->tensors];
    }
    return !s;
}

bool ws_subset_leaves_out(const struct ws_node_part_map *m, const char *as)
{
    const struct ws_subset *s = m->subset;
    char name[WS_MAX_NAME + 1];

    for (size_t i = 0; s && i < s->n_sources; i++) {
        const struct ws_safetensors *st = s->headers[i];
        for (size_t t = 0; st && t < st->n_tensors; t++) {
            if (!s->chosen_of[i][t] && strcmp(ws_name_as_file(st->tensors[t].name, name), as) == 0)
                return true;
        }
    }
    return false;
}

int ws_subset_compare(const struct ws_node_part_map *m, const struct ws_need *had, size_t *n,
                      const char **some, struct ws_error *err)
{
    const struct ws_subset *s = m->subset;
    const struct ws_tensor **all;
    size_t n_all = 0;
    bool *chosen;

    *n = 0;
    *some = NULL;
    if (!s)
        return 0;
    for (size_t i = 0; i < s->n_sources; i++)
        n_all += s->headers[i] ? s->headers[i]->n_tensors : 0;
    all = calloc(n_all + 1, sizeof(const struct ws_tensor *));
    chosen = calloc(n_all + 1, sizeof(*chosen));
    int rc = all && chosen ? 0 : no_memory(err);
    n_all = 0;
    for (size_t i = 0; rc == 0 && i < s->n_sources; i++) /* in the order of s->chosen */
        for (size_t t = 0; s->headers[i] && t < s->headers[i]->n_tensors; t++)
            all[n_all++] = &s->headers[i]->tensors[t];
    if (rc == 0 && had)
        rc = ws_need_select(had, all, n_all, chosen, err);
    for (size_t i = 0; rc == 0 && i < n_all; i++) {
        if (s->chosen[i] || (had && !chosen[i]))
            continue;
        *some = *some ? *some : all[i]->name;
        ++*n;
    }
    free(all);
    free(chosen);
    return rc;
}

int ws_subset_each_made(const struct ws_node_part_map *m, const struct ws_manifest *source,
                        void (*made)(void *arg, size_t file, const unsigned char *bytes, uint64_t n),
                        void *arg)
{
    const struct ws_subset *s = m->subset;
    unsigned char *text = s ? malloc(s->made[s->description].n) : NULL;

    if (s && !text)
        return -ENOMEM;
    for (size_t i = 0; s && i < s->n_files; i++) {
        const struct made *d = &s->made[i];
        if (i == s->description) {
            memcpy(text, d->bytes, d->n);
            memcpy(text + strlen(BEFORE), source->digest, DIGEST_CHARS);
        }
        if (d->n)
            made(arg, i, i == s->description ? text : d->bytes, d->n);
    }
    free(text);
    return 0;
}
