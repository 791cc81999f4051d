/* Publisher: one rank's side of a publish, as wsync.h has it. Its life, and how one version is made of the
 * steps that its other files are: registration, begin, the copies, what is shared on GPUs, commit. */
#include "backends/trainer/api/agent_address.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/api/struct_abi.h"
#include "backends/trainer/publisher/publisher_state.h"
#include "backends/trainer/publisher/version_step.h"
#include "transports/base/cpu_features.h"
#include "transports/base/name.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS 60000
#define MAX_THREADS        8
#define WAIT_STEP_MS       100
#define WAIT_PAUSE_NS      2000000L

const char *wsync_version(void)
{
    return WS_VERSION;
}

const char *wsync_run(const wsync_publisher *pub)
{
    return pub->lineage;
}

/* --- opening --- */

static int check_config(const wsync_config *c, struct ws_error *err)
{
    if (!c->model || !ws_name_is_model(c->model))
        return ws_error_set(err, EINVAL, "wsync_config.model cannot be '%.100s': %s",
                            c->model ? c->model : "", WS_MODEL_NAME_RULE);
    if (c->rank >= (c->world_size ? c->world_size : 1))
        return ws_error_set(err, EINVAL, "rank %u of world_size %u makes no sense", c->rank, c->world_size);
    if (c->audit < WSYNC_NO_AUDIT)
        return ws_error_set(err, EINVAL, "wsync_config.audit cannot be %d: it is every how many versions",
                            c->audit);
    enum ws_prefer prefer;
    if (ws_prefer_parse(c->prefer, &prefer) < 0)
        return ws_error_set(err, EINVAL,
                            "wsync_config.prefer cannot be '%.40s': it is auto, stall or latency", c->prefer);
    if (c->n_files > 0 && !c->files)
        return ws_error_set(err, EINVAL, "wsync_config.n_files is %zu, and there are no files", c->n_files);
    return 0;
}

static void end(struct wsync_publisher *p);

int wsync_publisher_open(const wsync_config *config, wsync_publisher **out)
{
    struct ws_error *err = ws_last_error();
    wsync_config copy, *c = &copy;
    *out = NULL;
    int rc = ws_struct_abi_copy(c, sizeof(*c), config, "wsync_config", err);
    if (rc == 0)
        rc = check_config(c, err);
    if (rc < 0)
        return rc;
    struct wsync_publisher *p = calloc(1, sizeof(*p));
    unsigned n = c->n_threads ? c->n_threads : ws_cpu_cores(MAX_THREADS);
    if (!p)
        return ws_error_set(err, ENOMEM, "no memory for a publisher");
    p->sock = p->device = -1;
    p->pid = getpid();
    p->agent = strdup(ws_agent_address(c->agent));
    p->model = strdup(c->model);
    p->lineage_requested = c->run ? strdup(c->run) : NULL;
    p->new_run = c->new_run;
    p->rank = c->rank;
    p->world_size = c->world_size ? c->world_size : 1;
    p->max_slots = c->max_slots;
    p->shard_bytes = c->shard_bytes;
    p->timeout_ms = c->timeout_ms ? c->timeout_ms : DEFAULT_TIMEOUT_MS;
    p->progress = c->progress;
    p->progress_arg = c->progress_arg;
    p->interrupted = c->interrupted;
    p->interrupted_arg = c->interrupted_arg;
    p->gpu_delta = c->gpu_delta;
    (void)ws_prefer_parse(c->prefer, &p->prefer);
    p->audit_every = c->audit;
    p->audit_warns = c->audit_warns;
    p->expected = c->expected;
    p->n_expected = c->n_expected;
    p->workers = ws_workers_new(n, 0);
    if (!p->agent || !p->model || !p->workers || (c->run && !p->lineage_requested))
        rc = ws_error_set(err, ENOMEM, "no memory for a publisher");
    if (rc == 0)
        rc = ws_ipc_connect(p->agent, &p->sock, err);
    if (rc == 0 && p->rank == 0)
        rc = ws_base_checkpoint_open(&p->base, c->base, c->sidecars, c->files, c->n_files, err);
    if (rc == 0 && p->base &&
        !(p->base_was_held = calloc(ws_base_checkpoint_n_tensors(p->base) + 1, sizeof(bool))))
        rc = ws_error_set(err, ENOMEM, "no memory for a publisher");
    if (rc == 0)
        rc = ws_publisher_share_open(p, c->share, c->on_demand, err);
    if (rc < 0) {
        end(p);
        return rc;
    }
    *out = p;
    return 0;
}

int wsync_open(const wsync_config *config, wsync_publisher **out)
{
    return wsync_publisher_open(config, out);
}

int wsync_register(wsync_publisher *p, const wsync_param *params, size_t n)
{
    ws_publisher_lock(p);
    if (!p->begun)
        (void)ws_publisher_is_connected(p);
    int rc = ws_publisher_register(p, params, n, ws_last_error());
    ws_publisher_unlock(p);
    return rc;
}

/* --- versions --- */

int wsync_begin(wsync_publisher *p, uint64_t version)
{
    struct ws_error *err = ws_last_error();
    if (ws_publisher_is_on_demand(p))
        return ws_error_set(err, EOPNOTSUPP,
                            "with wsync_config.on_demand versions are offloaded: wsync_offload");
    p->puts_all = false;
    return ws_version_step_begin(p, version, false, err);
}

int wsync_put(wsync_publisher *p, const wsync_param *param)
{
    struct ws_error *err = ws_last_error();
    if (!p->begun)
        return ws_error_set(err, EINVAL, "begin a version before put");
    struct ws_registered_piece *r = ws_publisher_find(p, param, err);
    if (!r)
        return -err->code;
    if (p->put[r - p->params])
        return ws_error_set(err, EEXIST, "%s was put already into version %" PRIu64, param->name, p->version);
    int rc = ws_publisher_put(p, param, r, err);
    return rc == 0 ? ws_publisher_share_record(p, param, r, err) : rc;
}

int wsync_commit(wsync_publisher *p)
{
    struct ws_error *err = ws_last_error();
    int rc = p->begun ? ws_publisher_put_fresh(p, err) : 0;
    if (rc == 0 && p->begun)
        rc = ws_publisher_share(p, NULL, err);
    if (rc == 0)
        rc = ws_version_step_commit(p, err);
    if (rc == 0)
        ws_publisher_record_held(p);
    return rc;
}

int wsync_abandon(wsync_publisher *p)
{
    return ws_version_step_abandon(p, ws_last_error());
}

/* On demand: a version without a slot, which is only shared. */
static int offer(struct wsync_publisher *p, const wsync_param *params, uint64_t version, struct ws_error *err)
{
    if (version > INT64_MAX)
        return ws_error_set(err, EINVAL, "a version has at most 63 bits, %" PRIu64 " has more", version);
    p->version = version;
    memset(p->put, 1, p->n_params * sizeof(p->put[0]));
    memset((void *)p->overflows, 0, p->n_params * sizeof(p->overflows[0]));
    int rc = ws_publisher_share(p, params, err);
    if (rc == 0)
        snprintf(p->gpu_report, sizeof(p->gpu_report), "shared on demand: nothing was copied to the host");
    return rc;
}

static int fill(struct wsync_publisher *p, const wsync_param *params, uint64_t version, struct ws_error *err)
{
    struct ws_error ignored;
    p->puts_all = true;
    int rc = ws_version_step_begin(p, version, false, err);
    if (rc == 0)
        rc = ws_publisher_put_all(p, params, err);
    if (rc == 0)
        rc = ws_publisher_share(p, params, err);
    if (rc == 0)
        rc = ws_version_step_commit(p, err);
    if (rc < 0 && p->begun)
        (void)ws_version_step_abandon(p, &ignored);
    return rc;
}

static int offload(struct wsync_publisher *p, const wsync_param *params, size_t n, uint64_t version,
                   struct ws_error *err)
{
    if (p->begun)
        return ws_error_set(err, EALREADY, "version %" PRIu64 " is begun and neither committed nor abandoned",
                            p->version);
    int rc = ws_publisher_is_connected(p) && ws_publisher_is_registered(p, params, n) ? 0 : -ESTALE;
    if (rc == 0)
        rc = ws_publisher_locate(p, params, err);
    for (int tries = 0; tries < 3; tries++) {
        if (rc == -ESTALE) /* or another rank came back with other tensors: all register anew */
            rc = ws_publisher_register(p, params, n, err);
        if (rc == 0)
            rc =
                ws_publisher_is_on_demand(p) ? offer(p, params, version, err) : fill(p, params, version, err);
        if (rc != -ESTALE)
            break;
    }
    if (rc == 0)
        ws_publisher_record_held(p);
    return rc;
}

int wsync_offload(wsync_publisher *p, const wsync_param *params, size_t n, uint64_t version)
{
    ws_publisher_lock(p);
    p->begins = version <= INT64_MAX ? version : 0;
    int rc = offload(p, params, n, version, ws_last_error());
    p->begins = 0;
    ws_publisher_unlock(p);
    return rc;
}

const char *wsync_frozen(const wsync_publisher *p, size_t i)
{
    size_t n = p->base && p->base_places ? ws_base_checkpoint_n_tensors(p->base) : 0;
    for (size_t k = 0; k < n; k++)
        if (p->base_places[k].writes && i-- == 0)
            return ws_base_checkpoint_tensor_name(p->base, k);
    return NULL;
}

uint64_t wsync_overflows(const wsync_publisher *p, const char **first)
{
    uint64_t total = 0;
    if (first)
        *first = NULL;
    for (size_t i = 0; i < p->n_params; i++) {
        uint64_t n = p->overflows[i];
        if (n > 0 && total == 0 && first)
            *first = p->params[i].tensor.name;
        total += n;
    }
    return total;
}

const char *wsync_gpu_report(const wsync_publisher *p)
{
    return p->gpu_report;
}

const char *wsync_offload_report(const wsync_publisher *p)
{
    return ws_publisher_compare_how(p);
}

static int request_wait(struct wsync_publisher *p, const char *what, uint64_t version, const char *mounts,
                        int timeout_ms, struct ws_error *err)
{
    json_t *body = json_pack("{s:I,s:s,s:s,s:s}", "version", (json_int_t)version, "what", what, "run",
                             p->lineage, "who", mounts);
    int rc = body ? ws_publisher_wait(p, "wait", body, timeout_ms, err)
                  : ws_error_set(err, ENOMEM, "no memory for a request");
    json_decref(body);
    return rc;
}

/* The wait may be for a version that the on-demand thread has to make meanwhile: then it goes in short steps,
 * in turns with that thread. */
static int wait_for(struct wsync_publisher *p, const char *what, uint64_t version, const char *mounts,
                    int timeout_ms)
{
    struct ws_error *err = ws_last_error();
    const struct timespec pause = {.tv_nsec = WAIT_PAUSE_NS};
    if (!ws_publisher_is_on_demand(p))
        return request_wait(p, what, version, mounts, timeout_ms, err);
    for (int left = timeout_ms;;) {
        const int step = left >= 0 && left < WAIT_STEP_MS ? left : WAIT_STEP_MS;
        ws_publisher_lock(p);
        int rc = request_wait(p, what, version, mounts, step, err);
        ws_publisher_unlock(p);
        left -= left >= 0 ? step : 0;
        if (rc != -ETIMEDOUT || left == 0)
            return rc;
        nanosleep(&pause, NULL);
    }
}

int wsync_wait_published(wsync_publisher *p, uint64_t version, int timeout_ms)
{
    return wait_for(p, "published", version, "", timeout_ms);
}

int wsync_wait_delta(struct wsync_publisher *p, uint64_t version, int timeout_ms)
{
    return wait_for(p, "delta", version ? version : p->version, "", timeout_ms);
}

int wsync_wait_loaded(wsync_publisher *p, uint64_t version, const char *mounts, int timeout_ms)
{
    return wait_for(p, "loaded", version, mounts ? mounts : "all", timeout_ms);
}

void wsync_close(wsync_publisher *p)
{
    if (!p)
        return;
    if (p->pid != getpid()) { /* of a fork: the threads are not here, and the rest goes with the process */
        if (p->sock >= 0)
            close(p->sock);
        return;
    }
    end(p);
}

static void end(struct wsync_publisher *p)
{
    ws_publisher_share_close(p); /* and its thread, which may have begun a version */
    ws_version_step_end(p);
    if (p->sock >= 0)
        close(p->sock); /* the agent abandons what is begun */
    ws_publisher_forget(p);
    ws_d2h_free(p->d2h);
    ws_pinned_slots_free(p->pinned);
    ws_base_checkpoint_free(p->base);
    free(p->base_was_held);
    ws_workers_free(p->workers);
    free(p->agent);
    free(p->model);
    free(p->lineage_requested);
    free(p);
}
