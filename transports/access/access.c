#include "transports/access/access.h"
#include "transports/access/bearer.h"
#include "transports/access/local_token.h"
#include "transports/access/token_table.h"
#include "transports/base/audit_log.h"
#include "transports/base/clock.h"
#include "transports/base/entry.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LOOK_NS WS_SECOND_NS /* between looks whether the tokens file has changed */

struct ws_access {
    struct ws_access_options o; /* its files and socket are copies; token is NULL */
    struct ws_token_hash shared, local;
    bool has_shared, has_local;
    int local_held; /* the descriptor of its file; -1: none */
    char local_path[WS_LOCAL_TOKEN_PATH], hint[2 * WS_LOCAL_TOKEN_PATH + 160];
    pthread_mutex_t lock;
    /* guarded by lock; shared, too */
    struct ws_bearer_file shared_file;
    struct ws_token_table table;
    struct ws_stamp stamp; /* of what was read, or refused, last */
    uint64_t looked_ns;
};

/* Under lock. */
static void look_at_shared(struct ws_access *a, bool at_once)
{
    struct ws_token_hash hash;
    char *token = ws_bearer_file_look(&a->shared_file, at_once);
    if (!token)
        return;
    ws_token_hash(token, &hash);
    ws_secret_free(token);
    if (ws_token_hash_equal(&hash, &a->shared))
        return;
    a->shared = hash;
    ws_log(WS_LOG_INFO, "access", "token read file=%s", a->o.token_file);
    ws_audit_log_write(&(struct ws_audit_entry){.what = "tokens", .to = a->o.token_file, .is_logged = true});
}

/* Under lock. A file that cannot be read leaves what was read before. */
static void look_again(struct ws_access *a, bool at_once)
{
    const uint64_t now = ws_clock_ns();
    struct ws_token_table table;
    struct ws_error err = {0};
    look_at_shared(a, at_once);
    if (!a->o.tokens_file || (!at_once && now - a->looked_ns < LOOK_NS))
        return;
    a->looked_ns = now;
    const struct ws_stamp stamp =
        ws_stamp_of(a->o.tokens_file); /* before reading: what changes meanwhile is seen again */
    if (ws_stamp_equal(&stamp, &a->stamp))
        return;
    const int rc = ws_token_table_read(&table, a->o.tokens_file, &err);
    /* What cannot be read just now, for want of descriptors or memory, is tried again at the next look. */
    if (rc == 0 || rc == -EINVAL || rc == -EPERM || rc == -E2BIG)
        a->stamp = stamp;
    if (rc < 0) {
        ws_log(WS_LOG_WARN, "access", "the tokens of before hold on: %s", err.text);
        ws_audit_log_write(&(struct ws_audit_entry){.what = "tokens",
                                                    .to = a->o.tokens_file,
                                                    .outcome = WS_AUDIT_FAILED,
                                                    .error = err.text,
                                                    .is_logged = true});
        return;
    }
    ws_token_table_clear(&a->table);
    a->table = table;
    ws_log(WS_LOG_INFO, "access", "tokens read file=%s tokens=%zu", a->o.tokens_file, table.lines.len);
    ws_audit_log_write(&(struct ws_audit_entry){.what = "tokens", .to = a->o.tokens_file, .is_logged = true});
}

int ws_access_new(struct ws_access **out, const struct ws_access_options *o, struct ws_error *err)
{
    struct ws_access *a = calloc(1, sizeof(*a));
    int rc = 0;
    if (!a)
        return ws_error_set(err, ENOMEM, "no memory for a server's tokens");
    a->o = *o;
    a->local_held = -1;
    a->o.tokens_file = a->o.socket = a->o.token = a->o.token_file = NULL;
    a->has_shared = o->token;
    pthread_mutex_init(&a->lock, NULL);
    if (o->token || o->tokens_file || o->makes_local_token) /* clients show theirs */
        ws_secret_leave_no_core();
    if (a->has_shared)
        ws_token_hash(o->token, &a->shared);
    if ((o->tokens_file && !(a->o.tokens_file = strdup(o->tokens_file))) ||
        (o->token && o->token_file && !(a->o.token_file = strdup(o->token_file))) ||
        (o->socket && !(a->o.socket = strdup(o->socket))))
        rc = ws_error_set(err, ENOMEM, "no memory for a server's tokens");
    a->shared_file.path = a->o.token_file;
    if (rc == 0 && a->o.tokens_file) {
        a->stamp = ws_stamp_of(a->o.tokens_file);
        a->looked_ns = ws_clock_ns();
        rc = ws_token_table_read(&a->table, a->o.tokens_file, err);
    }
    if (rc < 0)
        ws_access_free(a);
    else
        *out = a;
    return rc;
}

void ws_access_end(struct ws_access *a)
{
    if (a && a->local_held >= 0)
        ws_local_token_end(a->local_path, a->local_held);
    if (a)
        a->local_held = -1;
}

void ws_access_free(struct ws_access *a)
{
    if (!a)
        return;
    ws_access_end(a);
    ws_token_table_clear(&a->table);
    pthread_mutex_destroy(&a->lock);
    free((char *)(uintptr_t)a->o.tokens_file);
    free((char *)(uintptr_t)a->o.token_file);
    free((char *)(uintptr_t)a->o.socket);
    free(a);
}

bool ws_access_asks(const struct ws_access *a)
{
    return a->o.tokens_file || a->has_shared;
}

int ws_access_make_local(struct ws_access *a, unsigned port, struct ws_error *err)
{
    if (!a->o.makes_local_token || a->o.insecure || ws_access_asks(a))
        return 0;
    a->local_held = ws_local_token_make(port, a->local_path, &a->local, err);
    if (a->local_held < 0)
        return a->local_held;
    a->has_local = true;
    const int n = snprintf(
        a->hint, sizeof(a->hint),
        "; the token that this server made for this host is in %s: give it by token-file=", a->local_path);
    if (a->o.socket)
        snprintf(a->hint + n, sizeof(a->hint) - (size_t)n, ", or use unix:%.250s, which needs none",
                 a->o.socket);
    return 0;
}

const char *ws_access_hint(const struct ws_access *a)
{
    return a->hint;
}

static void give(struct ws_identity *out, const char *name, unsigned roles)
{
    *out = (struct ws_identity){.is_shared = true, .roles = roles};
    snprintf(out->name, sizeof(out->name), "%s", name);
}

static unsigned roles_of_many(const struct ws_access *a)
{
    return WS_ROLES_OF_CLIENTS | (a->o.nodes ? (unsigned)WS_ROLE_NODE : 0);
}

static bool by_secret(struct ws_access *a, const char *secret, struct ws_identity *out)
{
    struct ws_token_hash hash;
    ws_token_hash(secret, &hash);
    const struct ws_token_line *line = ws_token_table_by_hash(&a->table, &hash);
    if (line)
        *out = line->identity;
    else if (a->has_shared && ws_token_hash_equal(&hash, &a->shared))
        give(out, WS_IDENTITY_SHARED, roles_of_many(a));
    else if (a->has_local && ws_token_hash_equal(&hash, &a->local))
        give(out, WS_IDENTITY_LOCAL, WS_ROLES_OF_CLIENTS | WS_ROLE_ADMIN);
    else
        return false;
    return true;
}

/* The first of its names that has a line; else one that has no role. */
static bool by_certificate(struct ws_access *a, const char *const *names, size_t n, struct ws_identity *out)
{
    const bool needs_token = a->has_shared && !a->o.tokens_file; /* as with wsync 0.1: both are asked for */
    if (n == 0 || needs_token)
        return false;
    for (size_t i = 0; i < n && a->o.tokens_file; i++) {
        const struct ws_token_line *line = ws_token_table_by_name(&a->table, names[i]);
        if (line) {
            *out = line->identity;
            return true;
        }
    }
    *out = (struct ws_identity){.roles = a->o.tokens_file ? 0 : WS_ROLES_OF_CLIENTS};
    snprintf(out->name, sizeof(out->name), WS_IDENTITY_CERT "%.*s",
             (int)(WS_IDENTITY_CHARS - strlen(WS_IDENTITY_CERT)), names[0]);
    return true;
}

void ws_access_identify(struct ws_access *a, const char *authorization, const char *const *names, size_t n,
                        struct ws_identity *out)
{
    /* A server that has no tokens is told nothing by one: a mount may send the same to all of its sources. */
    const bool bearer =
        authorization && strncasecmp(authorization, "Bearer ", 7) == 0 && (ws_access_asks(a) || a->has_local);
    *out = (struct ws_identity){0};
    pthread_mutex_lock(&a->lock);
    look_again(a, false);
    bool known = bearer ? by_secret(a, authorization + 7, out) : by_certificate(a, names, n, out);
    if (bearer && !known) { /* it may have been added just now, and its client would give up */
        look_again(a, true);
        known = by_secret(a, authorization + 7, out);
    }
    pthread_mutex_unlock(&a->lock);
    if (!known && a->o.insecure && !ws_access_asks(a))
        give(out, WS_IDENTITY_ANYBODY, roles_of_many(a));
}
