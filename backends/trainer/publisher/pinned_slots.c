#include "backends/trainer/publisher/pinned_slots.h"
#include "transports/base/log.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_UNUSED_VERSIONS 4 /* more than an agent has slots in turn */

struct pinned {
    LIST_ENTRY(pinned) entry;
    dev_t dev;
    ino_t ino;
    uint64_t slot;
    struct ws_region *region;
    const struct ws_device_ops *ops;
    int device;
    bool pinned;
    unsigned used_in; /* the last version that used it */
};

struct ws_pinned_slots {
    LIST_HEAD(pinned_list, pinned) all;
    unsigned version;
    char why_not[WS_ERROR_TEXT];
};

struct ws_pinned_slots *ws_pinned_slots_new(void)
{
    return calloc(1, sizeof(struct ws_pinned_slots));
}

static void release_mapping(struct pinned *k)
{
    LIST_REMOVE(k, entry);
    if (k->pinned)
        k->ops->unpin(k->device, ws_region_data(k->region));
    ws_region_free(k->region);
    free(k);
}

static struct pinned *find(const struct ws_pinned_slots *set, const struct stat *st, uint64_t bytes)
{
    for (struct pinned *k = LIST_FIRST(&set->all); k; k = LIST_NEXT(k, entry))
        if (k->dev == st->st_dev && k->ino == st->st_ino && ws_region_size(k->region) == bytes)
            return k;
    return NULL;
}

static int add(struct ws_pinned_slots *set, uint64_t slot, int fd, const struct stat *st, uint64_t bytes,
               const struct ws_device_ops *ops, int device, struct pinned **out, struct ws_error *err)
{
    struct ws_error why = {0};
    struct pinned *k = calloc(1, sizeof(*k));
    if (!k) {
        close(fd);
        return ws_error_set(err, ENOMEM, "no memory for a slot");
    }
    int rc = ws_region_import(&k->region, fd, bytes, true, err);
    if (rc < 0) {
        free(k);
        return rc;
    }
    k->dev = st->st_dev;
    k->ino = st->st_ino;
    k->slot = slot;
    k->ops = ops;
    k->device = device;
    k->pinned = ops->pin(device, ws_region_data(k->region), bytes, &why) == 0;
    if (!k->pinned && strcmp(set->why_not, why.text) != 0)
        ws_log(WS_LOG_WARN, "publisher", "copies go by way of a small pinned buffer: %s", why.text);
    if (!k->pinned)
        memcpy(set->why_not, why.text, sizeof(set->why_not));
    LIST_INSERT_HEAD(&set->all, k, entry);
    *out = k;
    return 0;
}

int ws_pinned_slots_map(struct ws_pinned_slots *set, uint64_t slot, int fd, uint64_t bytes,
                        const struct ws_device_ops *ops, int device, struct ws_region **out,
                        struct ws_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        int code = errno;
        close(fd);
        return ws_error_set(err, code, "cannot look at a slot's memory: %s", strerror(code));
    }
    struct pinned *k = find(set, &st, bytes);
    int rc = 0;
    if (k) {
        close(fd);
        rc = ws_region_protect(k->region, true, err);
    } else {
        rc = add(set, slot, fd, &st, bytes, ops, device, &k, err);
    }
    if (rc < 0)
        return rc;
    k->used_in = set->version;
    k->slot = slot; /* another one of its files may have been exchanged */
    *out = k->region;
    return 0;
}

bool ws_pinned_slots_has(const struct ws_pinned_slots *set, const struct ws_region *r)
{
    for (const struct pinned *k = LIST_FIRST(&set->all); k; k = LIST_NEXT(k, entry))
        if (k->region == r)
            return k->pinned;
    return false;
}

const char *ws_pinned_slots_why_not(const struct ws_pinned_slots *set)
{
    return set->why_not;
}

static bool contains_slot(const json_t *slots, uint64_t slot)
{
    for (size_t i = 0; i < json_array_size(slots); i++)
        if ((uint64_t)json_integer_value(json_array_get(slots, i)) == slot)
            return true;
    return false;
}

void ws_pinned_slots_retain(struct ws_pinned_slots *set, const json_t *slots)
{
    for (struct pinned *k = LIST_FIRST(&set->all), *next; slots && k; k = next) {
        next = LIST_NEXT(k, entry);
        if (!contains_slot(slots, k->slot))
            release_mapping(k);
    }
}

json_t *ws_pinned_slots_to_json(const struct ws_pinned_slots *set)
{
    json_t *all = json_array();
    for (const struct pinned *k = LIST_FIRST(&set->all); k; k = LIST_NEXT(k, entry))
        if (!contains_slot(all, k->slot))
            json_array_append_new(all, json_integer((json_int_t)k->slot));
    return all;
}

void ws_pinned_slots_finish_version(struct ws_pinned_slots *set)
{
    for (struct pinned *k = LIST_FIRST(&set->all), *next; k; k = next) {
        next = LIST_NEXT(k, entry);
        if (set->version - k->used_in >= MAX_UNUSED_VERSIONS ||
            (k->used_in == set->version && ws_region_protect(k->region, false, NULL) < 0))
            release_mapping(k);
    }
    set->version++;
}

void ws_pinned_slots_free(struct ws_pinned_slots *set)
{
    if (!set)
        return;
    for (struct pinned *k = LIST_FIRST(&set->all), *next; k; k = next) {
        next = LIST_NEXT(k, entry);
        release_mapping(k);
    }
    free(set);
}
