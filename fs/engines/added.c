#include "fs/engines/added.h"
#include "fs/engines/own_folder.h"
#include "transports/base/secret.h"
#include "transports/s3/place.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_one(struct ws_added_source *a)
{
    if (!a)
        return;
    free(a->url);
    free(a->below);
    free(a);
}

static struct ws_added_source *make(const char *url, bool unprivileged, const char *below)
{
    struct ws_added_source *a = calloc(1, sizeof(*a));
    if (!a)
        return NULL;
    a->unprivileged = unprivileged;
    a->url = strdup(url);
    a->below = below ? strdup(below) : NULL;
    if (a->url && !a->below == !below)
        return a;
    free_one(a);
    return NULL;
}

static bool is_folder(const char *url)
{
    return strncmp(url, "dir:", 4) == 0;
}

/* Does it lead to files of the daemon's host: a folder, or a token file? */
static bool names_files(const char *url)
{
    struct ws_source_spec spec;
    return is_folder(url) || (ws_source_spec_parse(url, &spec, NULL) == 0 && spec.token_file);
}

/* Is it one of the sources that root mounted, in the same words? */
static bool is_own(const struct ws_control *c, const char *url)
{
    const size_t n = strlen(url);
    for (const char *at = c->options.source; at && *at; at += *at == ',') {
        const size_t k = strcspn(at, ",");
        if (k == n && memcmp(at, url, n) == 0)
            return true;
        at += k;
    }
    return false;
}

static int check_rights(const struct ws_control *c, const char *url, const struct ws_source_spec *spec,
                        bool unprivileged, const char *below, struct ws_error *err)
{
    const bool http = strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
    if (!unprivileged || is_own(c, url) || (http && !spec->token_file && !c->options.has_token) ||
        (names_files(url) && below))
        return 0;
    if (spec->token_file)
        return ws_error_set(err, EPERM,
                            "only root has this mount read any token file: have root add %s, or mount with "
                            "-o files=DIR for files below that one",
                            url);
    if (http)
        return ws_error_set(err, EPERM,
                            "only root has this mount send its token to another source: have root add it");
    if (is_folder(url))
        return ws_error_set(err, EPERM,
                            "only root has this mount read any folder: have root add %s, or mount with "
                            "-o files=DIR for folders below that one",
                            url);
    if (ws_s3_is_url(url))
        return ws_error_set(
            err, EPERM, "only root has this mount use its credentials of an object store: have root add %s",
            url);
    return ws_error_set(err, EPERM, "only root has this mount open a socket: have root add %s", url);
}

/* below: as the settings keep it, or would. */
static int check(const struct ws_control *c, const char *url, bool unprivileged, const char *below,
                 struct ws_error *err)
{
    struct ws_source_spec spec;
    int rc = ws_source_spec_parse(url, &spec, err);
    if (rc == 0)
        rc = check_rights(c, url, &spec, unprivileged, below, err);
    return rc == 0 ? ws_own_folder_check_source(c->options.mountpoint, &spec, err) : rc;
}

int ws_added_check(const struct ws_control *c, const char *url, bool unprivileged, struct ws_error *err)
{
    return check(c, url, unprivileged, c->options.files, err);
}

/* With control->adding. */
static int open_one(struct ws_control *c, const struct ws_controller *ctl, struct ws_added_source *a,
                    struct ws_error *err)
{
    const char *below = is_own(c, a->url) ? NULL : a->below;
    struct ws_source_spec spec;
    char *token = NULL;
    int rc =
        check(c, a->url, a->unprivileged, a->below, err); /* again: the mount may have got a token since */
    if (rc == 0)
        rc = ws_source_spec_parse(a->url, &spec, err);
    if (rc == 0)
        rc = ws_source_spec_token(&spec, below, &token, err);
    if (rc == 0)
        rc = ws_store_add_with(c->store, spec.url, ctl->name, below,
                               token || !a->unprivileged || is_own(c, a->url) ? token : "", spec.token_file,
                               err);
    ws_secret_free(token);
    a->is_open = a->is_open || rc == 0;
    return rc;
}

/* Takes the place of a source with the same URL. What root named stays root's. Returns the one that is not kept. */
static struct ws_added_source *keep(struct ws_controller *ctl, struct ws_added_source *a)
{
    struct ws_added_source **at = &ctl->added, *old;
    while (*at && !ws_source_spec_is_same((*at)->url, a->url))
        at = &(*at)->next;
    old = *at;
    if (old && a->unprivileged && !old->unprivileged) {
        old->is_open = true;
        return a;
    }
    a->next = old ? old->next : NULL;
    *at = a;
    return old;
}

int ws_added_add(struct ws_control *c, struct ws_controller *ctl, const char *url, bool unprivileged,
                 struct ws_error *err)
{
    struct ws_added_source *a =
        make(url, unprivileged, unprivileged && names_files(url) ? c->options.files : NULL);
    if (!a)
        return ws_error_set(err, ENOMEM, "no memory for a source");
    pthread_mutex_lock(&c->adding);
    int rc = open_one(c, ctl, a, err);
    if (rc == 0) {
        pthread_mutex_lock(&c->lock);
        a = keep(ctl, a);
        pthread_mutex_unlock(&c->lock);
    }
    pthread_mutex_unlock(&c->adding);
    free_one(a);
    return rc;
}

int ws_added_remove(struct ws_control *c, struct ws_controller *ctl, struct ws_error *err)
{
    pthread_mutex_lock(&c->adding);
    int rc = ws_store_remove(c->store, ctl->name, err);
    pthread_mutex_lock(&c->lock);
    if (rc == -ENOENT && ctl->added) /* none of its sources could be opened */
        rc = 0;
    if (rc == 0)
        ws_added_free(ctl);
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(&c->adding);
    return rc;
}

void ws_added_take_back(struct ws_control *c, struct ws_controller *ctl, const char *url)
{
    struct ws_added_source *found = NULL;
    struct ws_source_spec spec;
    pthread_mutex_lock(&c->adding);
    pthread_mutex_lock(&c->lock);
    for (struct ws_added_source **at = &ctl->added; *at; at = &(*at)->next)
        if (strcmp((*at)->url, url) == 0 && !(*at)->unprivileged) {
            found = *at;
            *at = found->next;
            break;
        }
    pthread_mutex_unlock(&c->lock);
    if (found && found->is_open && ws_source_spec_parse(url, &spec, NULL) == 0)
        ws_store_remove_source(c->store, ctl->name, spec.url);
    pthread_mutex_unlock(&c->adding);
    free_one(found);
}

static bool open_kept(struct ws_control *c, const struct ws_controller *ctl, struct ws_added_source *a)
{
    char command[WS_MAX_COMMAND + 1];
    struct ws_error err = {0};
    snprintf(command, sizeof(command), "add %s %s", ctl->name, a->url);
    if (open_one(c, ctl, a, &err) < 0) {
        if (!a->was_reported)
            (void)ws_controller_fail(c, &c->root, command, &err);
        a->was_reported = true;
    } else if (a->was_reported) {
        pthread_mutex_lock(&c->lock);
        ws_controller_clear_error(&c->root, command);
        pthread_mutex_unlock(&c->lock);
    }
    return a->is_open;
}

void ws_added_open(struct ws_control *c)
{
    bool lacks = false;
    pthread_mutex_lock(&c->adding);
    pthread_mutex_lock(&c->lock);
    struct ws_controller *ctl = c->controllers; /* only ever added to, at this end */
    pthread_mutex_unlock(&c->lock);
    for (; ctl; ctl = ctl->next) {
        for (struct ws_added_source *a = ctl->added; a && !atomic_load(&c->stop); a = a->next)
            lacks = (!a->is_open && !open_kept(c, ctl, a)) || lacks;
    }
    atomic_store(&c->lacks_sources, lacks);
    pthread_mutex_unlock(&c->adding);
}

/* --- in the settings --- */

void ws_added_print(const struct ws_controller *ctl, FILE *f)
{
    for (const struct ws_added_source *a = ctl->added; a; a = a->next) {
        fputs("source ", f);
        ws_words_quote(f, a->url);
        fprintf(f, " %s%s%s\n", a->unprivileged ? "others" : "root", a->below ? " " : "",
                a->below ? a->below : "");
    }
}

bool ws_added_read(struct ws_controller *ctl, const char *line)
{
    struct ws_error err;
    struct ws_words *w = calloc(1, sizeof(*w));
    struct ws_added_source *a = NULL;
    if (w && ws_words_parse(line, strlen(line), w, &err) == 0 && (w->n == 3 || w->n == 4) &&
        (strcmp(w->word[2], "root") == 0 || strcmp(w->word[2], "others") == 0))
        a = make(w->word[1], strcmp(w->word[2], "others") == 0, w->n == 4 ? w->word[3] : NULL);
    free(w);
    if (!a)
        return false;
    free_one(keep(ctl, a));
    return true;
}

void ws_added_free(struct ws_controller *ctl)
{
    while (ctl->added) {
        struct ws_added_source *a = ctl->added;
        ctl->added = a->next;
        free_one(a);
    }
}
