#include "fs/switch/settings.h"
#include "fs/engines/added.h"
#include "fs/switch/needed.h"
#include "fs/switch/quarantine.h"
#include "transports/base/name.h"
#include "transports/base/state_file.h"
#include "transports/base/text.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD        "wsync-settings 1\n"
#define WORST_BYTES 1024 /* by which what is set for a model by words, or said by agents, may become longer */
#define WORST_ADAPTERS_BYTES                                                                                 \
    (WS_MAX_KEPT * (WS_VERSION_ID_TEXT + 6) + WS_ADAPTER_RUNS * (WS_LINEAGE_CHARS + 60) +                    \
     WS_ADAPTER_STRAYS * 50)

/* --- writing --- */

static void print_pin(void *arg, struct ws_version *v)
{
    struct ws_version_info i;
    ws_version_info(v, &i);
    if (i.pinned)
        fprintf(arg, "pin %" PRIu64 " %s\n", i.number, i.lineage);
}

/* worst: as long as it may become without a command. */
static void print_engine(const struct ws_engine *e, bool worst, FILE *f)
{
    fprintf(f, "%s\n", e->line);
    if (ws_condition_is_broken(&e->condition) || worst)
        fprintf(f, "broken %s\n", e->name);
    if (ws_condition_is_uncertain(&e->condition) || worst)
        fprintf(f, "doubted %s\n", e->name);
    if (ws_condition_loses_asleep(&e->condition) || (worst && e->sleep == WS_SLEEP_LOSES))
        fprintf(f, "asleep %s\n", e->name);
    if (worst && ws_members_draft(&e->members))
        fprintf(f, "%*s%s\n", (int)WS_DRAFT_LINE_BYTES, "", e->name);
    else if (!ws_condition_is_uncertain(&e->condition)) /* else it may have been told another one */
        ws_draft_print(&e->draft, e->name, f);
}

static void print_released(uint64_t by, const struct ws_version_id *id, bool quarantined, FILE *f)
{
    fprintf(f, "released %" PRIu64 " %" PRIu64 " %s\n", by, id->version, id->lineage);
    if (quarantined)
        fputs("quarantined\n", f);
}

static void count(void *arg, const char *url)
{
    (void)url;
    ++*(unsigned *)arg;
}

/* Is anything set for the model that differs from what one has that comes for the first time? */
static bool is_set(struct ws_control *c, const struct ws_controller *ctl)
{
    const enum ws_policy policy = c->options.prefetch ? WS_POLICY_PULL : WS_POLICY_MANUAL;
    struct ws_transport_prefs strategies;
    unsigned parents = 0;
    ws_store_each_parent(c->store, ctl->name, count, &parents);
    pthread_mutex_lock(&c->lock);
    const bool it_is = ctl->policy != policy || ctl->commit != WS_COMMIT_ALL || ctl->added || ctl->engines ||
                       ctl->target.lineage[0] || ctl->inherited_release || ctl->pins.len || ctl->signed_ns ||
                       ctl->adapters.n_runs || ctl->adapters.n_strays || ctl->declared;
    pthread_mutex_unlock(&c->lock);
    return it_is || parents || ws_transport_prefs_get(c->store, ctl->name, &strategies);
}

/* worst: as long as they may become where engines take its versions as adapters. */
static void print_adapters(struct ws_control *c, const struct ws_controller *ctl, bool worst, FILE *f)
{
    const struct ws_adapters *a = &ctl->adapters;
    if (worst && ws_engine_most_kept(c, ctl->name) > 0)
        fprintf(f, "%*s\n", WORST_ADAPTERS_BYTES, "");
    for (size_t i = 0; i < a->n_runs; i++)
        fprintf(f, "adapters %s %" PRIu64 " %" PRIu64 "\n", a->runs[i].lineage, a->runs[i].low,
                a->runs[i].high);
    for (size_t i = 0; i < a->n_strays; i++)
        fprintf(f, "stray %" PRIu64 " %" PRIu64 "\n", a->strays[i].low, a->strays[i].high);
    for (size_t i = 0; i < a->kept.len; i++)
        fprintf(f, "kept %" PRIu64 " %s\n", a->kept.ptr[i].id.version, a->kept.ptr[i].id.lineage);
}

static void print_parent(void *arg, const char *url)
{
    FILE *f = arg;
    fputs("peer ", f);
    ws_words_quote(f, url);
    fputc('\n', f);
}

static void print_controller(struct ws_control *c, struct ws_controller *ctl, bool worst, FILE *f)
{
    char commit[32], policy[WS_POLICY_CHARS], list[WS_TRANSPORT_PREFS_CHARS];
    struct ws_transport_prefs strategies;
    struct ws_desired desired = {0};
    struct ws_model *m = ws_store_find(c->store, ctl->name);
    if (!m && !is_set(c, ctl))
        return; /* it was removed */
    if (m)
        ws_model_desired(m, &desired);
    const bool quarantined = m && ws_quarantine_holds(c, ctl, m);
    fputs("model ", f);
    ws_words_quote(f, ctl->name);
    fputc('\n', f);
    if (ws_transport_prefs_get(c->store, ctl->name, &strategies)) {
        ws_transport_prefs_text(&strategies, list);
        fprintf(f, "strategy %s\n", list);
    }
    pthread_mutex_lock(&c->lock);
    ws_controller_commit_text(ctl, commit);
    ws_controller_policy_text(ctl, policy);
    struct ws_version *current = m ? ws_model_current(m) : NULL; /* as the lock's holder sees it */
    fprintf(f, "policy %s\ncommit %s\n", policy, commit);
    ws_added_print(ctl, f);
    fputs(ctl->declared ? ctl->declared : "", f);
    for (const struct ws_engine *e = ctl->engines; e; e = e->next)
        print_engine(e, worst, f);
    char *needed = ws_needed_line(ctl, m);
    if (needed)
        fprintf(f, "%s\n", needed);
    free(needed);
    if (current && !ctl->goes_forward)
        fprintf(f, "current %" PRIu64 " %s\n", ws_version_number(current), ws_version_lineage(current));
    else if (ctl->target.lineage[0])
        fprintf(f, "current %" PRIu64 " %s\n", ctl->target.version, ctl->target.lineage);
    if (ws_policy_follows_releases(ctl->policy) && desired.released_by)
        print_released(desired.released_by, &desired.released, quarantined, f);
    else if (ctl->inherited_release)
        print_released(ctl->inherited_release, &ctl->inherited, ctl->inherited_quarantine, f);
    if (ctl->signed_ns)
        fprintf(f, "signed %" PRIu64 "\n", ctl->signed_ns);
    print_adapters(c, ctl, worst, f);
    if (worst)
        fprintf(f, "%*s\n", WORST_BYTES, "");
    for (size_t i = 0; i < ctl->pins.len; i++)
        fprintf(f, "pin %" PRIu64 " %s\n", ctl->pins.ptr[i].version, ctl->pins.ptr[i].lineage);
    pthread_mutex_unlock(&c->lock);
    ws_store_each_parent(c->store, ctl->name, print_parent, f);
    if (m) {
        ws_model_each(m, print_pin, f);
        ws_model_put(m);
    }
    if (current)
        ws_version_put(current);
}

static char *print_all(struct ws_control *c, bool worst, size_t *n)
{
    char *text = NULL, *whole = NULL;
    FILE *f = open_memstream(&text, n);
    if (!f)
        return NULL;
    fputs(HEAD, f);
    pthread_mutex_lock(&c->lock);
    struct ws_controller *ctl = c->controllers; /* only ever added to, at this end */
    pthread_mutex_unlock(&c->lock);
    for (; ctl; ctl = ctl->next)
        print_controller(c, ctl, worst, f);
    if (fclose(f) != 0) {
        free(text);
        return NULL;
    }
    int k = asprintf(&whole, "%send %016" PRIx64 "\n", text, ws_hash(text, *n));
    free(text);
    *n = k < 0 ? 0 : (size_t)k;
    return k < 0 ? NULL : whole;
}

int ws_settings_fit(struct ws_control *c, size_t more, struct ws_error *err)
{
    size_t n = 0;
    if (!c->settings_path)
        return 0;
    char *text = print_all(c, true, &n);
    int rc = text ? 0 : ws_error_set(err, ENOMEM, "no memory for the settings");
    free(text);
    if (rc == 0 && n + more > WS_MAX_STATE_FILE_BYTES)
        rc =
            ws_error_set(err, E2BIG,
                         "the settings of this mount, in %s, may have %lu bytes, and would have more: remove "
                         "engines or pins that are of no use",
                         c->settings_path, WS_MAX_STATE_FILE_BYTES);
    return rc;
}

int ws_settings_write(struct ws_control *c, struct ws_error *err)
{
    size_t n = 0;
    if (!c->settings_path || atomic_load(&c->restoring))
        return 0;
    pthread_mutex_lock(&c->saving);
    char *text = c->is_closed ? NULL : print_all(c, false, &n);
    int rc = c->is_closed ? 0 : text ? ws_state_file_write(c->settings_path, text, n) : -ENOMEM;
    pthread_mutex_unlock(&c->saving);
    free(text);
    return rc < 0 ? ws_error_set(err, -rc,
                                 "it holds, but the settings cannot be kept in %s, and are gone when this "
                                 "mount ends: %s; %s",
                                 c->settings_path, strerror(-rc),
                                 rc == -EFBIG ? "remove engines or pins that are of no use"
                                              : "make room there, or mount with state=DIR")
                  : 0;
}

void ws_settings_close(struct ws_control *c)
{
    pthread_mutex_lock(&c->saving);
    c->is_closed = true;
    pthread_mutex_unlock(&c->saving);
}

void ws_settings_save(struct ws_control *c)
{
    struct ws_error err;
    if (ws_settings_write(c, &err) < 0)
        (void)ws_controller_fail(c, &c->root, "keep the settings", &err);
}

/* --- reading --- */

/* A damaged file is not written over: it may be the only record of the engines. */
static int damaged(const char *path, const char *why, struct ws_error *err)
{
    char aside[4096];
    snprintf(aside, sizeof(aside), "%s.damaged", path);
    bool moved = rename(path, aside) == 0;
    return ws_error_set(
        err, EBADMSG,
        "the settings in %s are damaged (%.400s) and were left out: engines, policies and pins have to be "
        "set again; the file %s %s",
        path, why, moved ? "is now" : "stays", moved ? aside : "where it is");
}

/* A line of a newer release, for example. The other lines hold, and a copy keeps that line when the settings are
 * written anew. */
static int unknown(const char *path, const char *shown, struct ws_error *err)
{
    char aside[4096];
    snprintf(aside, sizeof(aside), "%s.damaged", path);
    (void)unlink(aside);
    bool kept = link(path, aside) == 0;
    return ws_error_set(
        err, EBADMSG,
        "the settings in %s have a line that cannot be followed here and was left out, '%.200s'; all "
        "others hold%s%s",
        path, shown, kept ? "; a copy is in " : "", kept ? aside : "");
}

/* Head, end and hash are right, and there is no NUL in it. */
static const char *check(char *text, size_t n)
{
    char hex[17];
    char *end = n > 21 ? text + n - 21 : NULL; /* "end ", 16 digits, newline */
    if (!end || strlen(text) != n || strncmp(text, HEAD, strlen(HEAD)) != 0)
        return "it does not begin as it should";
    if (strncmp(end, "end ", 4) != 0 || text[n - 1] != '\n' || end[-1] != '\n')
        return "it is cut off";
    snprintf(hex, sizeof(hex), "%016" PRIx64, ws_hash(text, n - 21));
    if (memcmp(hex, end + 4, 16) != 0)
        return "its hash is wrong";
    *end = 0;
    return NULL;
}

/* "NUMBER RUN" */
static bool parse_version_id(const char *text, struct ws_version_id *out)
{
    if (ws_text_digits(&text, &out->version) || *text++ != ' ' || strlen(text) > WS_LINEAGE_CHARS || !*text)
        return false;
    snprintf(out->lineage, sizeof(out->lineage), "%s", text);
    return true;
}

static bool parse_policy(struct ws_control *c, struct ws_controller *ctl, const char *line)
{
    struct ws_error err;
    struct ws_command *q = calloc(1, sizeof(*q));
    bool good = q && ws_command_parse(WS_SCOPE_MODEL, line, strlen(line), q, &err) == 0 &&
                ws_controller_set_policy(c, ctl, q->args[0],
                                         &(struct ws_policy_options){q->options[WS_OPTION_EVERY],
                                                                     q->options[WS_OPTION_MIN_INTERVAL],
                                                                     q->options[WS_OPTION_UNTIL]},
                                         &err) == 0;
    free(q);
    return good;
}

/* name NULL: all that were read before. */
static void each_engine(struct ws_controller *ctl, const char *name, void (*read)(struct ws_condition *c))
{
    for (struct ws_engine *e = ctl->engines; e; e = e->next)
        if (!name || strcmp(e->name, name) == 0)
            read(&e->condition);
}

/* "ENGINE NUMBER RUN [PROCESS]"; of an engine that could not be brought back it is left out. */
static bool parse_draft(struct ws_controller *ctl, const char *text)
{
    const size_t n = strcspn(text, " ");
    struct ws_draft draft;
    if (text[n] != ' ' || !ws_draft_read(&draft, text + n + 1))
        return false;
    for (struct ws_engine *e = ctl->engines; e; e = e->next)
        if (strlen(e->name) == n && memcmp(e->name, text, n) == 0)
            e->draft = draft;
    return true;
}

static bool parse_parent(struct ws_control *c, const struct ws_controller *ctl, const char *line)
{
    struct ws_error err;
    struct ws_words *w = calloc(1, sizeof(*w));
    const bool good = w && ws_words_parse(line, strlen(line), w, &err) == 0 && w->n == 2 &&
                      ws_store_remember_parent(c->store, ctl->name, w->word[1]) == 0;
    free(w);
    return good;
}

static bool parse_declared(struct ws_controller *ctl, const char *line)
{
    char *before = ctl->declared, *text;
    if (asprintf(&text, "%s%s\n", before ? before : "", line) < 0)
        return false;
    ctl->declared = text;
    free(before);
    return true;
}

/* text NULL: it stays as it is. */
static bool set_needed(struct ws_controller *ctl, const char *text)
{
    char *copy = text ? strdup(text) : NULL;
    if (copy) {
        free(ctl->needed);
        ctl->needed = copy;
    }
    return copy || !text;
}

static bool parse_line(struct ws_control *c, struct ws_controller *ctl, const char *line,
                       ws_settings_add *add, void *arg)
{
    struct ws_error err;
    struct ws_transport_prefs strategies;
    struct ws_version_id pin;
    if (strncmp(line, "policy ", 7) == 0) {
        return parse_policy(c, ctl, line);
    } else if (strncmp(line, "commit ", 7) == 0) {
        return ws_controller_set_commit(c, ctl, line + 7, &err) == 0;
    } else if (strncmp(line, "strategy ", 9) == 0) {
        return ws_transport_prefs_parse(line + 9, &strategies, &err) == 0 &&
               ws_transport_prefs_set(c->store, ctl->name, &strategies, &err) == 0;
    } else if (strncmp(line, "source ", 7) == 0) {
        return ws_added_read(ctl, line);
    } else if (strncmp(line, "config ", 7) == 0) {
        return parse_declared(ctl, line);
    } else if (strncmp(line, "peer ", 5) == 0) {
        return parse_parent(c, ctl, line);
    } else if (strncmp(line, "engine add ", 11) == 0) {
        return add(arg, ctl, line) && set_needed(ctl, ctl->needed ? NULL : "");
    } else if (strncmp(line, WS_NEEDED_WORD, strlen(WS_NEEDED_WORD)) == 0) {
        return set_needed(ctl, line + strlen(WS_NEEDED_WORD));
    } else if (strncmp(line, "broken ", 7) == 0) {
        each_engine(ctl, line + 7, ws_condition_restore_broken);
    } else if (strncmp(line, "doubted ", 8) == 0) {
        each_engine(ctl, line + 8, ws_condition_restore_uncertain);
    } else if (strncmp(line, "asleep ", 7) == 0) {
        each_engine(ctl, line + 7, ws_condition_restore_asleep);
    } else if (strncmp(line, WS_DRAFT_WORD, strlen(WS_DRAFT_WORD)) == 0) {
        return parse_draft(ctl, line + strlen(WS_DRAFT_WORD));
    } else if (strncmp(line, "current ", 8) == 0) {
        return parse_version_id(line + 8, &ctl->target);
    } else if (strncmp(line, "released ", 9) == 0) {
        line += 9;
        return ws_text_digits(&line, &ctl->inherited_release) == 0 && *line++ == ' ' &&
               parse_version_id(line, &ctl->inherited);
    } else if (strcmp(line, "quarantined") == 0) {
        ctl->inherited_quarantine = true;
    } else if (strncmp(line, "pin ", 4) == 0) {
        return parse_version_id(line + 4, &pin) && ws_pins_append(&ctl->pins, pin) == 0;
    } else if (strncmp(line, "adapters ", 9) == 0) {
        return ws_adapters_read_run(&ctl->adapters, line + 9);
    } else if (strncmp(line, "stray ", 6) == 0) {
        return ws_adapters_read_stray(&ctl->adapters, line + 6);
    } else if (strncmp(line, "kept ", 5) == 0) {
        struct ws_kept_version kept = {0};
        return parse_version_id(line + 5, &kept.id) &&
               ws_kept_versions_append(&ctl->adapters.kept, kept) == 0;
    } else if (strncmp(line, "signed ", 7) == 0) {
        return ws_text_u64(line + 7, &ctl->signed_ns) == 0;
    } else if (strcmp(line, "switching") == 0) {
        each_engine(ctl, NULL, ws_condition_restore_uncertain);
    } else {
        return false;
    }
    return true;
}

const char *ws_settings_parse(struct ws_control *c, char *text, size_t n, ws_settings_add *add, void *arg,
                              char left_out[WS_MAX_COMMAND + 1])
{
    const char *why = check(text, n);
    struct ws_controller *ctl = NULL;
    char *save = NULL;
    left_out[0] = 0;
    for (char *line = why ? NULL : strtok_r(text + strlen(HEAD), "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        const bool is_model = strncmp(line, "model ", 6) == 0;
        if (is_model) {
            struct ws_words words = {0};
            struct ws_error err;
            bool good = ws_words_parse(line, strlen(line), &words, &err) == 0 && words.n == 2 &&
                        ws_name_is_model(words.word[1]);
            ctl = good ? ws_controller_get(c, words.word[1]) : NULL;
        }
        if (!ctl || (!is_model && !parse_line(c, ctl, line, add, arg)))
            ws_command_show(line, strlen(line), left_out);
    }
    return why;
}

int ws_settings_load(struct ws_control *c, ws_settings_add *add, void *arg, struct ws_error *err)
{
    char *text, left_out[WS_MAX_COMMAND + 1];
    size_t n = 0;
    if (!c->settings_path)
        return 0;
    struct ws_error unread;
    int rc = ws_state_file_read(c->settings_path, &text, &n, &unread);
    if (rc < 0)
        return damaged(c->settings_path, unread.text, err);
    if (!text)
        return 0;
    const char *why = ws_settings_parse(c, text, n, add, arg, left_out);
    free(text);
    if (why)
        return damaged(c->settings_path, why, err);
    return left_out[0] ? unknown(c->settings_path, left_out, err) : 0;
}
