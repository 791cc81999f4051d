/* The operations on open files: weights from memory or passed through, tensors, control files. */
#include "fs/engines/job.h"
#include "fs/fuse/invalidate.h"
#include "fs/fuse/lazy_read.h"
#include "fs/fuse/life.h"
#include "fs/fuse/ops_side.h"
#include "fs/fuse/tree.h"
#include "fs/fuse/version_cache.h"
#include "fs/pull/lazy.h"
#include "fs/pull/shown_delta.h"
#include "transports/base/log.h"
#include "transports/delta/stream.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An open file; fi->fh. */
struct ws_open_file {
    enum ws_tree_kind kind;
    struct ws_version *version; /* weights: a reference, and a use while its bytes may be read through us */
    size_t file;
    uint64_t begin, size; /* of the bytes in the file: a tensor is a part of it */
    pid_t pid;            /* of the thread that opened it */
    bool uses, kept, by_root;
    enum ws_view view;
    struct ws_model *model;
    char *text; /* a view's, at open */
    size_t len;
    struct ws_delta *changes; /* counted; NULL: it shows none */
    struct shown *shown;      /* how far they are read */
    /* guarded by fs->lock */
    struct fuse_pollhandle *ph; /* of an events file that a reader polls */
    uint64_t seen;              /* bytes of events that were read */
    LIST_ENTRY(ws_open_file)
    entry; /* in fs->open_files: the kernel releases none of them at a lazy unmount */
    bool listed;
};

/* A delta as a file. A reader goes from its beginning to its end; one that goes back costs the way from the beginning. */
struct shown {
    pthread_mutex_t lock;
    struct ws_delta_stream_writer writer;
    uint64_t at;
};

/* Could the caller read what the daemon can? */
static bool is_root(fuse_req_t req)
{
    const struct ws_fs *fs = fuse_req_userdata(req);
    const uid_t uid = fuse_req_ctx(req)->uid;
    return uid == 0 || (uid == geteuid() && !ws_mount_options_is_given(&fs->options));
}

/* NULL: of a daemon before this one. */
static struct ws_open_file *get_open_file(fuse_req_t req, const struct fuse_file_info *fi)
{
    return ws_life_handled(((const struct ws_fs *)fuse_req_userdata(req))->life, fi->fh);
}

static void free_shown(struct ws_open_file *o)
{
    if (o->shown) {
        ws_delta_stream_writer_free(&o->shown->writer);
        pthread_mutex_destroy(&o->shown->lock);
    }
    free(o->shown);
    if (o->changes)
        ws_delta_put(o->changes);
}

static void free_open(struct ws_fs *fs, struct ws_open_file *o)
{
    pthread_mutex_lock(&fs->lock);
    if (o->listed)
        LIST_REMOVE(o, entry);
    struct fuse_pollhandle *ph = o->ph;
    pthread_mutex_unlock(&fs->lock);
    if (ph)
        fuse_pollhandle_destroy(ph);
    if (o->kept)
        ws_version_retain(o->version, -1);
    if (o->uses)
        ws_version_use(o->version, -1);
    if (o->version)
        ws_version_put(o->version);
    if (o->model)
        ws_model_put(o->model);
    free(o->text);
    free_shown(o);
    free(o);
}

size_t ws_fs_openers(struct ws_fs *fs, const struct ws_version *v, pid_t *out, size_t max)
{
    size_t n = 0;
    pthread_mutex_lock(&fs->lock);
    for (struct ws_open_file *o = LIST_FIRST(&fs->open_files); o && n < max; o = LIST_NEXT(o, entry)) {
        bool known = o->version != v;
        for (size_t i = 0; i < n; i++)
            known = known || out[i] == o->pid;
        if (!known)
            out[n++] = o->pid;
    }
    pthread_mutex_unlock(&fs->lock);
    return n;
}

void ws_fs_close_all(struct ws_fs *fs)
{
    while (!LIST_EMPTY(&fs->open_files))
        free_open(fs, LIST_FIRST(&fs->open_files));
}

static void reply_opened(struct ws_request *rq, struct ws_open_file *o)
{
    pthread_mutex_lock(&rq->fs->lock);
    LIST_INSERT_HEAD(&rq->fs->open_files, o, entry);
    o->listed = true;
    pthread_mutex_unlock(&rq->fs->lock);
    rq->fi.fh = ws_life_handle(rq->fs->life, o);
    if (fuse_reply_open(rq->req, &rq->fi) != 0)
        free_open(rq->fs, o); /* the reader is gone: release will not come */
    ws_request_end(rq);
}

/* --- open --- */

/* The bytes of an inode: [begin, begin + size) of a file of the version. 1: parked. */
static int find_bytes(struct ws_request *rq, const struct ws_tree_node *n, struct ws_open_file *o)
{
    const struct ws_manifest *m = ws_version_files(n->version);
    if (!m) {
        ws_request_park(rq, n->version, 0, 0, 0, rq->fs->options.deadline_ms);
        return 1;
    }
    if (n->kind != WS_KIND_TENSOR) {
        if (n->index >= m->n_files)
            return -ENOENT;
        o->file = n->index;
        o->size = m->files[n->index].size_bytes;
        return 0;
    }
    struct ws_version_cache *cache;
    int rc = ws_version_cache_tensors(rq->fs, n->version, &cache);
    if (rc == -EAGAIN) {
        ws_request_park(rq, n->version, WS_FILE_HEADERS, 0, 0, rq->fs->options.deadline_ms);
        return 1;
    }
    if (rc < 0 || n->index >= cache->n_tensors)
        return rc < 0 ? rc : -ENOENT;
    const struct ws_tensor *t = ws_version_cache_tensor(n->version, cache, n->index, &o->file);
    o->begin = t->begin;
    o->size = t->end - t->begin;
    return 0;
}

/* How the kernel is to read it from now on; 1: parked. */
static int choose_reads(struct ws_request *rq, struct ws_open_file *o)
{
    struct ws_fs *fs = rq->fs;
    const bool is_learned = ws_fs_sees_reads(o->version, o->file);
    if (o->kind == WS_KIND_FILL && fs->options.open == WS_OPEN_WAIT && !is_learned) {
        /* Link mode: held until the file is complete; then its name is a link, which ESTALE makes the kernel
         * look up (open(2) tries again once with fresh lookups). */
        if (ws_version_is_complete(o->version))
            return -ESTALE;
        ws_request_park(rq, o->version, WS_FILE_ALL, 0, 0, fs->options.deadline_ms);
        return 1;
    }
    if (o->kind == WS_KIND_FILE && !ws_version_is_complete(o->version)) {
        ws_request_park(rq, o->version, WS_FILE_ALL, 0, 0, fs->options.deadline_ms);
        return 1;
    }
#if WS_HAVE_PASSTHROUGH
    if (o->kind == WS_KIND_FILE && fs->reads == WS_READS_PASSTHROUGH && o->size > 0 && !is_learned) {
        int id = ws_version_cache_backing(fs, o->version, o->file);
        if (id < 0 && id != -EPIPE)
            return id;
        if (id > 0) {
            rq->fi.backing_id = id;
            return 0;
        }
    }
#endif
    rq->fi.keep_cache = 1;
    ws_version_use(o->version, 1);
    o->uses = true;
    return 0;
}

static void run_open_weights(struct ws_request *rq)
{
    struct ws_fs *fs = rq->fs; /* a parked request may be over and freed when choose_reads returns */
    struct ws_tree_node n;
    struct ws_open_file *o = calloc(1, sizeof(*o));
    int rc = o ? ws_tree_node_get(rq->fs, rq->ino, &n) : -ENOMEM;
    if (rc < 0) {
        free(o);
        ws_request_deny(rq, rc == -ENOENT ? ESTALE : -rc);
        return;
    }
    o->kind = n.kind;
    o->pid = fuse_req_ctx(rq->req)->pid;
    if (ws_tree_node_is_former(&n)) {
        rc = -ESTALE;
    } else if (ws_version_is_leaving(
                   n.version)) { /* seen by whoever has its memory next: we have a reference already */
        ws_version_refuse_open(n.version);
        rc = -ESTALE;
    } else {
        rc = find_bytes(rq, &n, o);
    }
    if (rc == 0) {
        o->version = ws_version_get(n.version);
        ws_version_retain(o->version, 1);
        o->kept = true;
        rc = choose_reads(rq, o);
    }
    ws_tree_node_release(&n);
    if (rc == 0) {
        reply_opened(rq, o);
        return;
    }
    free_open(fs, o);
    if (rc < 0)
        ws_request_error(rq, -rc);
}

static int show_changes(struct ws_fs *fs, const struct ws_tree_node *n, struct ws_open_file *o)
{
    struct ws_version *base = ws_version_by_serial(fs->store, n->index);
    struct ws_error err = {0};
    int rc = base ? ws_shown_delta_get(&o->changes, base, n->version, &err) : -ENOENT;
    if (base)
        ws_version_put(base);
    if (rc == 0 && (o->shown = calloc(1, sizeof(*o->shown)))) {
        pthread_mutex_init(&o->shown->lock, NULL);
        return ws_delta_stream_writer_init(&o->shown->writer, o->changes, 0, 1);
    }
    if (rc < 0)
        ws_log(WS_LOG_INFO, "fs", "%s", err.text[0] ? err.text : "the base is gone");
    return rc < 0 ? rc : -ENOMEM;
}

static void open_changes(void *arg)
{
    struct ws_request *rq = arg;
    struct ws_fs *fs = rq->fs;
    struct ws_tree_node n;
    struct ws_open_file *o = calloc(1, sizeof(*o));
    int rc = o ? ws_tree_node_get(fs, rq->ino, &n) : -ENOMEM;
    if (rc < 0) {
        free(o);
        ws_request_deny(rq, rc == -ENOENT ? ESTALE : -rc);
        return;
    }
    o->kind = n.kind;
    o->pid = fuse_req_ctx(rq->req)->pid;
    rc = show_changes(fs, &n, o);
    ws_tree_node_release(&n);
    if (rc < 0) {
        free_open(fs, o);
        ws_request_error(rq, -rc);
        return;
    }
    rq->fi.direct_io = 1;
    reply_opened(rq, o);
}

/* It may have to be made, which takes long. */
static void run_open_changes(struct ws_request *rq)
{
    if (ws_job_start(rq->fs->control, open_changes, rq) < 0)
        open_changes(rq);
}

static void open_view(void *arg)
{
    struct ws_request *rq = arg;
    struct ws_tree_node n;
    struct ws_open_file *o = calloc(1, sizeof(*o));
    int rc = o ? ws_tree_node_get(rq->fs, rq->ino, &n) : -ENOMEM;
    if (rc < 0) {
        free(o);
        ws_request_deny(rq, -rc);
        return;
    }
    o->kind = n.kind;
    o->view = (enum ws_view)n.index;
    o->by_root = is_root(rq->req);
    o->model = n.model ? ws_model_get(n.model) : n.version ? ws_model_get(ws_version_model(n.version)) : NULL;
    if (n.kind == WS_KIND_META_VIEW && o->view == WS_VIEW_MANIFEST && !ws_version_has_manifest(n.version)) {
        free_open(rq->fs, o);
        ws_request_park(rq, n.version, WS_FILE_MANIFEST, 0, 0, rq->fs->options.deadline_ms);
        ws_tree_node_release(&n);
        return;
    }
    if ((rq->fi.flags & O_ACCMODE) != O_WRONLY && o->view != WS_VIEW_EVENTS)
        rc = ws_control_read(rq->fs->control, o->view, o->model, n.version, &o->text, &o->len);
    ws_tree_node_release(&n);
    if (rc < 0) {
        free_open(rq->fs, o);
        ws_request_error(rq, -rc);
        return;
    }
    rq->fi.direct_io = 1;
    reply_opened(rq, o);
}

/* A view that takes long is made on a separate thread. */
static void run_open_view(struct ws_request *rq)
{
    const uint64_t view = ws_ino_index(rq->ino);
    bool is_long =
        ws_ino_kind(rq->ino) == WS_KIND_META_VIEW && (view == WS_VIEW_CHANGED || view == WS_VIEW_CUDA_IPC);
    if (!is_long || ws_job_start(rq->fs->control, open_view, rq) < 0)
        open_view(rq);
}

void ws_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    enum ws_tree_kind kind = ws_ino_kind(ino);
    bool view = kind == WS_KIND_ROOT_VIEW || kind == WS_KIND_MODEL_VIEW;
    if (kind == WS_KIND_SIDE)
        ws_side_op_open(req, ino, fi);
    else if ((fi->flags & O_ACCMODE) != O_RDONLY &&
             !(view && ws_view_is_written((enum ws_view)ws_ino_index(ino))))
        fuse_reply_err(req, EROFS);
    else
        ws_request_start(req,
                         kind == WS_KIND_CHANGES             ? run_open_changes
                         : view || kind == WS_KIND_META_VIEW ? run_open_view
                                                             : run_open_weights,
                         ino, NULL, 0, 0, fi, false);
}

void ws_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    if (ws_ino_kind(ino) == WS_KIND_SIDE) {
        ws_side_op_release(req, ino);
        return;
    }
    struct ws_open_file *o = get_open_file(req, fi);
    if (o)
        free_open(fuse_req_userdata(req), o);
    fuse_reply_err(req, 0);
}

/* --- read --- */

static void run_read_weights(struct ws_request *rq)
{
    struct ws_open_file *o = get_open_file(rq->req, &rq->fi);
    uint64_t off = (uint64_t)rq->off, n = rq->size;
    if (off >= o->size || n == 0) {
        fuse_reply_buf(rq->req, NULL, 0);
        ws_request_end(rq);
        return;
    }
    if (n > o->size - off)
        n = o->size - off;
    uint64_t begin = o->begin + off;
    ws_version_was_read(o->version, o->file, begin, n);
    /* Looked at first: what does not come of it is settled before it is complete, and that may be so by the next line. */
    const bool is_complete = ws_version_is_complete(o->version);
    if (rq->fs->lazy && ws_lazy_applies(rq->fs->lazy, o->version, o->file, begin, n)) {
        ws_lazy_read_start(rq, o->version, o->file, begin, n);
        return;
    }
    if (!is_complete) {
        size_t first = begin / WS_BLOCK_BYTES, last = (begin + n - 1) / WS_BLOCK_BYTES;
        /* Not parked twice: what was here once stays here while the file is open. */
        if (rq->tries == 0) {
            ws_request_park(rq, o->version, o->file, first, last - first + 1, rq->fs->options.deadline_ms);
            return;
        }
    }
    struct ws_region *r = ws_version_region(o->version, o->file);
    if (!r) {
        ws_request_error(rq, EIO);
        return;
    }
    fuse_reply_buf(rq->req, (const char *)ws_region_data(r) + begin, n);
    ws_request_end(rq);
}

static void read_events(fuse_req_t req, struct ws_fs *fs, struct ws_open_file *o, size_t size, off_t off)
{
    char *text = NULL;
    size_t len = 0;
    int rc = ws_control_read(fs->control, o->view, o->model, NULL, &text, &len);
    if (rc < 0) {
        fuse_reply_err(req, -rc);
        return;
    }
    size_t at = (size_t)off < len ? (size_t)off : len, n = len - at < size ? len - at : size;
    pthread_mutex_lock(&fs->lock);
    o->seen = at + n;
    pthread_mutex_unlock(&fs->lock);
    fuse_reply_buf(req, text + at, n);
    free(text);
}

/* Of a copy: the reader has its answer, and may close the file, before our write to the kernel returns. */
static void reply_text(fuse_req_t req, const struct ws_open_file *o, size_t size, off_t off)
{
    size_t at = (size_t)off < o->len ? (size_t)off : o->len, n = o->len - at < size ? o->len - at : size;
    char *copy = malloc(n + 1);
    if (!copy) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    if (n > 0)
        memcpy(copy, o->text + at, n);
    fuse_reply_buf(req, copy, n);
    free(copy);
}

/* Goes to an offset of the stream; false: there is no memory. */
static bool go_to(struct ws_open_file *o, uint64_t off, char *buf, size_t room)
{
    struct shown *s = o->shown;
    if (off < s->at) {
        ws_delta_stream_writer_free(&s->writer);
        s->at = 0;
        if (ws_delta_stream_writer_init(&s->writer, o->changes, 0, 1) < 0)
            return false;
    }
    while (s->at < off) {
        const uint64_t more = off - s->at < room ? off - s->at : room;
        const ssize_t n = ws_delta_stream_write(&s->writer, (unsigned char *)buf, more);
        if (n <= 0)
            break;
        s->at += (uint64_t)n;
    }
    return true;
}

static void read_changes(fuse_req_t req, struct ws_open_file *o, size_t size, off_t off)
{
    char *buf = malloc(size + 1);
    size_t n = 0;
    if (!buf) {
        fuse_reply_err(req, ENOMEM);
        return;
    }
    pthread_mutex_lock(&o->shown->lock);
    const bool ok = size == 0 || go_to(o, (uint64_t)off, buf, size);
    if (ok && o->shown->at == (uint64_t)off && size > 0) {
        const ssize_t got = ws_delta_stream_write(&o->shown->writer, (unsigned char *)buf, size);
        n = got > 0 ? (size_t)got : 0;
        o->shown->at += n;
    }
    pthread_mutex_unlock(&o->shown->lock);
    if (ok)
        fuse_reply_buf(req, buf, n);
    else
        fuse_reply_err(req, ENOMEM);
    free(buf);
}

void ws_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    if (ws_ino_kind(ino) == WS_KIND_SIDE) {
        ws_side_op_read(req, ino, size, off);
        return;
    }
    struct ws_open_file *o = get_open_file(req, fi);
    if (!o) {
        fuse_reply_err(req, ESTALE);
    } else if (o->version) {
        ws_request_start(req, run_read_weights, ino, NULL, size, off, fi, false);
    } else if (o->shown) {
        read_changes(req, o, size, off);
    } else if (o->view == WS_VIEW_EVENTS) {
        read_events(req, fuse_req_userdata(req), o, size, off);
    } else {
        reply_text(req, o, size, off);
    }
}

/* --- write: one write is one command --- */

struct command {
    fuse_req_t req;
    struct ws_model *model;
    size_t size;
    atomic_bool cancel;
};

static void on_cancel(fuse_req_t req, void *arg)
{
    struct command *w = arg;
    (void)req;
    atomic_store(&w->cancel, true);
}

static void command_done(void *arg, int result)
{
    struct command *w = arg;
    fuse_req_interrupt_func(w->req, NULL, NULL);
    if (result < 0)
        fuse_reply_err(w->req, -result);
    else
        fuse_reply_write(w->req, w->size);
    if (w->model)
        ws_model_put(w->model);
    free(w);
}

void ws_op_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size, off_t off,
                 struct fuse_file_info *fi)
{
    if (ws_ino_kind(ino) == WS_KIND_SIDE) {
        ws_side_op_write(req, ino, buf, size, off);
        return;
    }
    struct ws_fs *fs = fuse_req_userdata(req);
    const struct ws_open_file *o =
        get_open_file(req, fi); /* NULL: the daemon died over the command; twice it is not run */
    struct command *w = o ? calloc(1, sizeof(*w)) : NULL;
    (void)ino;
    (void)off;
    if (!w) {
        fuse_reply_err(req, o ? ENOMEM : EIO);
        return;
    }
    w->req = req;
    w->size = size;
    w->model = o->model ? ws_model_get(o->model) : NULL;
    fuse_req_interrupt_func(req, on_cancel, w);
    const struct ws_writer writer = {
        .uid = fuse_req_ctx(req)->uid, .pid = fuse_req_ctx(req)->pid, .any_file = o->by_root && is_root(req)};
    ws_control_write(fs->control, o->view, w->model, buf, size, &writer, &w->cancel, command_done, w);
}

/* --- poll --- */

void ws_op_poll(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph)
{
    if (ws_ino_kind(ino) == WS_KIND_SIDE) {
        if (ph)
            fuse_pollhandle_destroy(ph);
        fuse_reply_poll(req, POLLIN | POLLOUT);
        return;
    }
    struct ws_fs *fs = fuse_req_userdata(req);
    struct ws_open_file *o = get_open_file(req, fi);
    unsigned ready = POLLIN | POLLOUT; /* of a daemon before this one, too: the read says what became of it */
    (void)ino;
    if (o && !o->version && !o->shown && o->view == WS_VIEW_EVENTS) {
        if (ph) { /* first: an event that comes while we look finds it */
            pthread_mutex_lock(&fs->lock);
            struct fuse_pollhandle *old = o->ph;
            o->ph = ph;
            pthread_mutex_unlock(&fs->lock);
            ph = old;
        }
        uint64_t size = ws_control_events_size(fs->control, o->model);
        pthread_mutex_lock(&fs->lock);
        ready = size != o->seen ? POLLIN | POLLPRI : 0;
        pthread_mutex_unlock(&fs->lock);
    }
    if (ph)
        fuse_pollhandle_destroy(ph);
    fuse_reply_poll(req, ready);
}

void ws_fs_poll_event(void *arg, struct ws_model *model)
{
    struct ws_fs *fs = arg;
    (void)model; /* the root's events have every line */
    pthread_mutex_lock(&fs->lock);
    for (struct ws_open_file *o = LIST_FIRST(&fs->open_files); o; o = LIST_NEXT(o, entry)) {
        if (o->ph)
            ws_invalidate_poll(fs, o->ph);
        o->ph = NULL;
    }
    pthread_mutex_unlock(&fs->lock);
}
