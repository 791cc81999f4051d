#include "fs/kept_regions.h"
#include <stdio.h>
#include <unistd.h>

int ws_kept_regions_take(struct ws_kept_regions *r, const char *label)
{
    for (size_t i = 0; i < r->len; i++)
        if (strcmp(r->ptr[i].label, label) == 0) {
            const int fd = r->ptr[i].fd;
            ws_kept_regions_remove(r, i);
            return fd;
        }
    return -1;
}

void ws_kept_regions_forget(struct ws_kept_regions *r, const char *label)
{
    const int fd = ws_kept_regions_take(r, label);
    if (fd >= 0)
        close(fd);
}

void ws_kept_regions_add(struct ws_kept_regions *r, const char *label, int fd)
{
    struct ws_kept_region one = {.fd = fd};
    ws_kept_regions_forget(r, label);
    snprintf(one.label, sizeof(one.label), "%.*s", WS_KEEPER_LABEL - 1, label);
    if (fd >= 0 && ws_kept_regions_append(r, one) < 0)
        close(fd);
}

void ws_kept_regions_close(struct ws_kept_regions *r)
{
    for (size_t i = 0; i < r->len; i++)
        close(r->ptr[i].fd);
    ws_kept_regions_reset(r);
}
