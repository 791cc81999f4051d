/* What the files of the mount say: flat "key value" lines. */
#include "fs/desk.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void print_link(FILE *f, const char *key, struct ws_version *v) /* puts v */
{
    char name[WS_MAX_NAME + 1] = "none";
    if (v)
        ws_version_name(v, name);
    fprintf(f, "%s %s\n", key, name);
    if (v)
        ws_version_put(v);
}

static void print_version(void *arg, struct ws_version *v)
{
    FILE *f = arg;
    struct ws_version_info i;
    char name[WS_MAX_NAME + 1];
    ws_version_info(v, &i);
    ws_version_name(v, name);
    fprintf(f,
            "version.%s %s bytes=%" PRIu64 " have=%" PRIu64 " moved=%" PRIu64
            " how=\"%s\" seconds=%.3f run=%s%s%s",
            name, ws_state_name(i.state), i.total_bytes, i.have_bytes, i.moved_bytes, i.how, i.pull_seconds,
            i.run, i.pinned ? " pinned" : "", i.at_source ? "" : " gone-at-source");
    if (i.bad_blocks)
        fprintf(f, " bad-blocks=%" PRIu64, i.bad_blocks);
    if (i.error[0])
        fprintf(f, " error=\"%s\"", i.error);
    fputc('\n', f);
}

static void status_of_model(struct ws_control *c, struct ws_desk *d, struct ws_model *m, FILE *f)
{
    print_link(f, "current", ws_model_current(m));
    print_link(f, "latest", ws_model_latest(m));
    print_link(f, "previous", ws_model_previous(m));
    pthread_mutex_lock(&c->lock);
    char commit[32];
    ws_desk_commit_text(d, commit);
    fprintf(f, "commit %s\n", commit);
    fprintf(f, "policy %s\nswitching %s\nengines %u\nswitches %" PRIu64 "\nswitches_failed %" PRIu64 "\n",
            ws_policy_name(d->policy), d->switching ? "yes" : "no", d->n_engines, d->switches_ok,
            d->switches_failed);
    pthread_mutex_unlock(&c->lock);
    ws_model_each(m, print_version, f);
}

static void print_model(void *arg, struct ws_model *m)
{
    fprintf(arg, "model %s\n", ws_model_name(m));
}

static void status_of_mount(struct ws_control *c, FILE *f)
{
    struct ws_store_stats s;
    struct ws_source_info *sources = calloc(WS_MAX_SOURCES, sizeof(*sources));
    size_t n = sources ? ws_store_sources(c->store, sources, WS_MAX_SOURCES) : 0;
    ws_store_stats(c->store, &s);
    fprintf(f,
            "mountpoint %s\nreads %s\ncache_bytes %" PRIu64 "\nused_bytes %" PRIu64 "\nwaiting_bytes %" PRIu64
            "\nmoved_bytes %" PRIu64 "\npulls %" PRIu64 "\npulls_failed %" PRIu64 "\nretries %" PRIu64
            "\nbad_blocks %" PRIu64 "\n",
            c->options.mountpoint, c->options.mode_text, s.cache_bytes, s.used_bytes, s.waiting_bytes,
            s.moved_bytes, s.pulls_ok, s.pulls_failed, s.retries, s.bad_blocks);
    for (size_t i = 0; i < n; i++)
        fprintf(f, "source %s %s transport=%s contact=%.1f%s%s%s\n", sources[i].url,
                sources[i].up ? "up" : "down", sources[i].transport, sources[i].seconds_since_contact,
                sources[i].error[0] ? " error=\"" : "", sources[i].error, sources[i].error[0] ? "\"" : "");
    ws_store_each(c->store, print_model, f);
    free(sources);
}

void ws_view_status(struct ws_control *c, struct ws_desk *d, struct ws_model *m, FILE *f)
{
    if (m)
        status_of_model(c, d, m, f);
    else
        status_of_mount(c, f);
}

void ws_view_engines(struct ws_control *c, struct ws_desk *d, FILE *f)
{
    pthread_mutex_lock(&c->lock);
    for (const struct ws_engine *e = d->engines; e; e = e->next) {
        fprintf(f, "%s %s %s %s %s pause=%.3f", e->name, ws_engine_state_name(e->state),
                e->version[0] ? e->version : "unknown", e->ops->kind, e->url, e->pause_seconds);
        if (e->error[0])
            fprintf(f, " error=\"%s\"", e->error);
        fputc('\n', f);
    }
    pthread_mutex_unlock(&c->lock);
}

void ws_view_state(struct ws_version *v, FILE *f)
{
    struct ws_version_info i;
    ws_version_info(v, &i);
    fprintf(f, "%s\n", ws_state_name(i.state));
    if (i.error[0])
        fprintf(f, "error %s\n", i.error);
}

void ws_view_progress(struct ws_version *v, FILE *f)
{
    struct ws_version_info i;
    ws_version_info(v, &i);
    fprintf(f,
            "have_bytes %" PRIu64 "\ntotal_bytes %" PRIu64 "\nmoved_bytes %" PRIu64 "\nbad_blocks %" PRIu64
            "\nseconds %.3f\n",
            i.have_bytes, i.total_bytes, i.moved_bytes, i.bad_blocks, i.pull_seconds);
    const struct ws_manifest *m = ws_version_has_manifest(v) ? ws_version_manifest(v, NULL) : NULL;
    for (size_t k = 0; m && k < m->n_files; k++)
        fprintf(f, "file.%s %zu/%zu blocks\n", m->files[k].name, ws_version_blocks_here(v, k),
                m->files[k].n_blocks);
}

void ws_view_last_error(struct ws_control *c, struct ws_desk *d, FILE *f)
{
    char when[WS_TIME_CHARS];
    pthread_mutex_lock(&c->lock);
    const struct ws_last_error *e = &d->last_error;
    if (e->real_ns) {
        ws_time_text(e->real_ns, when);
        fprintf(f, "time %s\ncommand %s\nerrno %s\nmessage %s\n", when, e->command, ws_errno_name(e->code),
                e->text);
    }
    pthread_mutex_unlock(&c->lock);
}
