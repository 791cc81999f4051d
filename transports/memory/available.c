#include "transports/memory/available.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNKNOWN   UINT64_MAX
#define UNLIMITED (1ULL << 60) /* cgroup v1 has only a number that no machine reaches */

struct least {
    const char *root;
    uint64_t bytes;
    char *text;
};

/* First number of a file; UNKNOWN when there is none ("max"). */
static uint64_t read_number(const char *path)
{
    char line[64];
    uint64_t n = UNKNOWN;
    FILE *f = fopen(path, "re");
    if (!f)
        return n;
    if (fgets(line, sizeof(line), f) && line[0] >= '0' && line[0] <= '9')
        n = strtoull(line, NULL, 10);
    fclose(f);
    return n;
}

/* The number after `key` at the start of a line. */
static uint64_t read_field(const char *path, const char *key)
{
    char line[256];
    uint64_t found = UNKNOWN;
    size_t k = strlen(key);
    FILE *f = fopen(path, "re");
    if (!f)
        return found;
    while (found == UNKNOWN && fgets(line, sizeof(line), f))
        if (strncmp(line, key, k) == 0 && (line[k] == ' ' || line[k] == ':'))
            found = strtoull(line + k + 1, NULL, 10);
    fclose(f);
    return found;
}

/* Keeps the least. True: this is it, and the caller wants a text. */
static bool record(struct least *l, uint64_t bytes)
{
    if (bytes >= l->bytes)
        return false;
    l->bytes = bytes;
    return l->text != NULL;
}

static void record_machine(struct least *l)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/proc/meminfo", l->root);
    uint64_t kib = read_field(path, "MemAvailable");
    if (kib != UNKNOWN && record(l, kib * 1024))
        snprintf(l->text, WS_ERROR_TEXT, "this machine has %" PRIu64 " MiB left (MemAvailable)", kib / 1024);
}

/* What one cgroup has left: its limit less what it uses, where page cache of files can be given back. */
static void record_cgroup(struct least *l, const char *dir, bool v2)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t limit = read_number(path);
    if (limit > UNLIMITED)
        return;
    snprintf(path, sizeof(path), "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    uint64_t used = read_number(path);
    snprintf(path, sizeof(path), "%s/memory.stat", dir);
    uint64_t cache = read_field(path, v2 ? "inactive_file" : "total_inactive_file");
    used = used == UNKNOWN ? 0 : cache != UNKNOWN && cache < used ? used - cache : used;
    uint64_t left = used < limit ? limit - used : 0;
    if (record(l, left))
        snprintf(l->text, WS_ERROR_TEXT, "the limit of %" PRIu64 " MiB of cgroup %s leaves %" PRIu64 " MiB",
                 limit >> 20, dir + strlen(l->root), left >> 20);
}

/* A limit of any group above binds too. In a container the group's own path may not exist here, and its
 * limit is found at the mount's root. */
static void record_cgroups_up(struct least *l, const char *mount, char *group, bool v2)
{
    char dir[PATH_MAX];
    for (char *slash; (slash = strrchr(group, '/')); *slash = 0) {
        snprintf(dir, sizeof(dir), "%s%s%s", l->root, mount, group);
        record_cgroup(l, dir, v2);
    }
    snprintf(dir, sizeof(dir), "%s%s", l->root, mount);
    record_cgroup(l, dir, v2);
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == 0))
            return true;
    return false;
}

uint64_t ws_memory_available_below(const char *root, char *text)
{
    struct least l = {.root = root, .bytes = UNKNOWN, .text = text};
    char line[PATH_MAX];
    if (text)
        snprintf(text, WS_ERROR_TEXT, "the system does not report how much memory is left");
    record_machine(&l);
    snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof(line), f)) { /* "4:memory:/group", and "0::/group" for v2 */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        controllers++;
        if (*controllers == 0)
            record_cgroups_up(&l, "/sys/fs/cgroup", group, true);
        else if (has_word(controllers, "memory"))
            record_cgroups_up(&l, "/sys/fs/cgroup/memory", group, false);
    }
    if (f)
        fclose(f);
    return l.bytes;
}

uint64_t ws_memory_available(char *text)
{
    return ws_memory_available_below("", text);
}

int ws_memory_check(uint64_t bytes, const char *what, struct ws_error *err)
{
    char text[WS_ERROR_TEXT];
    uint64_t left = ws_memory_available(text);
    if (bytes <= left)
        return 0;
    return ws_error_set(err, ENOMEM, "no memory for %s: %" PRIu64 " MiB are needed and %.500s", what,
                        (bytes + (1 << 20) - 1) >> 20, text);
}

/* One thread at a time: where another allocator is in use (jemalloc, a sanitizer's), this is the first call of
 * glibc's own, which initializes its arena without a lock. */
void ws_memory_trim(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    (void)malloc_trim(0);
    pthread_mutex_unlock(&lock);
}
