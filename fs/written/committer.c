#include "fs/written/committer.h"
#include "fs/written/descriptors.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/format/adapter_files.h"
#include "transports/format/commit_rule.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RETRY_FIRST_MS  500
#define RETRY_DOUBLINGS 7 /* to a minute */
#define PART_DOUBLINGS  4 /* to 8 s: the other nodes wait for this one meanwhile */
#define MAPPED_TRIES    5 /* a file that was just closed may be open for a moment */
#define MAPPED_MS       10
#define LOOK_NS         100000000            /* a folder to be tried again comes in time */
#define SETTLE_NS       (120 * WS_SECOND_NS) /* one try of publishing ends before by itself */

/* Of a folder that was published: is all of it new? A framework that writes its folder again writes each of these. */
static bool is_new(const struct written *w, const struct written_top *t)
{
    if (!t->was_published)
        return true;
    if (w->options->part == WS_COMMIT_OTHER) /* marker and config are the first node's */
        return t->new_weights;
    if (w->options->marker)
        return t->new_weights && t->new_marker;
    return t->new_weights && (t->new_config || faccessat(t->fd, WS_ADAPTER_CONFIG_NAME, F_OK, 0) < 0);
}

/* With the lock: is it to be looked at now? */
static bool is_ready(const struct written *w, const struct written_top *t, uint64_t *number)
{
    *number = 0;
    return t->is_due && !t->is_taken && t->not_before <= ws_clock_ms() && written_is_version(w, t, number) &&
           is_new(w, t) && !written_has_writer(w, t);
}

/* With the lock. */
static struct written_top *next_due(const struct written *w)
{
    struct written_top *best = NULL;
    uint64_t number, lowest = UINT64_MAX;

    for (struct written_top *t = w->tops; t; t = t->next) {
        if (!is_ready(w, t, &number) || number > lowest)
            continue;
        best = t;
        lowest = number;
    }
    return best;
}

static uint64_t number_of(struct written *w, const struct written_top *t)
{
    uint64_t number = 0;

    if (!w->options->pattern->is_constant) {
        (void)written_is_version(w, t, &number);
        return number;
    }
    /* Milliseconds: higher than what who ran before us gave. */
    number = ws_clock_day_ns() / 1000000;
    return number > w->last_number ? number : w->last_number + 1;
}

static int check_whole(const struct written *w, const struct written_top *t, struct ws_error *err)
{
    char path[64];
    struct ws_folder *folder = NULL;

    snprintf(path, sizeof(path), "/proc/self/fd/%d/.", t->fd);
    const int rc = ws_commit_rule_read(path, w->options->marker, w->options->part, &folder, err);
    ws_folder_free(folder);
    return rc;
}

bool written_is_whole(const struct written *w, const struct written_top *t, bool says_why)
{
    struct ws_error err = {0};
    const int rc = check_whole(w, t, &err);

    if (rc < 0 && says_why)
        ws_log(rc == -EAGAIN ? WS_LOG_DEBUG : WS_LOG_WARN, "share", "%s: %s", t->name, err.text);
    return rc == 0;
}

/* With the lock. Parts of lower versions are those that another node never wrote, as one that died: they would be waited with. */
static void leave_out_lower(struct written *w, uint64_t published)
{
    uint64_t number;

    for (struct written_top *t = w->tops; t; t = t->next)
        if (t->is_due && written_is_version(w, t, &number) && number < published) {
            t->is_due = false;
            t->is_left_out = true;
            ws_log(WS_LOG_INFO, "share", "%s: left out, as a higher version is published", t->name);
        }
}

/* With the lock: numbers of its files that are open through the mount. false: no memory. */
static bool collect_open(const struct written *w, const struct written_top *t, struct written_inos *out)
{
    for (size_t i = 0; i < WRITTEN_BUCKETS; i++)
        for (const struct written_node *n = w->buckets[i]; n; n = n->next)
            if (n->top == t && n->open && written_inos_append(out, n->ino) < 0)
                return false;
    return true;
}

/* Without the lock. */
static bool is_mapped(const struct written_top *t, const struct written_inos *open_ones, bool says_why)
{
    struct ws_error err = {0};
    int rc;

    for (int i = 0; (rc = written_check_mapped(t->fd, open_ones, &err)) < 0 && i < MAPPED_TRIES; i++)
        (void)poll(NULL, 0, MAPPED_MS);
    if (rc < 0 && says_why)
        ws_log(WS_LOG_WARN, "share", "%s: %s", t->name, err.text);
    return rc < 0;
}

/* With the lock, which it lets go of meanwhile. */
static void commit(struct written *w, struct written_top *t)
{
    enum ws_written_outcome outcome = WS_WRITTEN_FAILED;
    char name[sizeof(t->name)];
    struct ws_version_id id = {.version = number_of(w, t)};
    struct written_inos open_ones = {0};
    const bool was_mapped = t->is_mapped, can_look = collect_open(w, t, &open_ones);

    t->is_taken = true;
    t->is_due = t->is_left_out = false;
    t->refs++;
    w->publishing = t;
    memcpy(name, t->name, sizeof(name));
    pthread_mutex_unlock(&w->lock);
    const bool whole = written_is_whole(w, t, true); /* nobody changes it meanwhile */
    const bool mapped = whole && can_look && is_mapped(t, &open_ones, !was_mapped);
    written_inos_reset(&open_ones);
    if (whole && !mapped)
        outcome = w->options->publish(w->options->arg, t->fd, name, &id);
    pthread_mutex_lock(&w->lock);
    t->is_taken = false;
    w->publishing = NULL;
    t->is_mapped = mapped;
    if (mapped) { /* nothing tells when it ends */
        t->is_due = true;
        t->not_before = ws_clock_ms() + RETRY_FIRST_MS;
    } else if (whole && outcome == WS_WRITTEN_FAILED) {
        t->is_due = true;
        t->not_before = ws_clock_ms() + ((uint64_t)RETRY_FIRST_MS << t->failures);
        t->failures += t->failures < (w->options->part == WS_COMMIT_WHOLE ? RETRY_DOUBLINGS : PART_DOUBLINGS);
    } else if (whole) {
        t->was_published = true;
        t->is_left_out = outcome == WS_WRITTEN_LEFT_OUT;
        if (!t->is_left_out)
            t->id = id;
        t->new_weights = t->new_config = t->new_marker = false;
        t->failures = 0;
        w->last_number = id.version;
        if (w->options->part != WS_COMMIT_WHOLE)
            leave_out_lower(w, id.version);
    }
    written_top_drop(w, t);
    pthread_cond_broadcast(&w->changed);
}

void written_settle(struct written *w, struct written_top *top)
{
    const uint64_t until = ws_clock_ns() + SETTLE_NS;
    uint64_t number;

    if (!top || w->options->part == WS_COMMIT_OTHER) /* the other nodes may wait for who calls */
        return;
    top->refs++;
    while (!w->ends && ws_clock_ns() < until && (top->is_taken || is_ready(w, top, &number)))
        (void)ws_cond_wait_until(&w->changed, &w->lock, until);
    written_top_drop(w, top);
}

static void say(struct ws_commit_reply *out, enum ws_commit_state state, const char *text)
{
    out->state = state;
    snprintf(out->text, sizeof(out->text), "%s", text);
}

/* With the lock. false: its files say the rest. */
static bool say_known(const struct written *w, const struct written_top *top, bool was_due,
                      struct ws_commit_reply *out)
{
    uint64_t number;

    out->number = top ? top->id.version : 0;
    if (!top || !written_is_version(w, top, &number))
        say(out, WS_COMMIT_REFUSED, "its name is no version's, as --pattern of wsync share says");
    else if (top->is_left_out && !top->is_due)
        say(out, WS_COMMIT_REFUSED, "it is left out: what wsync share prints says why");
    else if (top->was_published && !top->new_weights && !top->is_due)
        say(out, was_due ? WS_COMMIT_DONE : WS_COMMIT_BEFORE, "");
    else if (written_has_writer(w, top))
        say(out, WS_COMMIT_PARTIAL, "a file in it is open for writing");
    else if (top->is_mapped)
        say(out, WS_COMMIT_PARTIAL, "a process has a file in it mapped, and may go on writing");
    else if (top->was_published && !is_new(w, top))
        say(out, WS_COMMIT_PARTIAL, "it was published before, and not all of it is written again yet");
    else
        return false;
    return true;
}

void written_commit_now(struct written *w, struct written_top *top, struct ws_commit_reply *out)
{
    struct ws_error err = {0};
    uint64_t number;

    pthread_mutex_lock(&w->lock);
    const bool was_due = top && (top->is_taken || is_ready(w, top, &number));
    written_settle(w, top);
    const bool known = say_known(w, top, was_due, out);
    pthread_mutex_unlock(&w->lock);
    if (known)
        return;
    if (check_whole(w, top, &err) < 0)
        say(out, WS_COMMIT_PARTIAL, err.text);
    else if (w->options->part == WS_COMMIT_OTHER)
        say(out, WS_COMMIT_DONE_PART, "");
    else
        say(out, WS_COMMIT_REFUSED,
            "it is whole and could not be published: what wsync share prints says why");
}

void *written_commit(void *arg)
{
    struct written *w = arg;

    pthread_mutex_lock(&w->lock);
    while (!w->ends) {
        struct written_top *t = next_due(w);
        if (t) {
            commit(w, t);
            continue;
        }
        (void)ws_cond_wait_until(&w->changed, &w->lock, ws_clock_ns() + LOOK_NS);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}
