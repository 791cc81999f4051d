#include "transports/memory.h"
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* First number of a file; UINT64_MAX when there is none ("max"). */
static uint64_t read_number(const char *path)
{
    uint64_t n = UINT64_MAX;
    FILE *f = fopen(path, "re");
    if (!f)
        return n;
    if (fscanf(f, "%" SCNu64, &n) != 1)
        n = UINT64_MAX;
    fclose(f);
    return n;
}

static uint64_t read_field(const char *path, const char *key)
{
    char line[256];
    uint64_t found = 0;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        size_t k = strlen(key);
        if (strncmp(line, key, k) == 0 && (line[k] == ' ' || line[k] == ':')) {
            found = strtoull(line + k + 1, NULL, 10);
            break;
        }
    }
    if (f)
        fclose(f);
    return found;
}

static uint64_t mem_available(void)
{
    return read_field("/proc/meminfo", "MemAvailable") * 1024;
}

struct least {
    uint64_t bytes;
    char *text;
};

static void note(struct least *l, uint64_t bytes, const char *what)
{
    if (bytes >= l->bytes)
        return;
    l->bytes = bytes;
    if (l->text)
        snprintf(l->text, WS_ERROR_TEXT, "%s leaves %" PRIu64 " bytes", what, bytes);
}

/* What one cgroup has left: its limit less what it uses, where page cache of files can be given back. */
static void note_cgroup(struct least *l, const char *dir, bool v2)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t limit = read_number(path);
    if (limit == UINT64_MAX || limit > (1ULL << 60))
        return;
    snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    uint64_t used = read_number(path);
    snprintf(path, sizeof(path), "%s/memory.stat", dir);
    uint64_t cache = read_field(path, v2 ? "inactive_file" : "total_inactive_file");
    used = used == UINT64_MAX || used < cache ? 0 : used - cache;
    snprintf(path, sizeof(path), "the memory limit of cgroup %s", dir);
    note(l, used < limit ? limit - used : 0, path);
}

static void walk_up(struct least *l, const char *root, char *group, bool v2)
{
    char dir[PATH_MAX];
    for (;;) {
        snprintf(dir, sizeof(dir), "%s%s", root, group);
        note_cgroup(l, dir, v2);
        char *slash = strrchr(group, '/');
        if (!slash || group[0] == 0)
            return;
        *slash = 0;
    }
}

uint64_t ws_memory_available(char *text)
{
    struct least l = {.bytes = UINT64_MAX, .text = text};
    char line[PATH_MAX];
    note(&l, mem_available(), "MemAvailable of this machine");
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        if (controllers[1] == 0)
            walk_up(&l, "/sys/fs/cgroup", group, true);
        else if (strstr(controllers + 1, "memory"))
            walk_up(&l, "/sys/fs/cgroup/memory", group, false);
    }
    if (f)
        fclose(f);
    return l.bytes;
}
