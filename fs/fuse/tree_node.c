#include "fs/fuse/tree_node.h"
#include "fs/fuse/life.h"
#include "fs/fuse/version_cache.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define INDEX_MASK 0x7FFFFFFFUL

fuse_ino_t ws_ino(uint64_t id, enum ws_tree_kind kind, uint64_t index)
{
    return id << 36 | (uint64_t)kind << 31 | index;
}

enum ws_tree_kind ws_ino_kind(fuse_ino_t ino)
{
    return (enum ws_tree_kind)(ino >> 31 & 31);
}

uint64_t ws_ino_id(fuse_ino_t ino)
{
    return ino >> 36;
}

uint64_t ws_ino_index(fuse_ino_t ino)
{
    enum ws_tree_kind kind = ws_ino_kind(ino);
    bool view = kind == WS_KIND_ROOT_VIEW || kind == WS_KIND_MODEL_VIEW; /* see view_ino */
    return ino & (view ? 0xFF : INDEX_MASK);
}

fuse_ino_t ws_side_ino(uint64_t number)
{
    return ws_ino(number >> 31, WS_KIND_SIDE, number & INDEX_MASK);
}

uint64_t ws_side_number(fuse_ino_t ino)
{
    return ws_ino_id(ino) << 31 | ws_ino_index(ino);
}

mode_t ws_tree_kind_type(enum ws_tree_kind kind)
{
    switch (kind) {
    case WS_KIND_ROOT:
    case WS_KIND_MODEL:
    case WS_KIND_VERSION:
    case WS_KIND_TENSORS:
    case WS_KIND_META:
    case WS_KIND_REGIONS:
        return S_IFDIR;
    case WS_KIND_MODEL_LINK:
    case WS_KIND_VERSION_LINK:
    case WS_KIND_LINK:
        return S_IFLNK;
    default:
        return S_IFREG;
    }
}

/* --- inode to object --- */

struct search {
    uint64_t id;
    struct ws_model *found;
};

static void match_id(void *arg, struct ws_model *m)
{
    struct search *s = arg;
    if (ws_model_id(m) == s->id)
        s->found = ws_model_get(m);
}

static struct ws_model *model_of(struct ws_fs *fs, uint64_t id)
{
    struct search s = {.id = id};
    ws_store_each(fs->store, match_id, &s);
    return s.found;
}

/* What a former daemon showed: a folder that somebody is in, lists, or has mounted elsewhere, or a file that is open. */
static struct ws_version *former_version(struct ws_fs *fs, uint64_t id)
{
    struct ws_version_id version;
    uint64_t model_id;
    if (!ws_life_find_version(fs->life, id, &model_id, &version))
        return NULL;
    struct ws_model *m = model_of(fs, model_id);
    struct ws_version *v = m ? ws_version_at(m, version.version, version.lineage) : NULL;
    if (m)
        ws_model_put(m);
    return v;
}

/* Of a mount that outlives its daemons the kernel looks the name up once more: what it knows may be a former one's. */
static int gone(const struct ws_fs *fs)
{
    return fs->life ? -ESTALE : -ENOENT;
}

int ws_tree_node_get(struct ws_fs *fs, fuse_ino_t ino, struct ws_tree_node *out)
{
    *out = (struct ws_tree_node){.ino = ino, .kind = ws_ino_kind(ino), .index = ws_ino_index(ino)};
    switch (out->kind) {
    case WS_KIND_ROOT:
    case WS_KIND_ROOT_VIEW:
    case WS_KIND_REGIONS:
    case WS_KIND_SIDE: /* its attributes say whether it is there */
        return 0;
    case WS_KIND_MODEL:
    case WS_KIND_MODEL_VIEW:
    case WS_KIND_MODEL_LINK: {
        out->model = model_of(fs, ws_ino_id(ino));
        return out->model ? 0 : gone(fs);
    }
    default:
        out->version = ws_version_by_serial(fs->store, ws_ino_id(ino));
        if (!out->version)
            out->version = former_version(fs, ws_ino_id(ino));
        return out->version ? 0 : gone(fs);
    }
}

bool ws_tree_node_is_former(const struct ws_tree_node *n)
{
    return n->version && ws_version_serial(n->version) != ws_ino_id(n->ino);
}

void ws_tree_node_release(struct ws_tree_node *n)
{
    if (n->model)
        ws_model_put(n->model);
    if (n->version)
        ws_version_put(n->version);
    n->model = NULL;
    n->version = NULL;
}

struct ws_version *ws_tree_link_version(struct ws_model *m, uint64_t index)
{
    index &= ~WS_NAMED;
    return ws_version_if_shown(index == WS_LINK_LATEST    ? ws_model_latest(m)
                               : index == WS_LINK_CURRENT ? ws_model_current(m)
                                                          : ws_model_previous(m));
}

int ws_tree_node_target(struct ws_fs *fs, const struct ws_tree_node *n, char *out, size_t cap)
{
    if (n->kind == WS_KIND_LINK) {
        char name[64];
        int rc = ws_version_cache_link(fs, n->version, n->index & ~WS_NAMED, name);
        if (rc < 0)
            return rc;
        snprintf(out, cap, "%s" WS_REGIONS_NAME "/%s", n->index & WS_NAMED ? "../" : "../../", name);
        return 0;
    }
    char name[WS_MAX_NAME + 1];
    struct ws_version *v = n->kind == WS_KIND_VERSION_LINK ? ws_version_get(n->version)
                                                           : ws_tree_link_version(n->model, n->index);
    if (!v)
        return -ENOENT;
    if (!(n->index & WS_NAMED))
        ws_version_name(v, name);
    else if (!ws_names_of(&fs->names, v, name))
        name[0] = '\0';
    ws_version_put(v);
    snprintf(out, cap, "%s", name);
    return name[0] ? 0 : -ENOENT;
}

/* --- attributes --- */

static void control_attr(struct ws_fs *fs, struct stat *st, bool writable)
{
    const struct ws_mount_options *o = &fs->options;
    bool group = o->ctl_gid != (gid_t)-1;
    st->st_mode = S_IFREG | (writable ? (group ? 0660 : 0600) : 0444);
    if (writable && group)
        st->st_gid = o->ctl_gid;
}

bool ws_view_is_written(enum ws_view view)
{
    return view == WS_VIEW_CTL || view == WS_VIEW_VERSION || view == WS_VIEW_POLICY;
}

static int file_attr(struct ws_fs *fs, const struct ws_tree_node *n, struct stat *st)
{
    const struct ws_manifest *m = ws_version_files(n->version);
    if (!m || n->index >= m->n_files)
        return -ENOENT;
    st->st_mode = S_IFREG | fs->options.mode;
    st->st_size = (off_t)m->files[n->index].size_bytes;
    st->st_mtim = (struct timespec){(time_t)(m->created_ns / 1000000000), (long)(m->created_ns % 1000000000)};
    return 0;
}

static int tensor_attr(struct ws_fs *fs, const struct ws_tree_node *n, struct stat *st)
{
    struct ws_version_cache *cache;
    size_t file;
    int rc = ws_version_cache_tensors(fs, n->version, &cache);
    if (rc < 0)
        return rc == -EAGAIN ? -ENOENT : rc;
    if (n->index >= cache->n_tensors)
        return -ENOENT;
    const struct ws_tensor *t = ws_version_cache_tensor(n->version, cache, n->index, &file);
    st->st_mode = S_IFREG | fs->options.mode;
    st->st_size = (off_t)(t->end - t->begin);
    return 0;
}

/* Frameworks that sort folders by their times find the versions in their order. */
static void set_published(struct ws_version *v, struct stat *st)
{
    struct ws_version_info info;

    ws_version_info(v, &info);
    if (info.created_ns)
        st->st_mtim =
            (struct timespec){(time_t)(info.created_ns / 1000000000), (long)(info.created_ns % 1000000000)};
}

int ws_tree_node_attr(struct ws_fs *fs, const struct ws_tree_node *n, struct stat *st, double *timeout)
{
    const struct ws_mount_options *o = &fs->options;
    char target[WS_MAX_NAME + 128];
    int rc = 0;
    *st = (struct stat){.st_ino = n->ino,
                        .st_nlink = 1,
                        .st_uid = o->uid,
                        .st_gid = o->gid,
                        .st_mtim = fs->start,
                        .st_blksize = ws_store_learns(fs->store) ? WS_LEARNED_AHEAD_KB << 10 : 1 << 20};
    *timeout = 0;
    switch (ws_tree_kind_type(n->kind)) {
    case S_IFDIR:
        st->st_nlink = 2;
        st->st_mode = S_IFDIR | o->mode | ((o->mode & 0444) >> 2);
        *timeout = n->version ? WS_FOREVER : 0;
        if (n->version && (n->index & WS_NAMED))
            set_published(n->version, st);
        break;
    case S_IFLNK:
        st->st_mode = S_IFLNK | 0777;
        rc = ws_tree_node_target(fs, n, target, sizeof(target));
        st->st_size = rc == 0 ? (off_t)strlen(target) : 0;
        break;
    default:
        *timeout = WS_FOREVER;
        if (n->kind == WS_KIND_FILE || n->kind == WS_KIND_FILL) {
            rc = file_attr(fs, n, st);
        } else if (n->kind == WS_KIND_TENSOR) {
            rc = tensor_attr(fs, n, st);
        } else if (n->kind == WS_KIND_SIDE) {
            st->st_mode = S_IFREG | o->mode;
            rc = ws_side_attr(&fs->side, ws_side_number(n->ino), st);
            *timeout = 0;
        } else {
            const bool is_view = n->kind == WS_KIND_ROOT_VIEW || n->kind == WS_KIND_MODEL_VIEW;
            control_attr(fs, st, is_view && ws_view_is_written((enum ws_view)n->index));
            if (n->kind == WS_KIND_CHANGES) /* weights, as the files are */
                st->st_mode = S_IFREG | o->mode;
            if (is_view && n->index == WS_VIEW_EVENTS)
                st->st_size = (off_t)ws_control_events_size(fs->control, n->model);
            clock_gettime(CLOCK_REALTIME, &st->st_mtim);
            *timeout = 0;
        }
    }
    st->st_blocks = (st->st_size + 511) / 512;
    st->st_ctim = st->st_atim = st->st_mtim;
    return rc;
}
