#include "fs/control/metrics.h"
#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/http/certificate.h"
#include <inttypes.h>
#include <string.h>

#define LABELS_BYTES 2048

struct printer {
    struct ws_control *control;
    FILE *f;
};

static void family(FILE *f, const char *name, const char *type, const char *help)
{
    fprintf(f, "# HELP wsync_%s %s\n# TYPE wsync_%s %s\n", name, help, name, type);
}

/* ,NAME="value" with the value escaped, as the format wants it. */
static size_t put_label(char *out, size_t n, const char *name, const char *value)
{
    n += (size_t)snprintf(out + n, LABELS_BYTES - n, "%s%s=\"", n ? "," : "", name);
    for (; *value && n + 4 < LABELS_BYTES; value++) {
        if (*value == '"' || *value == '\\' || *value == '\n')
            out[n++] = '\\';
        out[n++] = *value == '\n' ? 'n' : *value;
    }
    return n + (size_t)snprintf(out + n, LABELS_BYTES - n, "\"");
}

static const char *model_label(const char *model, char out[LABELS_BYTES])
{
    put_label(out, 0, "model", model);
    return out;
}

/* --- of the store --- */

static void current_version(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    char labels[LABELS_BYTES];
    struct ws_version *v = ws_model_current(m);
    fprintf(p->f, "wsync_current_version{%s} %" PRIu64 "\n", model_label(ws_model_name(m), labels),
            v ? ws_version_number(v) : 0);
    if (v)
        ws_version_put(v);
}

static void behind(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    char labels[LABELS_BYTES];
    struct ws_version *current = ws_model_current(m), *latest = ws_model_latest(m);
    uint64_t n = latest ? ws_version_number(latest) : 0, at = current ? ws_version_number(current) : 0;
    fprintf(p->f, "wsync_behind{%s} %" PRIu64 "\n", model_label(ws_model_name(m), labels),
            n > at ? n - at : 0);
    if (current)
        ws_version_put(current);
    if (latest)
        ws_version_put(latest);
}

static void age(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    char labels[LABELS_BYTES];
    struct ws_version *v = ws_model_current(m);
    struct ws_version_info i;
    uint64_t now = ws_clock_day_ns();
    if (!v)
        return;
    ws_version_info(v, &i);
    if (i.created_ns && i.created_ns < now)
        fprintf(p->f, "wsync_age_seconds{%s} %.3f\n", model_label(ws_model_name(m), labels),
                (double)(now - i.created_ns) * 1e-9);
    ws_version_put(v);
}

static void pulls(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    char labels[LABELS_BYTES];
    struct ws_histogram h;
    ws_model_pulls(m, &h);
    ws_histogram_print(&h, "wsync_pull_seconds", model_label(ws_model_name(m), labels), p->f);
}

/* Of models whose memory holds one copy. */
static void way_back(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    char labels[LABELS_BYTES];
    struct ws_one_copy_info i;
    if (!ws_model_one_copy(m, &i))
        return;
    if (i.holder)
        ws_version_put(i.holder);
    fprintf(p->f, "wsync_way_back_bytes{%s} %" PRIu64 "\n", model_label(ws_model_name(m), labels),
            i.way_back_bytes);
}

/* Of models with need=learn. */
static void learned(void *arg, struct ws_model *m)
{
    struct printer *p = arg;
    char labels[LABELS_BYTES];
    struct ws_learned_info i;
    if (ws_model_learned(m, &i))
        fprintf(p->f, "wsync_learned_tensors{%s} %zu\n", model_label(ws_model_name(m), labels), i.n_tensors);
}

static void store_figures(struct ws_store *store, FILE *f)
{
    struct ws_store_stats s;
    ws_store_stats(store, &s);
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } metrics[] = {
        {"cache_bytes", "gauge", "Weights that may be held, in bytes.", s.cache_bytes},
        {"used_bytes", "gauge", "Weights that are held, in bytes.", s.used_bytes},
        {"waiting_bytes", "gauge", "The part of them that has no name any more and waits for its readers.",
         s.waiting_bytes},
        {"moved_bytes_total", "counter", "Bytes that came from sources.", s.moved_bytes},
        {"on_demand_bytes_total", "counter",
         "The part of them that was fetched block by block, for reads of what was not here.",
         s.on_demand_bytes},
        {"pulls_total", "counter", "Versions that were pulled whole.", s.pulls_ok},
        {"pulls_failed_total", "counter", "Pulls that failed.", s.pulls_failed},
        {"retries_total", "counter", "Requests to sources that were tried again.", s.retries},
        {"bad_blocks_total", "counter", "Blocks whose hash was not the manifest's, fetched again.",
         s.bad_blocks},
    };
    for (size_t i = 0; i < sizeof(metrics) / sizeof(metrics[0]); i++) {
        family(f, metrics[i].name, metrics[i].type, metrics[i].help);
        fprintf(f, "wsync_%s %" PRIu64 "\n", metrics[i].name, metrics[i].value);
    }
}

/* --- of engines; with the control's lock --- */

static void engine_states(const struct ws_control *c, FILE *f)
{
    char labels[LABELS_BYTES];
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next)
        for (enum ws_engine_state s = WS_ENGINE_SERVING; s < WS_ENGINE_STATES; s++) {
            unsigned n = 0;
            for (const struct ws_engine *e = ctl->engines; e; e = e->next)
                n += e->condition.state == s;
            put_label(labels, put_label(labels, 0, "model", ctl->name), "state", ws_engine_state_name(s));
            fprintf(f, "wsync_engines{%s} %u\n", labels, n);
        }
}

static void engines_asleep(const struct ws_control *c, FILE *f)
{
    char labels[LABELS_BYTES];
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next) {
        unsigned n = 0;
        for (const struct ws_engine *e = ctl->engines; e; e = e->next)
            n += e->condition.sleeping;
        put_label(labels, 0, "model", ctl->name);
        fprintf(f, "wsync_engines_asleep{%s} %u\n", labels, n);
    }
}

/* By engine and by the model that the adapters are of. */
static void adapters(const struct ws_control *c, FILE *f)
{
    char labels[LABELS_BYTES];
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next)
        for (const struct ws_engine *e = ctl->engines; e; e = e->next)
            for (size_t i = 0; i < e->members.n; i++) {
                const struct ws_member *m = &e->members.items[i];
                if (m->role != WS_MEMBER_ADAPTER)
                    continue;
                put_label(labels, put_label(labels, 0, "model", m->model), "engine", e->name);
                fprintf(f, "wsync_adapters{%s} %u\n", labels, ws_adapter_list_count(e->listed, m->model));
            }
}

static void switches(const struct ws_control *c, FILE *f)
{
    char labels[LABELS_BYTES];
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next) {
        model_label(ctl->name, labels);
        fprintf(f,
                "wsync_switches_total{%s,result=\"ok\"} %" PRIu64
                "\nwsync_switches_total{%s,result=\"failed\"} %" PRIu64 "\n",
                labels, ctl->switches_ok, labels, ctl->switches_failed);
    }
}

static void pauses(const struct ws_control *c, FILE *f)
{
    char labels[LABELS_BYTES];
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next)
        for (const struct ws_engine *e = ctl->engines; e; e = e->next) {
            put_label(labels, put_label(labels, 0, "model", ctl->name), "engine", e->name);
            ws_histogram_print(&e->pauses, "wsync_pause_seconds", labels, f);
        }
}

/* Of engines that are patched, or were to be. */
static void updates(const struct ws_control *c, FILE *f)
{
    char labels[LABELS_BYTES];
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next)
        for (const struct ws_engine *e = ctl->engines; e; e = e->next) {
            const struct ws_patching *p = &e->patching;
            if (!ws_patching_is_shown(p))
                continue;
            put_label(labels, put_label(labels, 0, "model", ctl->name), "engine", e->name);
            fprintf(f,
                    "wsync_engine_updates_total{%s,how=\"patch\"} %" PRIu64
                    "\nwsync_engine_updates_total{%s,how=\"whole\"} %" PRIu64
                    "\nwsync_engine_updates_total{%s,how=\"undo\"} %" PRIu64 "\n",
                    labels, p->patched, labels, p->whole, labels, p->undone);
        }
}

static void comparisons(const struct ws_control *c, FILE *f)
{
    char labels[LABELS_BYTES];
    for (const struct ws_controller *ctl = c->controllers; ctl; ctl = ctl->next)
        for (const struct ws_engine *e = ctl->engines; e; e = e->next) {
            const struct ws_patching *p = &e->patching;
            if (!p->verify_s)
                continue;
            put_label(labels, put_label(labels, 0, "model", ctl->name), "engine", e->name);
            fprintf(f,
                    "wsync_engine_verifications_total{%s,result=\"ok\"} %" PRIu64
                    "\nwsync_engine_verifications_total{%s,result=\"drifted\"} %" PRIu64 "\n",
                    labels, p->verified, labels, p->drifted);
        }
}

void ws_metrics_print(struct ws_control *c, FILE *f)
{
    struct printer p = {c, f};
    store_figures(c->store, f);
    family(f, "audit_lost_total", "counter", "Entries that the audit log had no room for.");
    fprintf(f, "wsync_audit_lost_total %" PRIu64 "\n", ws_audit_log_lost());
    family(f, "certificate_end_timestamp_seconds", "gauge",
           "When the client certificate for sources ends, in seconds since 1970.");
    const uint64_t end = ws_certificate_file_end(ws_store_certificate(c->store));
    if (end)
        fprintf(f, "wsync_certificate_end_timestamp_seconds %" PRIu64 "\n", end);
    family(f, "current_version", "gauge", "The version that is current; 0: none.");
    ws_store_each(c->store, current_version, &p);
    family(f, "behind", "gauge", "Versions between the current one and the newest that is known.");
    ws_store_each(c->store, behind, &p);
    family(f, "age_seconds", "gauge", "How long ago the trainer made the weights that are current.");
    ws_store_each(c->store, age, &p);
    family(
        f, "way_back_bytes", "gauge",
        "With one copy in memory: what is kept of former versions to go back to them, a part of used_bytes.");
    ws_store_each(c->store, way_back, &p);
    family(f, "learned_tensors", "gauge", "With need=learn: tensors that readers have read.");
    ws_store_each(c->store, learned, &p);
    family(f, "pull_seconds", "histogram", "How long pulls of whole versions took.");
    ws_store_each(c->store, pulls, &p);
    pthread_mutex_lock(&c->lock);
    family(f, "engines", "gauge", "Engines of a model in each state.");
    engine_states(c, f);
    family(f, "engines_asleep", "gauge", "Engines of a model of which a part sleeps.");
    engines_asleep(c, f);
    family(f, "adapters", "gauge", "Versions of an adapter's model that an engine lists.");
    adapters(c, f);
    family(f, "switches_total", "counter", "Switches of a model's engines.");
    switches(c, f);
    family(f, "pause_seconds", "histogram", "How long a switch paused each engine.");
    pauses(c, f);
    family(f, "engine_updates_total", "counter",
           "How versions came into engines that are patched: by a patch, as a whole, or back by its undo.");
    updates(c, f);
    family(f, "engine_verifications_total", "counter",
           "Comparisons of an engine's weights with the files (verify=), by what they found.");
    comparisons(c, f);
    pthread_mutex_unlock(&c->lock);
}
