#include "fs/fuse/options.h"
#include "fs/control/config_file.h"
#include "fs/engines/own_folder.h"
#include "fs/fuse/exclusions.h"
#include "fs/fuse/given.h"
#include "fs/fuse/option_table.h"
#include "fs/fuse/place.h"
#include "fs/store/derived.h"
#include "fs/store/needs.h"
#include "transports/base/log.h"
#include "transports/base/secret.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HUNG_S 30

bool ws_mount_option_help(size_t i, const char **name, const char **meaning)
{
    static _Thread_local char text[96];
    size_t seen = 0;
    const struct ws_mount_option *t;
    for (size_t k = 0; (t = ws_mount_option_at(k)); k++) {
        if (!t->meaning || seen++ != i)
            continue;
        snprintf(text, sizeof(text), "%s%s%s", t->name, t->value ? "=" : "", t->value ? t->value : "");
        *name = text;
        *meaning = t->meaning;
        return true;
    }
    return false;
}

void ws_mount_options_init(struct ws_mount_options *o)
{
    *o = (struct ws_mount_options){
        .given = -1,
        .uid = geteuid(),
        .gid = getegid(),
        .ctl_gid = (gid_t)-1,
        .mode = 0444,
        .hung_s = HUNG_S,
        .allow_other = geteuid() == 0,
        .deadline_ms = WS_READ_DEADLINE_MS,
        .store.delta_cache_bytes = WS_DELTA_CACHE_GROWS,
    };
}

static int parse_one(struct ws_mount_options *o, const char *word, struct ws_error *err)
{
    size_t n = strcspn(word, "=");
    const char *value = word[n] ? word + n + 1 : NULL;
    if (strncmp(word, "x-", 2) == 0 || strncmp(word, "comment=", 8) == 0)
        return 0; /* systemd's and people's own, in fstab */
    const struct ws_mount_option *t;
    for (size_t i = 0; (t = ws_mount_option_at(i)); i++) {
        if (strlen(t->name) != n || strncmp(word, t->name, n) != 0)
            continue;
        if (!value != !t->value)
            return ws_error_set(err, EINVAL, "the mount option %s %s", t->name,
                                t->value ? "needs a value" : "takes no value");
        o->why.code = 0;
        int rc = t->set(o, value);
        if (rc == -EINVAL)
            return ws_error_set(err, EINVAL, "the mount option %s takes %s, not '%.100s'", t->name, t->value,
                                value);
        if (rc < 0)
            return ws_error_set(err, -rc, "the mount option %s=%.200s: %s", t->name, value,
                                o->why.code ? o->why.text : strerror(-rc));
        return 0;
    }
    return ws_error_set(err, EINVAL,
                        "'%.*s' is no mount option of wsync; 'wsync mount --list-options' lists them", (int)n,
                        word);
}

/* What group= stands for, once no option contradicts it. */
static int use_group(struct ws_mount_options *o, struct ws_error *err)
{
    const char *other = o->has_mode         ? "mode"
                        : o->has_gid        ? "gid"
                        : o->no_allow_other ? "no_allow_other"
                                            : NULL;
    if (!o->group)
        return 0;
    if (other)
        return ws_error_set(
            err, EINVAL,
            "the mount options group and %s exclude each other: group=%.100s stands for that group's gid, "
            "mode=0440 and allow_other",
            other, o->group);
    o->mode = 0440;
    o->allow_other = true;
    return ws_mount_option_group(o->group, &o->gid) < 0
               ? ws_error_set(err, EINVAL, "there is no group '%.100s'", o->group)
               : 0;
}

int ws_mount_options_read_needs(struct ws_mount_options *o, struct ws_error *err)
{
    struct ws_config_model *all = NULL;
    int rc = o->config ? ws_config_file_read(o->config, &all, err) : 0;

    for (const struct ws_config_model *m = all; m && rc == 0; m = m->next) {
        char *text = NULL;
        if (!m->need)
            continue;
        const char *kept =
            asprintf(&text, "%s=%s", m->name, m->need) < 0 ? NULL : ws_mount_option_keep(o, text);
        free(text);
        if (!kept)
            rc = ws_error_set(err, ENOMEM, "no memory for what is needed of %s", m->name);
        else if (o->n_needs == WS_MAX_NEEDS)
            rc = ws_error_set(err, E2BIG, "%s and need= together say of more than %d models what is needed",
                              o->config, WS_MAX_NEEDS);
        else
            o->needs[o->n_needs++] = kept;
    }
    ws_config_file_free(all);
    return rc < 0 ? rc : ws_exclusions_needs(o, err);
}

int ws_mount_options_parse(struct ws_mount_options *o, const char *text, struct ws_error *err)
{
    char *copy = strdup(text);
    int rc = copy ? 0 : ws_error_set(err, ENOMEM, "no memory for options");
    char *save = NULL;
    for (char *word = copy ? strtok_r(copy, ",", &save) : NULL; word && rc == 0;
         word = strtok_r(NULL, ",", &save))
        rc = parse_one(o, word, err);
    free(copy);
    if (rc == 0)
        rc = use_group(o, err);
    if (rc == 0)
        rc = ws_exclusions_derive(o, err);
    if (rc == 0)
        rc = ws_exclusions_needs(o, err);
    if (o->no_allow_other)
        o->allow_other = false;
    return rc;
}

/* Of all that the options name, and of a source that is a folder, a socket, or has a token's file. */
static int check_all_outside(const struct ws_mount_options *o, struct ws_error *err)
{
    char *copy = strdup(o->source), *save = NULL;
    int rc = copy ? 0 : ws_error_set(err, ENOMEM, "no memory for the sources");

    for (size_t i = 0; i < o->n_strings && rc == 0; i++)
        if (o->strings[i][0] == '/' && o->strings[i] != o->mountpoint)
            rc = ws_own_folder_check(o->mountpoint, o->strings[i], err);
    for (char *text = copy ? strtok_r(copy, ",", &save) : NULL; text && rc == 0;
         text = strtok_r(NULL, ",", &save)) {
        struct ws_source_spec spec;
        rc = ws_source_spec_parse(text, &spec, err);
        if (rc == 0)
            rc = ws_own_folder_check_source(o->mountpoint, &spec, err);
    }
    free(copy);
    return rc;
}

/* The tokens of the sources that have their own, read before the daemon goes anywhere else. */
static int read_source_tokens(struct ws_mount_options *o, const char *source, struct ws_error *err)
{
    char *copy = strdup(source), *save = NULL;
    size_t i = 0;
    int rc = copy ? 0 : ws_error_set(err, ENOMEM, "no memory for the sources");
    for (char *text = copy ? strtok_r(copy, ",", &save) : NULL; text && rc == 0 && i < WS_MAX_SOURCES;
         text = strtok_r(NULL, ",", &save), i++) {
        struct ws_source_spec spec;
        rc = ws_source_spec_parse(text, &spec, err);
        if (rc == 0)
            rc = ws_source_spec_token(&spec, NULL, &o->source_tokens[i], err);
    }
    free(copy);
    return rc;
}

/* Whoever mounts it decides who may read; users are those of its namespace, where this process's number may be anybody's. */
static int check_given(struct ws_mount_options *o, const char *mountpoint, struct ws_error *err)
{
    const int named = ws_given_number(mountpoint);
    if (named >= 0 && (o->given >= 0 || o->given_socket))
        return ws_error_set(err, EINVAL,
                            "%s is a descriptor already, so fuse-fd= and fuse-socket= are too much: with "
                            "them name the folder "
                            "where engines see the mount",
                            mountpoint);
    if (o->given >= 0 && o->given_socket)
        return ws_error_set(err, EINVAL, "the mount options fuse-fd and fuse-socket exclude each other");
    if (named >= 0)
        o->given = named;
    if (o->given < 0 && !o->given_socket)
        return 0;
    if (o->reads == WS_READS_LINK)
        return ws_error_set(
            err, EINVAL,
            "reads=link mounts a second file system below the mount, which is not for a mount that somebody "
            "else makes: use reads=auto");
    if (mountpoint[0] != '/')
        return ws_error_set(
            err, EINVAL, "'%s' is no absolute path: name the folder where engines see the mount", mountpoint);
    if (o->run_as.name)
        return ws_error_set(err, EINVAL,
                            "run-as=%s is for a daemon that mounts: with a mount that somebody else makes, "
                            "start it as that user",
                            o->run_as.name);
    o->uid = o->has_uid ? o->uid : 0;
    o->gid = o->has_gid || o->group ? o->gid : 0;
    return o->given >= 0 ? ws_given_check(o->given, err) : 0;
}

/* Root's folder of settings stays the default. */
static int check_run_as(struct ws_mount_options *o, struct ws_error *err)
{
    if (!o->run_as.name)
        return 0;
    if (o->reads == WS_READS_LINK)
        return ws_error_set(err, EINVAL,
                            "run-as= and reads=link exclude each other: links lead into a second file "
                            "system, which the daemon "
                            "mounts once it is that user; use reads=auto");
    if (!o->state)
        o->state = (char *)(uintptr_t)ws_mount_option_keep(o, "/var/lib/wsync");
    return o->state ? 0 : ws_error_set(err, ENOMEM, "no memory for options");
}

bool ws_mount_options_is_given(const struct ws_mount_options *o)
{
    return o->given >= 0 || o->given_socket;
}

int ws_mount_options_place(struct ws_mount_options *o, const char *source, const char *mountpoint,
                           struct ws_error *err)
{
    char given[PATH_MAX], real[PATH_MAX];
    if (!source[0])
        return ws_error_set(
            err, EINVAL,
            "'' is no source; write http://HOST:PORT, https://HOST:PORT, unix:/PATH or dir:/PATH");
    snprintf(given, sizeof(given), "%.*s", (int)ws_place_bare(mountpoint), mountpoint);
    int rc = check_given(o, given, err);
    if (rc == 0)
        rc = check_run_as(o, err);
    if (rc == 0 && ws_mount_options_is_given(o))
        snprintf(real, sizeof(real), "%s", given);
    else if (rc == 0)
        rc = ws_own_folder_resolve(given, real, err);
    if (rc == 0) {
        o->source = (char *)(uintptr_t)ws_mount_option_keep(o, source);
        o->mountpoint = (char *)(uintptr_t)ws_mount_option_keep(o, real);
    }
    if (rc == 0 && (!o->source || !o->mountpoint))
        rc = ws_error_set(err, ENOMEM, "no memory for options");
    if (rc == 0)
        rc = check_all_outside(o, err);
    return rc < 0 ? rc : read_source_tokens(o, source, err);
}

/* Which sources the general token goes to: an operator who names several is to see it. */
static void log_token_of(const struct ws_mount_options *o, const struct ws_source_spec *s, const char *own)
{
    const bool http = strncmp(s->url, "http", 4) == 0;
    if (http && (own || o->store.source.token))
        ws_log(WS_LOG_INFO, "mount", "sends a token to=%s token=%s", s->url,
               own ? "its own" : "of token-file=");
}

int ws_mount_options_add_views(const struct ws_mount_options *o, struct ws_store *store, struct ws_error *err)
{
    int rc = 0;

    if (!o->n_derive && o->n_derive_ignore)
        return ws_error_set(err, EINVAL, "the mount option derive-ignore is for the views of derive=");
    for (size_t i = 0; i < o->n_derive && rc == 0; i++)
        rc = ws_derived_add(store, o->derive[i], err);
    for (size_t i = 0; i < o->n_derive_ignore && rc == 0; i++)
        rc = ws_derived_ignore(store, o->derive_ignore[i], err);
    for (size_t i = 0; i < o->n_needs && rc == 0; i++)
        rc = ws_needs_add(store, o->needs[i], err);
    if (o->derive_any_family)
        ws_derived_any_family(store);
    return rc;
}

int ws_mount_options_add_sources(const struct ws_mount_options *o, struct ws_store *store,
                                 struct ws_error *err)
{
    char *copy = strdup(o->source), *save = NULL;
    size_t i = 0;
    int rc = copy ? 0 : ws_error_set(err, ENOMEM, "no memory for the sources");
    for (char *text = copy ? strtok_r(copy, ",", &save) : NULL; text && rc == 0;
         text = strtok_r(NULL, ",", &save), i++) {
        struct ws_source_spec spec;
        const char *own = i < WS_MAX_SOURCES ? o->source_tokens[i] : NULL;
        rc = ws_source_spec_parse(text, &spec, err);
        if (rc == 0)
            rc = ws_store_add_with(store, spec.url, NULL, NULL, own, spec.token_file, err);
        if (rc == 0)
            log_token_of(o, &spec, own);
    }
    free(copy);
    return rc;
}

void ws_mount_options_release(struct ws_mount_options *o)
{
    for (size_t i = 0; i < o->n_strings; i++)
        free(o->strings[i]);
    for (size_t i = 0; i < o->n_tokens; i++)
        ws_secret_free(o->tokens[i]);
    o->n_strings = o->n_tokens = 0;
    for (size_t i = 0; i < WS_MAX_SOURCES; i++) {
        ws_secret_free(o->source_tokens[i]);
        o->source_tokens[i] = NULL;
    }
    ws_trust_reset(&o->trust);
}
