#include "fs/youngest.h"
#include "transports/base/limits.h"
#include "transports/base/log.h"
#include "transports/base/name.h"
#include "transports/base/state_file.h"
#include "transports/base/text.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD "wsync-signed 1\n"

struct ws_youngest {
    char *path;
    size_t n;
    struct entry {
        char model[WS_MAX_NAME + 1];
        uint64_t signed_ns;
    } entries[WS_MAX_MODELS];
};

static struct entry *find_or_add(struct ws_youngest *y, const char *model)
{
    for (size_t i = 0; i < y->n; i++)
        if (strcmp(y->entries[i].model, model) == 0)
            return &y->entries[i];
    if (y->n == WS_MAX_MODELS)
        return NULL;
    snprintf(y->entries[y->n].model, sizeof(y->entries[y->n].model), "%s", model);
    y->entries[y->n].signed_ns = 0;
    return &y->entries[y->n++];
}

/* Changes text. */
static bool parse(struct ws_youngest *y, char *text)
{
    char *rest = text + strlen(HEAD), *line;

    if (strncmp(text, HEAD, strlen(HEAD)) != 0)
        return false;
    while ((line = strsep(&rest, "\n")) && rest) {
        char *model = strchr(line, ' ');
        struct entry *e;
        if (!model)
            return false;
        *model++ = '\0';
        if (!ws_name_is_model(model) || !(e = find_or_add(y, model)) || ws_text_u64(line, &e->signed_ns) < 0)
            return false;
    }
    return line && !*line; /* the last line is whole */
}

static int read_file(struct ws_youngest *y, struct ws_error *err)
{
    char *text;
    size_t n;
    int rc = ws_state_file_read(y->path, &text, &n, err);

    if (rc == 0 && text && (strlen(text) != n || !parse(y, text)))
        rc = ws_error_set(
            err, EINVAL,
            "%s is damaged, or of a newer release: it says which signed versions were exported, so "
            "that no older one is taken for the latest; remove it, if that may be forgotten",
            y->path);
    free(text);
    return rc;
}

int ws_youngest_open(struct ws_youngest **out, const char *path, struct ws_error *err)
{
    struct ws_youngest *y = calloc(1, sizeof(*y));
    int rc = 0;

    *out = NULL;
    if (!y || (path && !(y->path = strdup(path)))) {
        free(y);
        return ws_error_set(err, ENOMEM, "no memory");
    }
    if (y->path)
        rc = read_file(y, err);
    if (rc == 0)
        *out = y;
    else
        ws_youngest_free(y);
    return rc;
}

void ws_youngest_free(struct ws_youngest *y)
{
    if (!y)
        return;
    free(y->path);
    free(y);
}

static int write_file(const struct ws_youngest *y)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    if (!f)
        return -ENOMEM;
    fputs(HEAD, f);
    for (size_t i = 0; i < y->n; i++)
        fprintf(f, "%" PRIu64 " %s\n", y->entries[i].signed_ns, y->entries[i].model);
    int rc = fclose(f) == 0 ? ws_state_file_write(y->path, text, n) : -ENOMEM;
    free(text);
    return rc;
}

bool ws_youngest_take(struct ws_youngest *y, const char *model, uint64_t signed_ns)
{
    struct entry *e = find_or_add(y, model);
    int rc = 0;

    if (!e || signed_ns < e->signed_ns)
        return false;
    if (signed_ns == e->signed_ns)
        return true;
    e->signed_ns = signed_ns;
    if (y->path && (rc = write_file(y)) < 0)
        ws_log(WS_LOG_ERROR, "export",
               "cannot write %s: %s; after a restart an older version of %s may be taken for the latest",
               y->path, strerror(-rc), model);
    return true;
}
