#include "fs/switch/learned_file.h"
#include "transports/base/clock.h"
#include "transports/base/log.h"
#include "transports/base/state_file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HEAD     "wsync-learned 1\n"
#define EVERY_NS (5 * WS_SECOND_NS)

static char *path_of(const struct ws_control *c)
{
    char *path = NULL;
    if (!c->settings_path || asprintf(&path, "%s.learned", c->settings_path) < 0)
        return NULL;
    return path;
}

static int read_text(struct ws_store *s, char *text, size_t n, struct ws_error *err)
{
    if (strlen(text) != n || strncmp(text, HEAD, strlen(HEAD)) != 0)
        return ws_error_set(err, EBADMSG, "it does not begin as it should");
    return ws_store_learned_read(s, text + strlen(HEAD), err);
}

void ws_learned_file_read(struct ws_control *c)
{
    struct ws_error err;
    char *path = path_of(c), *text = NULL;
    size_t n;
    int rc = path ? ws_state_file_read(path, &text, &n, &err) : 0;
    if (rc == 0 && text)
        rc = read_text(c->store, text, n, &err);
    if (rc < 0)
        ws_log(WS_LOG_WARN, "mount",
               "what was learned is read in part only, and what is missing is learned again file=%s "
               "error=\"%s\"",
               path, err.text);
    c->saved_changes = ws_store_learned_changes(c->store);
    free(text);
    free(path);
}

static int write_text(struct ws_control *c, const char *path)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    int rc = f ? 0 : -ENOMEM;
    if (f) {
        fputs(HEAD, f);
        rc = ws_store_learned_print(c->store, f);
        if (fclose(f) != 0)
            rc = -ENOMEM;
    }
    if (rc == 0)
        rc = n > WS_MAX_STATE_FILE_BYTES ? -EFBIG : ws_state_file_write(path, text, n);
    free(text);
    return rc;
}

void ws_learned_file_save(struct ws_control *c, bool now)
{
    const uint64_t changes = ws_store_learned_changes(c->store);
    char *path =
        changes != c->saved_changes && (now || ws_clock_ns() - c->saved_ns >= EVERY_NS) ? path_of(c) : NULL;
    int rc;
    if (!path)
        return;
    if ((rc = write_text(c, path)) < 0)
        ws_log(WS_LOG_WARN, "mount",
               "what was learned is not kept, and is learned again by the next daemon: %s file=%s",
               strerror(-rc), path);
    else
        c->saved_changes = changes;
    c->saved_ns = ws_clock_ns();
    free(path);
}
