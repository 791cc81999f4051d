/* Views: what the control files show when they are read: flat "key value" lines. */
#include "fs/control/config.h"
#include "fs/control/metrics.h"
#include "fs/control/tensor_diff.h"
#include "fs/engines/control.h"
#include "fs/engines/controller.h"
#include "fs/pull/cuda_ipc_file.h"
#include "fs/switch/quarantine.h"
#include "transports/base/text.h"
#include <errno.h>
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

/* One word of a line. Quotes within the text become single ones, so that a script that splits the line is not
 * misled. */
static void print_quoted(FILE *f, const char *key, const char *text)
{
    if (!text[0])
        return;
    fprintf(f, " %s=\"", key);
    for (; *text; text++)
        fputc(*text == '"' ? '\'' : *text, f);
    fputc('"', f);
}

static void print_version(void *arg, struct ws_version *v)
{
    FILE *f = arg;
    struct ws_version_info i;
    char name[WS_MAX_NAME + 1];
    ws_version_info(v, &i);
    ws_version_name(v, name);
    const bool ended = i.strategy != WS_NO_WAY || i.why_not[0]; /* a pull has */
    fprintf(f, "version.%s %s bytes=%" PRIu64 " have=%" PRIu64 " moved=%" PRIu64 " how=\"%s\"", name,
            ws_version_state_name(i.state), i.total_bytes, i.have_bytes, i.moved_bytes, i.how);
    if (ended)
        fprintf(f, " strategy=%s", ws_way_name(i.strategy));
    print_quoted(f, "why_not", i.why_not);
    fprintf(f, " seconds=%.3f run=%s%s%s%s", i.pull_seconds, i.lineage, i.pinned ? " pinned" : "",
            i.retired ? " deleted" : "", i.at_source ? "" : " gone-at-source");
    if (i.needed_bytes)
        fprintf(f, " needed=%" PRIu64, i.needed_bytes);
    if (i.n_sources)
        fprintf(f, " sources=%u", i.n_sources);
    if (i.bad_blocks)
        fprintf(f, " bad-blocks=%" PRIu64, i.bad_blocks);
    print_quoted(f, "error", i.error);
    fputc('\n', f);
}

static void print_one_copy(struct ws_model *m, FILE *f)
{
    struct ws_one_copy_info i;
    char name[WS_MAX_NAME + 1] = "none";
    if (!ws_model_one_copy(m, &i))
        return;
    if (i.holder) {
        ws_version_name(i.holder, name);
        ws_version_put(i.holder);
    }
    fprintf(f, "copies 1 holds=%s way-back=%s way-back-bytes=%" PRIu64 "\n", name,
            i.way_back[0] ? i.way_back : "none", i.way_back_bytes);
}

static void print_learned(struct ws_model *m, FILE *f)
{
    struct ws_learned_info i;
    if (ws_model_learned(m, &i))
        fprintf(f, "learned %zu tensors, learning %s\n", i.n_tensors, i.is_over ? "ended" : "yes");
}

static void print_history(struct ws_model *m, FILE *f)
{
    struct ws_arrival *all;
    const size_t n = ws_model_arrivals(m, &all);
    char when[WS_TIME_CHARS];
    for (size_t i = 0; i < n; i++) {
        const struct ws_arrival *e = &all[i];
        ws_event_log_time(e->ended_ns, when);
        fprintf(f,
                "%" PRIu64 " %s at=%s run=%s bytes=%" PRIu64 " moved=%" PRIu64
                " seconds=%.3f pulls=%u strategy=%s",
                e->id.version, e->error[0] ? "failed" : "came", when, e->id.lineage, e->bytes, e->moved_bytes,
                e->seconds, e->pulls, ws_way_name(e->strategy));
        if (e->first_seconds >= 0)
            fprintf(f, " first=%.3f stalls=%u stalled=%.3f", e->first_seconds, e->stalls, e->stalled_seconds);
        if (e->loaded_seconds >= 0)
            fprintf(f, " loaded=%.3f", e->loaded_seconds);
        print_quoted(f, "how", e->how);
        print_quoted(f, "why_not", e->why_not);
        print_quoted(f, "error", e->error);
        fputc('\n', f);
    }
    free(all);
}

static void status_of_model(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m, FILE *f)
{
    print_link(f, "current", ws_model_current(m));
    print_link(f, "latest", ws_model_latest(m));
    print_link(f, "previous", ws_model_previous(m));
    const bool quarantined = ws_quarantine_holds(c, ctl, m);
    pthread_mutex_lock(&c->lock);
    char commit[32], policy[WS_POLICY_CHARS], list[WS_TRANSPORT_PREFS_CHARS], missing[WS_ERROR_TEXT];
    struct ws_transport_prefs strategies;
    (void)ws_transport_prefs_get(c->store, ctl->name, &strategies);
    ws_transport_prefs_text(&strategies, list);
    ws_controller_commit_text(ctl, commit);
    ws_controller_policy_text(ctl, policy);
    fprintf(f, "commit %s\nstrategy %s\n", commit, list);
    fprintf(f, "quarantined %s\n", quarantined ? "yes" : "no");
    unsigned engines = 0;
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, ctl->name, &at);)
        engines++;
    fprintf(f, "policy %s\nswitching %s\nengines %u\nswitches %" PRIu64 "\nswitches_failed %" PRIu64 "\n",
            policy, ctl->switching ? "yes" : "no", engines, ctl->switches_ok, ctl->switches_failed);
    pthread_mutex_unlock(&c->lock);
    print_one_copy(m, f);
    print_learned(m, f);
    ws_model_each(m, print_version, f);
    if (ws_model_missing_parts(m, missing, sizeof(missing)))
        fprintf(f, "lacking %s\n", missing);
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
            "\nbad_blocks %" PRIu64 "\non_demand_bytes %" PRIu64 "\n",
            c->options.mountpoint, c->options.mode_text, s.cache_bytes, s.used_bytes, s.waiting_bytes,
            s.moved_bytes, s.pulls_ok, s.pulls_failed, s.retries, s.bad_blocks, s.on_demand_bytes);
    for (size_t i = 0; i < n; i++) {
        fprintf(f, "source %s %s transport=%s contact=%.1f", sources[i].url, sources[i].up ? "up" : "down",
                sources[i].transport, sources[i].seconds_since_contact);
        if (sources[i].rtt_us)
            fprintf(f, " rtt=%.6f", sources[i].rtt_us / 1e6);
        print_quoted(f, "error", sources[i].error);
        fputc('\n', f);
    }
    if (c->settings_path)
        fprintf(f, "settings %s\n", c->settings_path);
    if (s.link_bytes_s)
        fprintf(f, "link_bytes_s %" PRIu64 "\n", s.link_bytes_s);
    ws_store_each(c->store, print_model, f);
    free(sources);
}

static void print_status(struct ws_control *c, struct ws_controller *ctl, struct ws_model *m, FILE *f)
{
    if (m)
        status_of_model(c, ctl, m, f);
    else
        status_of_mount(c, f);
    ws_config_print(c, ctl, f);
}

/* What an engine serves in its own words, without the lineage where that is the current one. */
static void print_served(const struct ws_engine *e, const char *run, FILE *f)
{
    const char *version = ws_condition_version(&e->condition), *at = strchr(version, '@');
    bool plain = at && run && strcmp(at + 1, run) == 0;
    char text[sizeof(e->condition.version)];
    snprintf(text, sizeof(text), "%.*s", plain ? (int)(at - version) : 64, version[0] ? version : "unknown");
    ws_text_clean(text);
    for (char *p = text; *p; p++) /* one word, whatever it says */
        *p = *p == ' ' ? '_' : *p;
    fputs(text, f);
}

/* Its draft and its adapters, as far as the mount has loaded them. Under the lock. */
static void print_members(const struct ws_engine *e, FILE *f)
{
    const struct ws_member *draft = ws_members_draft(&e->members);
    char version[WS_VERSION_ID_TEXT];
    if (draft)
        fprintf(f, " draft-model=%s draft-version=%s", draft->model, ws_draft_text(&e->draft, version));
    if (e->members.n > (draft != NULL))
        fprintf(f, " adapters=%s", e->listed && e->listed[0] ? e->listed : "none");
    if (e->strays)
        fprintf(f, " stray_adapters=%s", e->strays);
    if (e->adapter_error)
        print_quoted(f, "adapters_error", e->adapter_error);
}

/* By which way versions come into it. Under the lock. */
static void print_patching(const struct ws_patching *p, FILE *f)
{
    if (!ws_patching_is_shown(p))
        return;
    fprintf(f, " update=%s", ws_update_name(p->update));
    if (p->is_known)
        fprintf(f, " how=%s", p->is_patched ? "patch" : "whole");
    if (p->why[0])
        print_quoted(f, "why_whole", p->why);
    if (p->drifted)
        fprintf(f, " drifted=%" PRIu64, p->drifted);
}

static void print_engine(const struct ws_engine *e, const char *run, FILE *f)
{
    fprintf(f, "%s %s ", e->name, ws_engine_state_name(e->condition.state));
    print_served(e, run, f);
    fprintf(f, " %s %s pause=%.3f", e->ops->kind, e->url ? e->url : "-", e->pause_seconds);
    if (ws_histogram_count(&e->pauses))
        fprintf(f, " pauses=%" PRIu64 " paused=%.3f", ws_histogram_count(&e->pauses), e->pauses.sum);
    if (e->facts.draft[0])
        fprintf(f, " draft=%s", e->facts.draft);
    print_members(e, f);
    print_patching(&e->patching, f);
    if (e->sleep)
        fprintf(f, " sleep=%s", ws_engine_sleep_word(e->sleep));
    if (e->condition.sleeping)
        fputs(" asleep", f);
    if (e->condition.state == WS_ENGINE_STALE && !e->condition.error[0] && !e->ops->external)
        fprintf(f, " error=\"not the current version; engine sync %s brings it along\"", e->name);
    print_quoted(f, "error", e->condition.error);
    fputc('\n', f);
}

/* An engine of another model, as it serves this one. */
static void print_engine_of_other(const struct ws_engine_at *at, const struct ws_adapters *adapters,
                                  const char *model, const struct ws_version_id *current, FILE *f)
{
    const struct ws_engine *e = at->engine;
    const bool is_adapter = at->member->role == WS_MEMBER_ADAPTER;
    ws_adapter_name name = "";
    char version[WS_VERSION_ID_TEXT];
    if (current)
        ws_adapters_name(adapters, model, current, name);
    const bool has = current && ws_adapter_list_has(e->listed, name);
    fprintf(f, "%s %s %s %s %s of=%s", e->name, ws_engine_state_name(e->condition.state),
            is_adapter ? has ? name : "none" : ws_draft_text(&e->draft, version), e->ops->kind, e->url,
            at->controller->name);
    print_members(e, f);
    fputc('\n', f);
}

static void print_engines(struct ws_control *c, struct ws_controller *ctl, FILE *f)
{
    struct ws_model *m = ws_store_find(c->store, ctl->name);
    struct ws_version *current = m ? ws_model_current(m) : NULL;
    struct ws_version *v = m && !current ? ws_model_latest(m) : current;
    const struct ws_version_id id = current ? ws_version_id(current) : (struct ws_version_id){0};
    pthread_mutex_lock(&c->lock);
    for (struct ws_engine_at at = {0}; ws_engine_next_of(c, ctl->name, &at);) {
        if (at.member)
            print_engine_of_other(&at, &ctl->adapters, ctl->name, current ? &id : NULL, f);
        else
            print_engine(at.engine, v ? ws_version_lineage(v) : NULL, f);
    }
    pthread_mutex_unlock(&c->lock);
    if (v)
        ws_version_put(v);
    if (m)
        ws_model_put(m);
}

static void print_state(struct ws_version *v, FILE *f)
{
    struct ws_version_info i;
    ws_version_info(v, &i);
    fprintf(f, "%s\n", ws_version_state_name(i.state));
    if (i.error[0])
        fprintf(f, "error %s\n", i.error);
}

static void print_progress(struct ws_version *v, FILE *f)
{
    struct ws_version_info i;
    ws_version_info(v, &i);
    fprintf(f,
            "have_bytes %" PRIu64 "\ntotal_bytes %" PRIu64 "\nmoved_bytes %" PRIu64 "\nbad_blocks %" PRIu64
            "\nseconds %.3f\n",
            i.have_bytes, i.total_bytes, i.moved_bytes, i.bad_blocks, i.pull_seconds);
    if (i.how[0])
        fprintf(f, "how %s\n", i.how);
    const struct ws_manifest *m = ws_version_files(v);
    for (size_t k = 0; m && k < m->n_files; k++)
        fprintf(f, "file.%s %zu/%zu blocks\n", m->files[k].name, ws_version_blocks_here(v, k),
                m->files[k].n_blocks);
}

static void print_last_error(struct ws_control *c, struct ws_controller *ctl, FILE *f)
{
    char when[WS_TIME_CHARS];
    pthread_mutex_lock(&c->lock);
    const struct ws_last_error *e = &ctl->last_error;
    if (e->real_ns) {
        ws_event_log_time(e->real_ns, when);
        fprintf(f, "time %s\ncommand %s\nerrno %s\nmessage %s\n", when, e->command, ws_errno_name(e->code),
                e->text);
    }
    pthread_mutex_unlock(&c->lock);
}

/* --- which view is which --- */

static void show_grammar(enum ws_scope scope, FILE *f)
{
    const char *usage, *meaning;
    for (size_t i = 0; ws_command_usage(scope, i, &usage, &meaning); i++)
        fprintf(f, "%s\n    %s\n", usage, meaning);
}

static int show(struct ws_control *c, enum ws_view view, struct ws_controller *ctl, struct ws_model *m,
                struct ws_version *v, FILE *f)
{
    struct ws_error err = {0};
    struct ws_version *current;
    size_t len = 0;
    char *text = NULL, policy[WS_POLICY_CHARS];
    int rc = 0;
    switch (view) {
    case WS_VIEW_CTL:
        show_grammar(m ? WS_SCOPE_MODEL : WS_SCOPE_ROOT, f);
        break;
    case WS_VIEW_STATUS:
        print_status(c, ctl, m, f);
        break;
    case WS_VIEW_EVENTS:
        text = ws_event_log_copy(ctl->events, &len);
        rc = text ? 0 : -ENOMEM;
        fwrite(text ? text : "", 1, len, f);
        break;
    case WS_VIEW_METRICS:
        ws_metrics_print(c, f);
        break;
    case WS_VIEW_LAST_ERROR:
        print_last_error(c, ctl, f);
        break;
    case WS_VIEW_VERSION:
        current = ws_model_current(m);
        if (current)
            fprintf(f, "%" PRIu64 "\n", ws_version_number(current));
        else
            fputs("none\n", f);
        if (current)
            ws_version_put(current);
        break;
    case WS_VIEW_HISTORY:
        print_history(m, f);
        break;
    case WS_VIEW_ENGINES:
        print_engines(c, ctl, f);
        break;
    case WS_VIEW_POLICY:
        pthread_mutex_lock(&c->lock);
        ws_controller_policy_text(ctl, policy);
        fprintf(f, "%s\n", policy);
        pthread_mutex_unlock(&c->lock);
        break;
    case WS_VIEW_MANIFEST: {
        const struct ws_manifest *manifest = ws_version_manifest(v, &err);
        rc = manifest ? ws_manifest_to_json(manifest, &text, &len, &err) : -err.code;
        fwrite(text ? text : "", 1, len, f);
        fputc('\n', f);
        break;
    }
    case WS_VIEW_STATE:
        print_state(v, f);
        break;
    case WS_VIEW_PROGRESS:
        print_progress(v, f);
        break;
    case WS_VIEW_CHANGED:
        rc = ws_tensor_diff_print(v, f);
        break;
    case WS_VIEW_CUDA_IPC:
        rc = ws_cuda_ipc_file_print(v, f, &err);
        break;
    default:
        rc = -ENOENT;
    }
    free(text);
    return rc;
}

int ws_control_read(struct ws_control *c, enum ws_view view, struct ws_model *m, struct ws_version *v,
                    char **text, size_t *len)
{
    struct ws_controller *ctl = ws_controller_get(c, m ? ws_model_name(m) : NULL);
    FILE *f = ctl ? open_memstream(text, len) : NULL;
    if (!f)
        return -ENOMEM;
    int rc = show(c, view, ctl, m, v, f);
    if (fclose(f) != 0 && rc == 0)
        rc = -ENOMEM;
    if (rc < 0) {
        free(*text);
        *text = NULL;
    }
    return rc;
}
