/* wsync verify: what a reader of the mount gets, hashed against the trainer's manifest. */
#include "mount-helpers/cli/cli.h"
#include "mount-helpers/cli/mounts.h"
#include "mount-helpers/cli/progress.h"
#include "transports/base/cpu_features.h"
#include "transports/base/file.h"
#include "transports/base/workers.h"
#include "transports/format/manifest.h"
#include "transports/sign/statement.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_THREADS 64

static const struct cli_option options[] = {
    {"mount", 'd', "DIR", "the mount; default $WSYNC_MOUNT, or the only one on this machine"},
    {"key", 'k', "[MODEL=]FILE:...",
     "fail unless one of these public keys (wsync key new) signed the manifest"},
    {"threads", 't', "N", "default: all cores", 0, CLI_MAX_THREADS},
    {"quiet", 'q', NULL, "print nothing but errors"},
    {0},
};

struct check {
    const struct ws_manifest *manifest;
    char dir[PATH_MAX];
    const struct ws_manifest_file *file;
    int fd;
    unsigned char *buffers; /* a block for each worker */
    struct progress progress;
    _Atomic uint64_t done_bytes, bad;
    atomic_bool unread; /* a block could not be read, which was said */
};

static void hash_block(void *arg, size_t i, unsigned worker)
{
    struct check *c = arg;
    if (atomic_load(&c->unread))
        return;
    unsigned char *buffer = c->buffers + worker * WS_BLOCK_BYTES;
    const size_t len = ws_manifest_block_bytes(c->file, i);
    const ssize_t n = ws_file_read(c->fd, buffer, len, i * WS_BLOCK_BYTES);
    const int rc = n < 0 ? (int)n : n < (ssize_t)len ? -ENODATA : 0;
    if (rc && rc != -EBADMSG) { /* the others would say the same, each after the deadline of a read */
        if (!atomic_exchange(&c->unread, true))
            cli_fail("cannot read %s/%s at byte %zu: %s", c->dir, c->file->name, i * WS_BLOCK_BYTES,
                     strerror(-rc));
        return;
    }
    if (rc || ws_hash(buffer, len) != c->file->hashes[i]) {
        atomic_fetch_add(&c->bad, 1);
        cli_fail("%s/%s: block %zu (bytes %zu to %zu): %s", c->dir, c->file->name, i, i * WS_BLOCK_BYTES,
                 i * WS_BLOCK_BYTES + len, rc ? strerror(-rc) : "the hash differs from the manifest's");
    }
    const uint64_t done = atomic_fetch_add(&c->done_bytes, len) + len;
    if (worker == 0) /* the command's own thread */
        progress_update(&c->progress, done, c->manifest->total_bytes);
}

static int check_file(struct check *c, struct ws_workers *workers)
{
    char path[sizeof c->dir + WS_MAX_NAME + 2];
    snprintf(path, sizeof path, "%s/%s", c->dir, c->file->name);
    c->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (c->fd < 0)
        return cli_fail("cannot open %s: %s", path, strerror(errno));
    off_t size = lseek(c->fd, 0, SEEK_END);
    if (size < 0 || (uint64_t)size != c->file->size_bytes) {
        close(c->fd);
        return cli_fail("%s has %lld bytes, its manifest says %" PRIu64, path, (long long)size,
                        c->file->size_bytes);
    }
    ws_workers_run_indexed(workers, hash_block, c, c->file->n_blocks);
    close(c->fd);
    return c->unread ? CLI_FAILED : CLI_OK;
}

static int check_files(struct check *c, const struct cli_args *args)
{
    const uint64_t n = cli_u64(args, "threads", ws_cpu_cores(MAX_THREADS));
    struct ws_workers *workers = ws_workers_new(n > MAX_THREADS ? MAX_THREADS : (unsigned)n, 0);
    int code = CLI_OK;
    if (workers)
        c->buffers = aligned_alloc(WS_PAGE_BYTES, ws_workers_count(workers) * WS_BLOCK_BYTES);
    if (!c->buffers)
        code = cli_fail("no memory to verify %s", c->dir);
    for (size_t i = 0; i < c->manifest->n_files && code == CLI_OK; i++) {
        c->file = &c->manifest->files[i];
        code = check_file(c, workers);
    }
    free(c->buffers);
    ws_workers_free(workers);
    return code;
}

/* "signed by run (0123...)", where a key was given and did sign it; without one, which key it says. */
static int check_signature(const struct ws_manifest *m, const struct cli_args *args, char *who, size_t cap)
{
    const struct ws_public_key *by;
    struct ws_trust trust = {0};
    struct ws_error err = {0};
    const char *keys;
    int rc = 0;

    for (size_t i = 0; rc == 0 && (keys = cli_nth(args, "key", i)); i++)
        rc = ws_trust_add(&trust, keys, &err);
    if (rc == 0 && trust.n)
        rc = ws_manifest_check(m, &trust, &by, &err);
    if (rc == 0 && trust.n)
        snprintf(who, cap, "signed by %s (%s)", by->name, by->id);
    else if (rc == 0 && m->signature)
        snprintf(who, cap, "says to be signed by %.*s, not checked without --key", WS_KEY_ID_CHARS,
                 m->signature);
    else if (rc == 0)
        snprintf(who, cap, "not signed");
    ws_trust_reset(&trust);
    return rc < 0 ? cli_fail("%s", err.text) : CLI_OK;
}

static int check_version(struct check *c, const struct cli_args *args)
{
    const double start = cli_now();
    char who[WS_KEY_NAME_CHARS + 80];
    const int refused = check_signature(c->manifest, args, who, sizeof who);
    if (refused != CLI_OK)
        return refused;
    progress_start(&c->progress, cli_has(args, "quiet") ? NULL : "verifying");
    const int code = check_files(c, args);
    progress_end(&c->progress);
    if (code == CLI_OK && c->bad)
        return cli_fail("%" PRIu64 " blocks of %s are wrong", c->bad, c->dir);
    double seconds = cli_now() - start;
    if (code == CLI_OK && !cli_has(args, "quiet"))
        printf("%s: %zu files, %s, all blocks as published, digest %s, %s, %s\n", c->dir,
               c->manifest->n_files, cli_size(c->manifest->total_bytes), c->manifest->digest, who,
               cli_rate(c->done_bytes, seconds));
    return code;
}

static int run(const struct cli_args *args)
{
    struct check check = {0};
    char named[PATH_MAX];
    struct ws_error err = {0};
    struct ws_manifest *manifest;

    if (cli_words(args) == 2)
        snprintf(named, sizeof named, "%s/%s/%s", mounts_pick(args), cli_word(args, 0), cli_word(args, 1));
    else
        snprintf(named, sizeof named, "%s", cli_word(args, 0));
    mounts_follow(named, check.dir);
    char *json = mounts_read("%s/.wsync/manifest.json", check.dir);
    if (!json)
        return cli_fail("cannot read %s/.wsync/manifest.json: %s%s", check.dir, strerror(errno),
                        mounts_hint(errno)[0] ? mounts_hint(errno) : "; is this a mounted version?");
    int rc = ws_manifest_from_json(json, strlen(json), &manifest, &err);
    free(json);
    if (rc)
        return cli_fail("the manifest of %s is damaged: %s", check.dir, err.text);
    check.manifest = manifest;
    int code = check_version(&check, args);
    ws_manifest_free(manifest);
    return code;
}

const struct cli_command cmd_verify = {
    .name = "verify",
    .summary = "rehash a mounted version against its manifest",
    .synopsis = "[OPTIONS] MODEL VERSION\n[OPTIONS] PATH",
    .description =
        "Reads every byte through the mount, the way an engine does, and compares each 4 MiB block "
        "with the hash that the trainer's agent computed. Names the first bytes that differ. Says who signed "
        "the "
        "manifest: with --key that is checked, and these hashes are the signer's; they detect damage, and it "
        "is the "
        "mount's verify-key= that compares the bytes themselves with what was signed.",
    .examples = "wsync verify actor 42\nwsync verify /wsync/actor/current/",
    .options = options,
    .min_words = 1,
    .max_words = 2,
    .run = run,
};
