/* wsync save: versions of a mount written into an archive. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/lost_file.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/progress.h"
#include "transports/base/cpu_features.h"
#include "transports/base/file.h"
#include "transports/delta/encode.h"
#include "transports/dir/archive.h"
#include "transports/simd/copy.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct cli_option options[] = {
    {"whole", 'w', NULL, "write every version whole, none as a delta on the one before"},
    {"threads", 't', "N", "threads for deltas; default: all cores", 0, CLI_MAX_THREADS},
    {"insecure", 0, NULL, "an object store may be spoken to by http:// beyond loopback, too, in clear text"},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

/* A mounted version. */
struct side {
    char path[PATH_MAX];
    char *json;
    struct ws_manifest *manifest;
    const unsigned char **files; /* mapped; NULL for size 0 */
    size_t open_file;            /* that fd is */
    int fd;
};

struct save {
    const struct cli_args *args;
    struct ws_archive *archive;
    struct ws_workers *workers;
    struct progress progress;
    struct side *side; /* that is being read */
    uint64_t done, total;
};

/* --- a side --- */

static int open_file(struct side *s, size_t file, struct ws_error *err)
{
    char path[8192];
    if (s->fd >= 0 && s->open_file == file)
        return 0;
    if (s->fd >= 0)
        close(s->fd);
    snprintf(path, sizeof path, "%s/%s", s->path, s->manifest->files[file].name);
    s->fd = open(path, O_RDONLY | O_CLOEXEC); /* the first one pulls the version */
    s->open_file = file;
    return s->fd < 0 ? ws_error_set(err, errno, "cannot open %s: %s", path, strerror(errno)) : 0;
}

static int read_block(struct side *s, size_t file, size_t block, unsigned char *dst, struct ws_error *err)
{
    const struct ws_manifest_file *f = &s->manifest->files[file];
    int rc = open_file(s, file, err);
    const size_t n = ws_manifest_block_bytes(f, block);
    const ssize_t got = rc == 0 ? ws_file_read(s->fd, dst, n, block * WS_BLOCK_BYTES) : 0;
    if (rc == 0 && got < (ssize_t)n)
        rc = ws_error_set(err, got < 0 ? (int)-got : EIO, "cannot read %s/%s: %s", s->path, f->name,
                          got < 0 ? strerror((int)-got) : "it ends too early");
    return rc;
}

static int map_files(struct side *s)
{
    struct ws_error err;
    s->files = calloc(s->manifest->n_files + 1, sizeof(*s->files));
    if (!s->files)
        return cli_fail("no memory for the files of %s", s->path);
    for (size_t i = 0; i < s->manifest->n_files; i++) {
        const struct ws_manifest_file *f = &s->manifest->files[i];
        if (f->size_bytes == 0)
            continue;
        if (open_file(s, i, &err))
            return cli_fail("%s", err.text);
        void *p = mmap(NULL, f->size_bytes, PROT_READ, MAP_SHARED, s->fd, 0);
        if (p == MAP_FAILED)
            return cli_fail("cannot map %s/%s: %s", s->path, f->name, strerror(errno));
        s->files[i] = p;
    }
    return CLI_OK;
}

static int open_side(struct side *s, const char *path)
{
    struct ws_error err = {0};
    *s = (struct side){.fd = -1};
    mounts_follow(path, s->path);
    s->json = mounts_read("%s/.wsync/manifest.json", s->path);
    if (!s->json)
        return cli_fail("cannot read %s/.wsync/manifest.json: %s%s", s->path, strerror(errno),
                        mounts_hint(errno)[0] ? mounts_hint(errno) : "; is this a mounted version?");
    if (ws_manifest_from_json(s->json, strlen(s->json), &s->manifest, &err))
        return cli_fail("the manifest of %s is damaged: %s", s->path, err.text);
    return CLI_OK;
}

static void close_side(struct side *s)
{
    for (size_t i = 0; s->files && i < s->manifest->n_files; i++)
        if (s->files[i])
            munmap((void *)(uintptr_t)s->files[i], s->manifest->files[i].size_bytes);
    free(s->files);
    if (s->fd >= 0)
        close(s->fd);
    ws_manifest_free(s->manifest);
    free(s->json);
    *s = (struct side){.fd = -1};
}

/* --- writing --- */

static int on_block(void *arg, size_t file, size_t block, unsigned char *dst, struct ws_error *err)
{
    return read_block(((struct save *)arg)->side, file, block, dst, err);
}

static void on_written(void *arg, uint64_t bytes)
{
    struct save *s = arg;
    s->done += bytes;
    progress_update(&s->progress, s->done, s->total);
}

static int write_whole(struct save *s, struct side *v)
{
    const struct ws_archive_version version = {v->manifest, v->json, strlen(v->json)};
    const struct ws_archive_hooks work = {.block = on_block, .written = on_written, .arg = s};
    struct ws_error err = {0};
    s->side = v;
    s->done = 0;
    s->total = v->manifest->total_bytes;
    if (ws_archive_add(s->archive, &version, &work, &err))
        return cli_fail("%s", err.text);
    if (!cli_has(s->args, "quiet"))
        printf("%s/%" PRIu64 ": whole, %s\n", v->manifest->model, v->manifest->version, cli_size(s->total));
    return CLI_OK;
}

/* What a delta is made of has been compared with the manifest, as what is written whole is. */
static int verify(struct save *s, struct side *v)
{
    const struct ws_manifest *m = v->manifest;
    unsigned char *buffer = malloc(WS_BLOCK_BYTES);
    int code = buffer ? CLI_OK : cli_fail("no memory for a block");
    s->done = 0;
    s->total = m->total_bytes;
    for (size_t i = 0; code == CLI_OK && i < m->n_files; i++)
        for (size_t b = 0; code == CLI_OK && b < m->files[i].n_blocks; b++) {
            const size_t n = ws_manifest_block_bytes(&m->files[i], b);
            struct ws_error err;
            if (read_block(v, i, b, buffer, &err))
                code = cli_fail("%s", err.text);
            else if (ws_hash(buffer, n) != m->files[i].hashes[b])
                code = cli_fail("block %zu of %s/%s has bytes that are not its manifest's", b, v->path,
                                m->files[i].name);
            else
                on_written(s, n);
        }
    free(buffer);
    return code;
}

/* NULL: it is not worth it, or there is no memory. */
static struct ws_delta *make_delta(struct save *s, const struct side *base, const struct side *v)
{
    const struct ws_manifest *from = base->manifest, *to = v->manifest;
    const struct ws_delta_side a = {from, base->files}, b = {to, v->files};
    struct ws_delta_link link = {.base = ws_version_id_make(from->version, from->lineage),
                                 .target = ws_version_id_make(to->version, to->lineage)};
    struct ws_delta *d;
    memcpy(link.base_digest, from->digest, sizeof link.base_digest);
    memcpy(link.target_digest, to->digest, sizeof link.target_digest);
    if (strcmp(from->model, to->model) != 0 || ws_delta_new(&d, &link, to, NULL) < 0)
        return NULL;
    ws_delta_encode(d, &a, &b, 1, to->total_bytes / 2, s->workers, NULL);
    if (ws_delta_state(d) == WS_DELTA_WHOLE)
        return d;
    ws_delta_put(d);
    return NULL;
}

/* *written false: it is to be written whole. */
static int write_delta(struct save *s, struct side *base, struct side *v, bool *written)
{
    const struct ws_archive_version version = {v->manifest, v->json, strlen(v->json)};
    struct ws_delta_stats f;
    struct ws_error err = {0};
    int code = verify(s, v);
    if (code == CLI_OK && !base->files)
        code = map_files(base);
    if (code == CLI_OK)
        code = map_files(v);
    if (code != CLI_OK)
        return code;
    struct ws_delta *d = make_delta(s, base, v);
    if (!d)
        return CLI_OK;
    int rc = ws_archive_add_delta(s->archive, &version, d, NULL, &err);
    ws_delta_stats(d, &f);
    ws_delta_put(d);
    *written = rc == 0;
    if (rc < 0 && rc != -EINVAL && rc != -E2BIG)
        return cli_fail("%s", err.text);
    if (rc == 0 && !cli_has(s->args, "quiet"))
        printf("%s/%" PRIu64 ": delta on %" PRIu64 ", %s instead of %s\n", v->manifest->model,
               v->manifest->version, base->manifest->version, cli_size(f.bytes),
               cli_size(v->manifest->total_bytes));
    return CLI_OK;
}

static int save_one(struct save *s, struct side *before, struct side *v)
{
    char what[WS_MAX_NAME + 40];
    bool written = false;
    unsigned depth;
    int code = CLI_OK;
    assert(v->manifest);
    if (ws_archive_has(s->archive, v->manifest, &depth)) {
        if (!cli_has(s->args, "quiet"))
            printf("%s/%" PRIu64 ": is in the archive already\n", v->manifest->model, v->manifest->version);
        return CLI_OK;
    }
    snprintf(what, sizeof what, "saving %s/%" PRIu64, v->manifest->model, v->manifest->version);
    progress_start(&s->progress, cli_has(s->args, "quiet") ? NULL : what);
    if (before->manifest && !cli_has(s->args, "whole"))
        code = write_delta(s, before, v, &written);
    if (code == CLI_OK && !written)
        code = write_whole(s, v);
    progress_end(&s->progress);
    return code;
}

static int run(const struct cli_args *args)
{
    size_t n = cli_words(args) - 1;
    struct side before = {.fd = -1}, side = {.fd = -1};
    struct save s = {.args = args};
    const struct ws_archive_store_options options_of_store = {.insecure = cli_has(args, "insecure")};
    struct ws_error err = {0};
    int code = CLI_OK;
    cli_lost_file_says("the mount failed while a version was read; what was saved before is whole");
    s.workers = ws_workers_new((unsigned)cli_u64(args, "threads", ws_cpu_cores(0)), 0);
    if (!s.workers)
        return cli_fail("no memory for threads");
    for (size_t i = 0; i < n && code == CLI_OK; i++) {
        code = open_side(&side, cli_word(args, i));
        if (code == CLI_OK && !s.archive &&
            ws_archive_open(&s.archive, cli_word(args, n), &options_of_store, &err))
            code = cli_fail("%s", err.text);
        if (code == CLI_OK)
            code = save_one(&s, &before, &side);
        close_side(&before);
        before = side;
        side = (struct side){.fd = -1};
    }
    close_side(&before);
    ws_archive_close(s.archive);
    ws_workers_free(s.workers);
    return code;
}

const struct cli_command cmd_save = {
    .name = "save",
    .summary = "write mounted versions into an archive of plain files",
    .synopsis = "[OPTIONS] VERSION... DIR|s3://BUCKET/PREFIX",
    .description =
        "VERSION is the folder of a mounted version, as /wsync/actor/13; saving pulls it. The first is "
        "written "
        "whole, each that follows as a delta on the one before it, unless that would not be much smaller or "
        "it is "
        "of another lineage. Every block is compared with the trainer's hash before it is written. A version "
        "that is in the archive already is left as it is, and the next one may be a delta on it.\n\n"
        "The archive can be mounted as dir:DIR, and as http://HOST when any web server that honours ranges "
        "serves "
        "DIR. It has the layout of the agent's HTTP API (the manifest, then files or a delta), and the "
        "trainer's "
        "digests, so what a disk damages is refused. A version appears in it when all of it is on the disk. "
        "The "
        "agent writes one as it goes with --archive. s3://BUCKET/PREFIX is the same in an object store, and "
        "is "
        "mounted under that name; wsync-archive(7) says where its keys come from.",
    .examples = "wsync save /wsync/actor/13 /data/archive\n"
                "wsync save /wsync/actor/13 /wsync/actor/14 /wsync/actor/15 /data/archive\n"
                "wsync mount dir:/data/archive /wsync\n"
                "wsync save /wsync/actor/13 s3://weights/run7",
    .options = options,
    .min_words = 2,
    .max_words = 4096,
    .run = run,
};
