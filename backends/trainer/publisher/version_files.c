/* Descriptors of a published version's files, for processes on the agent's host (wsync_open_version). */
#include "backends/trainer/api/agent_address.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"
#include "transports/base/limits.h"
#include "transports/base/name.h"
#include "transports/memory/available.h"
#include "transports/transport.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct wsync_version_files {
    struct ws_manifest *manifest;
    int *fds; /* -1: not open */
};

static int check_block(void *arg, size_t block, uint64_t hash)
{
    const struct ws_manifest_file *f = arg;
    return hash != f->hashes[block];
}

/* Where the trainer needs the slot. */
static int copy_all(struct ws_source *source, const struct ws_manifest *m, struct ws_region **regions,
                    struct ws_error *err)
{
    struct ws_lane *lane = NULL;
    int rc = ws_memory_check(m->total_bytes, "a copy of a version", err);
    if (rc == 0)
        rc = ws_lane_open(source, &lane, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; rc == 0 && i < m->n_files; i++) {
        struct ws_manifest_file *f = &m->files[i];
        if (f->size_bytes == 0 || (rc = ws_region_new(&regions[i], f->size_bytes, err)) < 0)
            continue;
        struct ws_fetch fetch = {.manifest = m,
                                 .file = i,
                                 .n = f->n_blocks,
                                 .dst = ws_region_data(regions[i]),
                                 .block = check_block,
                                 .arg = f};
        rc = ws_lane_fetch(lane, &fetch, err);
        if (rc == -ECANCELED)
            rc = ws_error_set(err, EBADMSG, "%s/%" PRIu64 "/%s came with bytes that are not the manifest's",
                              m->model, m->version, f->name);
    }
    ws_lane_close(lane);
    return rc;
}

static int open_all(wsync_version_files *v, struct ws_source *source, struct ws_error *err)
{
    const struct ws_manifest *m = v->manifest;
    struct ws_region **regions = calloc(m->n_files + 1, sizeof(*regions));
    v->fds = calloc(m->n_files + 1, sizeof(*v->fds));
    if (!regions || !v->fds) {
        free(regions);
        return ws_error_set(err, ENOMEM, "no memory for %zu files", m->n_files);
    }
    for (size_t i = 0; i < m->n_files; i++)
        v->fds[i] = -1;
    int rc = ws_source_map(source, m, regions, err);
    if (rc == -EOPNOTSUPP)
        rc = copy_all(source, m, regions, err);
    for (size_t i = 0; rc == 0 && i < m->n_files; i++)
        if (regions[i])
            rc = ws_region_open(regions[i], WS_REGION_READ, &v->fds[i], err);
    for (size_t i = 0; i < m->n_files; i++)
        ws_region_free(regions[i]);
    free(regions);
    return rc;
}

int wsync_open_version(const char *agent, const char *model, uint64_t version, wsync_version_files **out)
{
    struct ws_error *err = ws_last_error();
    struct ws_source_options options = {0};
    struct ws_source *source = NULL;
    wsync_version_files *v = calloc(1, sizeof(*v));
    *out = NULL;
    int rc = v ? 0 : ws_error_set(err, ENOMEM, "no memory for a version");
    if (rc == 0 && (!model || !ws_name_is_model(model)))
        rc = ws_error_set(err, EINVAL, "'%.100s' cannot be a model: %s", model ? model : "",
                          WS_MODEL_NAME_RULE);
    agent = ws_agent_address(agent);
    if (rc == 0 && strncmp(agent, "unix:", 5) != 0)
        rc = ws_error_set(err, EOPNOTSUPP,
                          "%.200s is no agent of this host: its memory is reached by unix:/PATH", agent);
    if (rc == 0)
        rc = ws_source_open(agent, &options, &source, err);
    if (rc == 0)
        rc = ws_source_manifest(source, model, version, NULL, NULL, &v->manifest, err);
    if (rc == 0)
        rc = open_all(v, source, err);
    if (source)
        ws_source_close(source); /* and its lease: from here on the open descriptors count as readers */
    if (rc < 0) {
        wsync_close_version(v);
        return rc;
    }
    *out = v;
    return 0;
}

const char *wsync_version_file(const wsync_version_files *v, size_t i, int *fd, uint64_t *bytes)
{
    if (i >= v->manifest->n_files)
        return NULL;
    *fd = v->fds[i];
    *bytes = v->manifest->files[i].size_bytes;
    return v->manifest->files[i].name;
}

const char *wsync_version_run(const wsync_version_files *v)
{
    return v->manifest->lineage;
}

void wsync_close_version(wsync_version_files *v)
{
    if (!v)
        return;
    for (size_t i = 0; v->fds && i < v->manifest->n_files; i++)
        if (v->fds[i] >= 0)
            close(v->fds[i]);
    free(v->fds);
    ws_manifest_free(v->manifest);
    free(v);
}
