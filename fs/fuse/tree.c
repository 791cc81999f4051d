#include "fs/fuse/tree.h"
#include "fs/fuse/life.h"
#include "fs/fuse/version_cache.h"
#include "fs/pull/cuda_ipc_file.h"
#include "fs/pull/shown_delta.h"
#include "transports/base/log.h"
#include "transports/base/text.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct view_name {
    enum ws_view view;
    const char *name;
};
static const struct view_name root_views[] = {{WS_VIEW_CTL, "ctl"},
                                              {WS_VIEW_STATUS, "status"},
                                              {WS_VIEW_EVENTS, "events"},
                                              {WS_VIEW_METRICS, "metrics"},
                                              {WS_VIEW_LAST_ERROR, "last_error"}};
static const struct view_name model_views[] = {
    {WS_VIEW_VERSION, "version"},       {WS_VIEW_CTL, "ctl"},         {WS_VIEW_STATUS, "status"},
    {WS_VIEW_EVENTS, "events"},         {WS_VIEW_ENGINES, "engines"}, {WS_VIEW_POLICY, "policy"},
    {WS_VIEW_LAST_ERROR, "last_error"}, {WS_VIEW_HISTORY, "history"}};
static const struct view_name meta_views[] = {{WS_VIEW_MANIFEST, "manifest.json"},
                                              {WS_VIEW_STATE, "state"},
                                              {WS_VIEW_PROGRESS, "progress"},
                                              {WS_VIEW_CHANGED, "changed"},
                                              {WS_VIEW_CUDA_IPC, "cuda_ipc.json"}};
static const char *const links[WS_LINK_COUNT] = {"latest", "current", "previous"};
#define TENSORS "tensors"
#define META    ".wsync"
#define CHANGES "changes-from-"

/* --- names --- */

static const struct view_name *find_view(const struct view_name *views, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(views[i].name, name) == 0)
            return &views[i];
    return NULL;
}
#define FIND_VIEW(views, name) find_view(views, sizeof(views) / sizeof((views)[0]), name)

/* A file that takes commands is another inode at each lookup: the kernel holds an inode's lock while it is
 * written or truncated, and a second writer, or a cancel, could not even ask while the first command runs. */
static fuse_ino_t view_ino(struct ws_fs *fs, uint64_t id, enum ws_tree_kind kind, enum ws_view view)
{
    uint64_t turn =
        ws_view_is_written(view)
            ? atomic_fetch_add(fs->life ? ws_life_last_lookup(fs->life) : &fs->last_lookup, 1) & 0x7FFFFF
            : 0;
    return ws_ino(id, kind, turn << 8 | view);
}

/* A version by its framework's name, or a link to one. */
static int child_by_names(struct ws_fs *fs, const char *name, fuse_ino_t *ino)
{
    const struct ws_names *names = &fs->names;
    struct ws_version *v = ws_version_if_shown(ws_names_find(names, fs->store, name));
    if (v && names->is_written && ws_side_hides(&fs->side, v, NULL)) {
        ws_version_put(v);
        return -ENOENT;
    }
    if (v) {
        *ino = ws_ino(ws_version_serial(v), WS_KIND_VERSION, WS_NAMED);
        ws_version_put(v);
        return 0;
    }
    struct ws_model *m = names->pattern.is_constant ? NULL : ws_store_find(fs->store, names->model);
    int rc = -ENOENT;
    for (size_t i = 0; m && rc < 0 && i < WS_LINK_COUNT; i++) {
        if (strcmp(links[i], name) != 0 || !(v = ws_tree_link_version(m, i)))
            continue;
        ws_version_put(v);
        *ino = ws_ino(ws_model_id(m), WS_KIND_MODEL_LINK, i | WS_NAMED);
        rc = 0;
    }
    if (m)
        ws_model_put(m);
    return rc;
}

/* Who looks for a version may have been told of it before this mount was. True: parked. */
static bool ask_for_name(struct ws_request *rq, const char *name)
{
    const struct ws_names *names = &rq->fs->names;
    uint64_t number = 0;
    if (rq->has_asked || !ws_pattern_match(&names->pattern, name, &number))
        return false;
    struct ws_version *known = names->pattern.is_constant ? NULL : ws_names_find(names, rq->fs->store, name);
    if (known)
        ws_version_put(known);
    return !known && ws_request_ask(rq, names->model, names->pattern.is_constant ? NULL : &number);
}

static int child_of_root(struct ws_request *rq, const char *name, fuse_ino_t *ino, double *timeout)
{
    const struct view_name *v = FIND_VIEW(root_views, name);
    *timeout = 0;
    if (rq->fs->names.model && ask_for_name(rq, name))
        return 1;
    if (rq->fs->names.model && child_by_names(rq->fs, name, ino) == 0)
        return 0;
    if (v) {
        *ino = view_ino(rq->fs, 0, WS_KIND_ROOT_VIEW, v->view);
        return 0;
    }
    if (rq->fs->reads == WS_READS_LINK && strcmp(name, WS_REGIONS_NAME) == 0) {
        *ino = ws_ino(0, WS_KIND_REGIONS, 0);
        *timeout = WS_FOREVER; /* a file system is mounted on it */
        return 0;
    }
    struct ws_model *m = ws_store_find(rq->fs->store, name);
    if (!m)
        return -ENOENT;
    *ino = ws_ino(ws_model_id(m), WS_KIND_MODEL, 0);
    ws_model_put(m);
    return 0;
}

unsigned ws_tree_list_ms(const struct ws_fs *fs, struct ws_version *v)
{
    return ws_version_is_made_first(v) || fs->options.deadline_ms < WS_LIST_MS ? fs->options.deadline_ms
                                                                               : WS_LIST_MS;
}

/* "N@RUN" of a version whose name is N. It is not listed. Whoever wants the same bytes for ever opens that. */
static struct ws_version *find_live(struct ws_model *m, const char *name)
{
    uint64_t number;
    char own[WS_VERSION_ID_TEXT];
    const char *at = name;
    if (ws_text_digits(&at, &number) || *at != '@')
        return NULL;
    struct ws_version *v = ws_version_at(m, number, at + 1);
    if (!v)
        return NULL;
    const struct ws_version_id id = ws_version_id(v);
    ws_version_id_text(&id, own);
    if (strcmp(own, name) == 0)
        return v;
    ws_version_put(v);
    return NULL;
}

static int child_of_model(struct ws_fs *fs, struct ws_model *m, const char *name, fuse_ino_t *ino,
                          double *timeout)
{
    const struct view_name *view = FIND_VIEW(model_views, name);
    *timeout = 0;
    if (view) {
        *ino = view_ino(fs, ws_model_id(m), WS_KIND_MODEL_VIEW, view->view);
        return 0;
    }
    for (size_t i = 0; i < WS_LINK_COUNT; i++) {
        if (strcmp(links[i], name) != 0)
            continue;
        struct ws_version *v = ws_tree_link_version(m, i);
        if (!v)
            return -ENOENT;
        ws_version_put(v);
        *ino = ws_ino(ws_model_id(m), WS_KIND_MODEL_LINK, i);
        return 0;
    }
    struct ws_error err;
    struct ws_version *v = ws_version_if_shown(ws_version_find(m, name, &err));
    const bool is_link = !v && (v = ws_version_if_shown(find_live(m, name)));
    if (!v)
        return -ENOENT;
    *ino = ws_ino(ws_version_serial(v), is_link ? WS_KIND_VERSION_LINK : WS_KIND_VERSION, 0);
    ws_version_put(v);
    return 0;
}

bool ws_fs_sees_reads(struct ws_version *v, size_t file)
{
    return ws_model_learns(ws_version_model(v)) && ws_version_files(v)->files[file].header_bytes > 0 &&
           !ws_version_is_known(v);
}

/* The inode of a version's file: FILE, FILL or LINK, by what is here and by the mode. folder: its folder's index. */
static fuse_ino_t file_ino(struct ws_fs *fs, struct ws_version *v, size_t file, uint64_t folder)
{
    char name[64];
    bool complete = ws_version_is_complete(v);
    enum ws_tree_kind kind = WS_KIND_FILE;
    if (ws_fs_sees_reads(v, file))
        kind = WS_KIND_FILL;
    else if (complete && atomic_load(&fs->has_links) && ws_version_cache_link(fs, v, file, name) == 0)
        kind = WS_KIND_LINK;
    else if (!complete && (fs->options.open != WS_OPEN_WAIT || fs->reads == WS_READS_LINK))
        kind = WS_KIND_FILL;
    return ws_ino(ws_version_serial(v), kind, kind == WS_KIND_LINK ? file | (folder & WS_NAMED) : file);
}

/* There is no such name; where it was left out, last_error says so. */
static int absent(struct ws_fs *fs, struct ws_version *v, const char *name, bool is_tensor)
{
    struct ws_error why;
    if (ws_version_leaves_out(v, name, is_tensor, &why))
        ws_control_record_absent(fs->control, v, &why);
    return -ENOENT;
}

static int child_of_version(struct ws_request *rq, const struct ws_tree_node *p, const char *name,
                            fuse_ino_t *ino, double *timeout)
{
    struct ws_version *v = p->version;
    if (!(p->index & WS_NAMED) && (strcmp(name, TENSORS) == 0 || strcmp(name, META) == 0)) {
        *ino = ws_ino(ws_version_serial(v), name[0] == '.' ? WS_KIND_META : WS_KIND_TENSORS, 0);
        *timeout = WS_FOREVER;
        return 0;
    }
    const struct ws_manifest *m = ws_version_files(v);
    if (!m) {
        ws_request_park(rq, v, 0, 0, 0, rq->fs->options.deadline_ms);
        return 1;
    }
    const struct ws_manifest_file *f = ws_manifest_find(m, name);
    const bool is_written = (p->index & WS_NAMED) && rq->fs->names.is_written;
    const uint64_t side = f || !is_written ? 0 : ws_side_find(&rq->fs->side, v, name);
    if (side) {
        *ino = ws_side_ino(side);
        *timeout = 0;
        return 0;
    }
    if (f && is_written && ws_side_hides(&rq->fs->side, v, name))
        return -ENOENT;
    if (!f)
        return absent(rq->fs, v, name, false);
    *ino = file_ino(rq->fs, v, (size_t)(f - m->files), p->index);
    /* A name that fills is looked up each time, so that the next lookup finds what it became. */
    *timeout = ws_ino_kind(*ino) == WS_KIND_FILL || !ws_version_is_complete(v) ? 0 : WS_FOREVER;
    return 0;
}

static int child_of_tensors(struct ws_request *rq, struct ws_version *v, const char *name, fuse_ino_t *ino,
                            double *timeout)
{
    struct ws_version_cache *vc = NULL;
    if (!ws_version_has_files(v)) {
        ws_request_park(rq, v, WS_FILE_HEADERS, 0, 0, rq->fs->options.deadline_ms);
        return 1;
    }
    int rc = ws_version_cache_tensors(rq->fs, v, &vc);
    if (rc == -EAGAIN) {
        ws_request_park(rq, v, WS_FILE_HEADERS, 0, 0, rq->fs->options.deadline_ms);
        return 1;
    }
    if (rc < 0)
        return rc;
    long i = ws_version_cache_find(v, vc, name);
    if (i < 0)
        return absent(rq->fs, v, name, true);
    *ino = ws_ino(ws_version_serial(v), WS_KIND_TENSOR, (uint64_t)i);
    *timeout = WS_FOREVER;
    return 0;
}

/* Is it there? What is shared on GPUs comes and goes. */
static bool has_view(struct ws_version *v, enum ws_view view)
{
    return view != WS_VIEW_CUDA_IPC || ws_cuda_ipc_file_exists(v);
}

/* The version of that name, in the live run also N@RUN of it. */
static struct ws_version *find_base(struct ws_version *v, const char *name)
{
    struct ws_error err;
    struct ws_version *base = ws_version_find(ws_version_model(v), name, &err);
    return base ? base : find_live(ws_version_model(v), name);
}

/* Where there are no changes, the log says why: whoever asks has another way, so it is no failure. */
static int child_of_changes(struct ws_version *v, const char *name, fuse_ino_t *ino)
{
    struct ws_version *base = find_base(v, name);
    struct ws_error why = {0};
    if (!base)
        return -ENOENT;
    const bool is_there = ws_shown_delta_exists(base, v, &why);
    *ino = ws_ino(ws_version_serial(v), WS_KIND_CHANGES, ws_version_serial(base));
    ws_version_put(base);
    if (is_there)
        return 0;
    ws_log(WS_LOG_INFO, "fs", "%s", why.text);
    return why.code == EOPNOTSUPP ? -EOPNOTSUPP : -ENOENT;
}

int ws_tree_node_child(struct ws_request *rq, const struct ws_tree_node *p, const char *name, fuse_ino_t *ino,
                       double *timeout)
{
    switch (p->kind) {
    case WS_KIND_ROOT:
        return child_of_root(rq, name, ino, timeout);
    case WS_KIND_MODEL:
        return child_of_model(rq->fs, p->model, name, ino, timeout);
    case WS_KIND_VERSION:
        return child_of_version(rq, p, name, ino, timeout);
    case WS_KIND_TENSORS:
        return child_of_tensors(rq, p->version, name, ino, timeout);
    case WS_KIND_META: {
        const struct view_name *v = FIND_VIEW(meta_views, name);
        *timeout = 0;
        if (strncmp(name, CHANGES, strlen(CHANGES)) == 0)
            return child_of_changes(p->version, name + strlen(CHANGES), ino);
        if (!v || !has_view(p->version, v->view))
            return -ENOENT;
        *ino = ws_ino(ws_version_serial(p->version), WS_KIND_META_VIEW, v->view);
        *timeout = v->view == WS_VIEW_CUDA_IPC ? 0 : WS_FOREVER;
        return 0;
    }
    default:
        return -ENOENT;
    }
}

/* --- listing --- */

struct listing {
    ws_visit_name *visit;
    void *arg;
    struct ws_side *side; /* NULL: versions are not removed by programs */
};

static void list_model(void *arg, struct ws_model *m)
{
    struct listing *l = arg;
    l->visit(l->arg, ws_model_name(m), ws_ino(ws_model_id(m), WS_KIND_MODEL, 0));
}

static void list_version(void *arg, struct ws_version *v)
{
    struct listing *l = arg;
    char name[WS_MAX_NAME + 1];
    ws_version_name(v, name);
    if (name[0] && ws_version_is_shown(v))
        l->visit(l->arg, name, ws_ino(ws_version_serial(v), WS_KIND_VERSION, 0));
}

static void list_model_folder(struct ws_model *m, struct listing *l)
{
    for (size_t i = 0; i < sizeof(model_views) / sizeof(model_views[0]); i++)
        l->visit(l->arg, model_views[i].name,
                 ws_ino(ws_model_id(m), WS_KIND_MODEL_VIEW, model_views[i].view));
    for (size_t i = 0; i < WS_LINK_COUNT; i++) {
        struct ws_version *v = ws_tree_link_version(m, i);
        if (v)
            l->visit(l->arg, links[i], ws_ino(ws_model_id(m), WS_KIND_MODEL_LINK, i));
        if (v)
            ws_version_put(v);
    }
    ws_model_each(m, list_version, l);
}

static void list_side(void *arg, const char *name, uint64_t number)
{
    const struct listing *l = arg;
    l->visit(l->arg, name, ws_side_ino(number));
}

static void list_named(void *arg, const char *name, struct ws_version *v)
{
    const struct listing *l = arg;
    if (ws_version_is_shown(v) && (!l->side || !ws_side_hides(l->side, v, NULL)))
        l->visit(l->arg, name, ws_ino(ws_version_serial(v), WS_KIND_VERSION, WS_NAMED));
}

static void list_root(struct ws_fs *fs, struct listing *l)
{
    if (fs->names.model) {
        ws_names_each(&fs->names, fs->store, list_named, l);
        return;
    }
    for (size_t i = 0; i < sizeof(root_views) / sizeof(root_views[0]); i++)
        l->visit(l->arg, root_views[i].name, ws_ino(0, WS_KIND_ROOT_VIEW, root_views[i].view));
    ws_store_each(fs->store, list_model, l);
}

static int list_version_folder(struct ws_request *rq, const struct ws_tree_node *n, struct listing *l)
{
    struct ws_version *v = n->version;
    const struct ws_manifest *m = ws_version_files(v);
    if (!m) {
        ws_request_park(rq, v, 0, 0, 0, ws_tree_list_ms(rq->fs, v));
        return 1;
    }
    const bool is_written = (n->index & WS_NAMED) && rq->fs->names.is_written;
    for (size_t i = 0; i < m->n_files; i++)
        if (!is_written || !ws_side_hides(&rq->fs->side, v, m->files[i].name))
            l->visit(l->arg, m->files[i].name, file_ino(rq->fs, v, i, n->index));
    if (is_written)
        ws_side_each(&rq->fs->side, v, list_side, l);
    if (n->index & WS_NAMED)
        return 0;
    l->visit(l->arg, TENSORS, ws_ino(ws_version_serial(v), WS_KIND_TENSORS, 0));
    l->visit(l->arg, META, ws_ino(ws_version_serial(v), WS_KIND_META, 0));
    return 0;
}

struct bases {
    struct ws_version *target;
    struct listing *listing;
};

static void list_base(void *arg, struct ws_version *base)
{
    const struct bases *b = arg;
    char version[WS_MAX_NAME + 1], name[WS_MAX_NAME + 32];
    struct ws_error why;
    ws_version_name(base, version);
    if (!version[0] || !ws_shown_delta_exists(base, b->target, &why))
        return;
    snprintf(name, sizeof(name), CHANGES "%s", version);
    b->listing->visit(b->listing->arg, name,
                      ws_ino(ws_version_serial(b->target), WS_KIND_CHANGES, ws_version_serial(base)));
}

static int list_tensors(struct ws_request *rq, struct ws_version *v, struct listing *l)
{
    struct ws_version_cache *vc = NULL;
    int rc = ws_version_has_files(v) ? ws_version_cache_tensors(rq->fs, v, &vc) : -EAGAIN;
    if (rc == -EAGAIN) {
        ws_request_park(rq, v, WS_FILE_HEADERS, 0, 0, ws_tree_list_ms(rq->fs, v));
        return 1;
    }
    for (size_t i = 0; rc == 0 && i < vc->n_tensors; i++) {
        char name[WS_MAX_NAME + 1];
        size_t file;
        l->visit(l->arg, ws_name_as_file(ws_version_cache_tensor(v, vc, i, &file)->name, name),
                 ws_ino(ws_version_serial(v), WS_KIND_TENSOR, i));
    }
    return rc;
}

int ws_tree_node_list(struct ws_request *rq, const struct ws_tree_node *n, ws_visit_name *visit, void *arg)
{
    struct listing l = {visit, arg, rq->fs->names.is_written ? &rq->fs->side : NULL};
    switch (n->kind) {
    case WS_KIND_ROOT:
        list_root(rq->fs, &l);
        return 0;
    case WS_KIND_MODEL:
        list_model_folder(n->model, &l);
        return 0;
    case WS_KIND_VERSION:
        return list_version_folder(rq, n, &l);
    case WS_KIND_TENSORS:
        return list_tensors(rq, n->version, &l);
    case WS_KIND_META:
        for (size_t i = 0; i < sizeof(meta_views) / sizeof(meta_views[0]); i++)
            if (has_view(n->version, meta_views[i].view))
                visit(arg, meta_views[i].name,
                      ws_ino(ws_version_serial(n->version), WS_KIND_META_VIEW, meta_views[i].view));
        ws_model_each(ws_version_model(n->version), list_base, &(struct bases){n->version, &l});
        return 0;
    case WS_KIND_REGIONS:
        return 0;
    default:
        return -ENOTDIR;
    }
}
