#include "backends/trainer/tensor/node_placement.h"
#include "transports/format/node_part.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct maker {
    const struct ws_placement *whole;
    struct ws_entry **mine; /* every entry of this node's ranks, by file, name and rank */
    size_t n_mine;
    bool first; /* rank 0 is here */
    struct ws_node_part part;
    struct ws_placement *share;
};

static int no_memory(struct ws_error *err)
{
    return ws_error_set(err, ENOMEM, "no memory for the placement of a node");
}

static int by_file(const void *x, const void *y)
{
    const struct ws_entry *a = *(struct ws_entry *const *)x, *b = *(struct ws_entry *const *)y;
    if (a->file_index != b->file_index)
        return a->file_index < b->file_index ? -1 : 1;
    int c = strcmp(a->tensor.name, b->tensor.name);
    if (c)
        return c;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return a < b ? -1 : a > b; /* of one rank: as it registered them */
}

static void collect_entries(struct maker *k, struct ws_entry *e, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ws_piece_elements(&e[i].piece, e[i].tensor.n_dims) == 0)
            e[i].writes = false;
        if (e[i].writes)
            k->mine[k->n_mine++] = &e[i];
    }
}

static int collect(struct maker *k, struct ws_registration *const *regs, unsigned world_size,
                   const unsigned *node_of, struct ws_error *err)
{
    size_t n = regs[0]->n_base;
    for (unsigned r = 0; r < world_size; r++)
        n += regs[r]->n_entries;
    k->mine = calloc(n ? n : 1, sizeof(*k->mine));
    if (!k->mine)
        return no_memory(err);
    for (unsigned r = 0; r < world_size; r++)
        if (node_of[r] == k->part.index)
            collect_entries(k, regs[r]->entries, regs[r]->n_entries);
    k->first = node_of[0] == k->part.index;
    if (k->first)
        collect_entries(k, regs[0]->base, regs[0]->n_base);
    qsort(k->mine, k->n_mine, sizeof(k->mine[0]), by_file);
    return 0;
}

static struct ws_placement_file *add_file(struct maker *k, const char *name, const char *suffix,
                                          struct ws_error *err)
{
    struct ws_placement *l = k->share;
    if (strlen(name) + strlen(suffix) > WS_MAX_NAME || l->n_files == WS_MAX_FILES) {
        ws_error_set(
            err, E2BIG,
            "the part of a node has over %d files, or the name %.60s... is too long with %s: use larger "
            "shards, or shorter names",
            WS_MAX_FILES, name, suffix);
        return NULL;
    }
    struct ws_placement_file *f = ws_placement_add_file(l, name, suffix);
    if (!f)
        no_memory(err);
    return f;
}

/* A file that this node has as a whole: content NULL: a sidecar, which rank 0 writes. */
static int add_whole(struct maker *k, const struct ws_placement_file *w, struct ws_error *err)
{
    struct ws_placement_file *f = add_file(k, w->name, w->header_bytes ? WS_NODE_PART_HEADER : "", err);
    if (!f)
        return -(err ? err->code : ENOMEM);
    f->size_bytes = w->content ? w->content_bytes : w->size_bytes;
    f->content_bytes = w->content_bytes;
    if (w->content && !(f->content = malloc(w->content_bytes ? w->content_bytes : 1)))
        return no_memory(err);
    if (w->content)
        memcpy(f->content, w->content, w->content_bytes);
    return 0;
}

static int describe_piece(const struct ws_entry *e, struct ws_node_part_piece *p)
{
    *p = (struct ws_node_part_piece){.tensor = strdup(e->tensor.name),
                                     .range = e->piece.range,
                                     .n_dims = e->tensor.n_dims,
                                     .start = e->piece.start,
                                     .count = e->piece.count};
    memcpy(p->offset, e->piece.offset, sizeof(p->offset));
    memcpy(p->size, e->piece.size, sizeof(p->size));
    return p->tensor ? 0 : -ENOMEM;
}

/* The pieces of one shard file: a safetensors file of dense tensors. */
static int add_pieces(struct maker *k, const struct ws_placement_file *w, struct ws_node_part_file *described,
                      struct ws_entry **entries, size_t n, struct ws_error *err)
{
    struct ws_tensor *specs = calloc(n, sizeof(*specs));
    char(*names)[WS_NODE_PART_NAME_BYTES] = calloc(n, sizeof(*names));
    struct ws_placement_file *f = NULL;
    struct ws_safetensors *st = NULL;
    void *header = NULL;
    int rc = specs && names ? 0 : no_memory(err);
    described->pieces = calloc(n, sizeof(*described->pieces));
    if (rc == 0 && !described->pieces)
        rc = no_memory(err);
    for (size_t i = 0; rc == 0 && i < n; i++, described->n_pieces++) {
        struct ws_piece p = entries[i]->piece;
        specs[i] = entries[i]->tensor;
        ws_piece_make_dense(&specs[i], &p);
        ws_node_part_tensor(names[i], i);
        specs[i].name = names[i];
        if (describe_piece(entries[i], &described->pieces[i]) < 0)
            rc = no_memory(err);
    }
    if (rc == 0)
        rc = ws_safetensors_layout(specs, n, NULL, &st, &header, err);
    if (rc == 0 && !(f = add_file(k, w->name, "", err)))
        rc = -(err ? err->code : ENOMEM);
    if (rc == 0) {
        f->size_bytes = st->file_bytes;
        f->header_bytes = f->content_bytes = st->data_begin;
        f->content = header;
        header = NULL;
    }
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct ws_tensor *t = ws_safetensors_find(st, names[i]);
        assert(t);
        entries[i]->tensor.begin = t->begin;
        entries[i]->tensor.end = t->end;
    }
    free(header);
    ws_safetensors_free(st);
    free(specs);
    free(names);
    return rc;
}

static int add_files(struct maker *k, struct ws_error *err)
{
    int rc = 0;
    size_t at = 0;
    k->part.files = calloc(k->whole->n_files, sizeof(*k->part.files));
    if (!k->part.files)
        return no_memory(err);
    for (size_t i = 0; rc == 0 && i < k->whole->n_files; i++) {
        const struct ws_placement_file *w = &k->whole->files[i];
        struct ws_node_part_file *f = &k->part.files[k->part.n_files++];
        size_t n = 0;
        *f = (struct ws_node_part_file){.size_bytes = w->size_bytes, .header_bytes = w->header_bytes};
        if (!(f->name = strdup(w->name)))
            return no_memory(err);
        while (at + n < k->n_mine && k->mine[at + n]->file_index == i)
            n++;
        if (k->first)
            rc = add_whole(k, w, err);
        if (rc == 0 && n)
            rc = add_pieces(k, w, f, &k->mine[at], n, err);
        at += n;
    }
    return rc;
}

static int by_name(const void *x, const void *y)
{
    return strcmp(((const struct ws_placement_file *)x)->name, ((const struct ws_placement_file *)y)->name);
}

static size_t find(const struct ws_placement *l, const char *name)
{
    struct ws_placement_file key = {.name = (char *)(uintptr_t)name};
    const struct ws_placement_file *f = bsearch(&key, l->files, l->n_files, sizeof(key), by_name);
    assert(f);
    return (size_t)(f - l->files);
}

static int finish(struct maker *k, struct ws_error *err)
{
    struct ws_placement *l = k->share;
    struct ws_placement_file *f = add_file(k, WS_NODE_PART_FILE, "", err);
    if (!f)
        return -(err ? err->code : ENOMEM);
    f->content = ws_node_part_to_json(&k->part);
    if (!f->content)
        return no_memory(err);
    f->size_bytes = f->content_bytes = strlen(f->content);
    qsort(l->files, l->n_files, sizeof(l->files[0]), by_name);
    for (size_t i = 1; i < l->n_files; i++)
        if (strcmp(l->files[i - 1].name, l->files[i].name) == 0)
            return ws_error_set(
                err, EINVAL,
                "the file name %s is taken where a trainer spans several nodes: name it otherwise",
                l->files[i].name);
    for (size_t i = 0; i < k->n_mine; i++)
        k->mine[i]->file_index = find(l, k->whole->files[k->mine[i]->file_index].name);
    for (size_t i = 0; i < l->n_files; i++)
        l->total_bytes += l->files[i].size_bytes;
    l->frozen = calloc(k->whole->n_frozen + 1, sizeof(*l->frozen));
    if (!l->frozen)
        return no_memory(err);
    for (size_t i = 0; k->first && i < k->whole->n_frozen; i++, l->n_frozen++)
        if (!(l->frozen[i] = strdup(k->whole->frozen[i])))
            return no_memory(err);
    if (k->first)
        memcpy(l->base_id, k->whole->base_id, sizeof(l->base_id));
    return ws_placement_set_id(l, k->whole->id, err); /* which the sidecars' contents are in */
}

int ws_node_placement_make(const struct ws_placement *whole, struct ws_registration *const *regs,
                           unsigned world_size, const unsigned *node_of, unsigned index, unsigned count,
                           struct ws_placement **out, struct ws_error *err)
{
    struct maker k = {.whole = whole, .part = {.index = index, .count = count}};
    struct ws_node_part *described = calloc(1, sizeof(*described));
    _Static_assert(sizeof(k.part.placement) == sizeof(whole->id), "an id is an id");
    memcpy(k.part.placement, whole->id, sizeof(whole->id));
    *out = NULL;
    k.share = calloc(1, sizeof(*k.share));
    int rc = k.share && described ? collect(&k, regs, world_size, node_of, err) : no_memory(err);
    if (rc == 0)
        rc = add_files(&k, err);
    if (rc == 0)
        rc = finish(&k, err);
    free(k.mine);
    if (described) {
        *described = k.part;
        ws_node_part_free(described);
    }
    if (rc < 0) {
        ws_placement_free(k.share);
        return rc;
    }
    *out = k.share;
    return 0;
}
