#include "backends/trainer/agent/core/slot_record.h"
#include "backends/trainer/agent/core/slot.h"
#include "transports/base/descriptor_store.h"
#include "transports/base/log.h"
#include "transports/base/number.h"
#include "transports/base/text.h"
#include "transports/simd/copy.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC         "wsync-kept-slot1"
#define RELEASE_CHARS 16
#define FIXED_CHARS   (64UL << 10) /* of both texts, what does not depend on files: nodes at most */
#define FILE_CHARS    256
#define BLOCK_CHARS   (WS_HASH_DIGITS + 3)
#define ESCAPED       6 /* characters of one in JSON, at most */
#define SERVED        1
#define DELETED       2

struct head {
    char magic[sizeof(MAGIC) - 1], release[RELEASE_CHARS];
    _Atomic uint64_t served;
    uint64_t n, m, hash;
};

static struct head *head_of(struct ws_region *record)
{
    return (struct head *)(void *)ws_region_data(record);
}

static char *text_of(struct ws_region *record)
{
    return (char *)ws_region_data(record) + sizeof(struct head);
}

struct ws_region *ws_slot_record_new(const struct ws_placement *l)
{
    struct ws_region *r = NULL;
    struct ws_error err;
    uint64_t bytes = sizeof(struct head) + FIXED_CHARS + WS_MANIFEST_SIGNATURE_CHARS;
    if (!ws_descriptor_store_is_on())
        return NULL;
    for (size_t i = 0; i < l->n_files; i++)
        bytes += ESCAPED * strlen(l->files[i].name) + FILE_CHARS +
                 BLOCK_CHARS * ws_manifest_count_blocks(l->files[i].size_bytes);
    for (size_t i = 0; i < l->n_frozen; i++)
        bytes += ESCAPED * (strlen(l->frozen[i]) + 1);
    const int rc = ws_region_new(&r, bytes, &err);
    if (rc == 0 && ws_region_prefault(r, 1, &err) == 0 && ws_region_store(r, WS_SLOT_RECORD_PREFIX))
        return r;
    ws_region_free(r);
    return NULL;
}

static void put_release(char out[RELEASE_CHARS])
{
    memset(out, 0, RELEASE_CHARS);
    snprintf(out, RELEASE_CHARS, "%s", WS_VERSION);
}

/* --- writing --- */

static json_t *files_json(const struct ws_slot *s)
{
    json_t *all = json_array();
    for (size_t i = 0; i < s->n_files; i++)
        json_array_append_new(all,
                              s->regions[i] ? json_string(ws_region_stored_as(s->regions[i])) : json_null());
    return all;
}

static bool has_all_kept(const struct ws_slot *s)
{
    bool all = true;
    for (size_t i = 0; i < s->n_files; i++)
        all = all && (!s->regions[i] || ws_region_stored_as(s->regions[i]));
    return all;
}

/* malloc'ed; NULL: no memory. */
static char *describe(const struct ws_slot *s, const char *nodes)
{
    json_t *of = nodes ? json_loads(nodes, 0, NULL) : json_null();
    json_t *o =
        json_pack("{s:I,s:s,s:s,s:I,s:o,s:o}", "id", (json_int_t)s->id, "placement", s->placement_id, "base",
                  s->base_id, "begun_ns", (json_int_t)s->begun_ns, "files", files_json(s), "nodes", of);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    return text;
}

void ws_slot_record_serve(struct ws_slot *s, const char *nodes)
{
    if (!s->record || ws_slot_record_is_served(s)) /* it was taken over */
        return;
    struct head *h = head_of(s->record);
    char *text = has_all_kept(s) ? describe(s, nodes) : NULL;
    const size_t n = text ? strlen(text) : 0;
    if (text && sizeof(*h) + n + s->json_bytes <= ws_region_size(s->record)) {
        memcpy(h->magic, MAGIC, sizeof(h->magic));
        put_release(h->release);
        h->n = n;
        h->m = s->json_bytes;
        memcpy(text_of(s->record), text, n);
        memcpy(text_of(s->record) + n, s->json, s->json_bytes);
        h->hash = ws_hash(text_of(s->record), n + s->json_bytes);
        atomic_store(&h->served, SERVED);
    } else {
        ws_log(WS_LOG_WARN, "agent", "it will not outlive this agent version=%" PRIu64 " run=%s", s->version,
               s->lineage);
    }
    free(text);
}

void ws_slot_record_unserve(struct ws_slot *s)
{
    if (s->record)
        atomic_store(&head_of(s->record)->served, 0);
}

bool ws_slot_record_is_served(const struct ws_slot *s)
{
    return s->record && atomic_load(&head_of(s->record)->served);
}

void ws_slot_record_delete(struct ws_slot *s)
{
    uint64_t before = SERVED;
    if (s->record)
        (void)atomic_compare_exchange_strong(&head_of(s->record)->served, &before, DELETED);
}

bool ws_slot_record_is_deleted(const struct ws_slot *s)
{
    return s->record && atomic_load(&head_of(s->record)->served) == DELETED;
}

/* --- reading --- */

static int damaged(const char *why, struct ws_error *err)
{
    return ws_error_set(err, EBADMSG, "a slot's record is damaged: %s", why);
}

void ws_kept_slot_release(struct ws_kept_slot *k)
{
    for (size_t i = 0; i < k->n_files; i++)
        free(k->files[i]);
    free(k->files);
    free(k->nodes);
    ws_slot_free(k->slot);
    *k = (struct ws_kept_slot){0};
}

static int check_head(struct ws_region *record, struct ws_error *err)
{
    const struct head *h = head_of(record);
    const uint64_t room = ws_region_size(record);
    char release[RELEASE_CHARS];
    if (room < sizeof(*h))
        return damaged("it is cut off", err);
    const uint64_t served = atomic_load(&h->served);
    if (served == 0)
        return ws_error_set(err, EAGAIN, "the slot is not served");
    if (memcmp(h->magic, MAGIC, sizeof(h->magic) - 1) != 0 || served > DELETED)
        return damaged("it is no record", err);
    put_release(release);
    if (memcmp(h->magic, MAGIC, sizeof(h->magic)) != 0 || memcmp(h->release, release, sizeof(release)) != 0)
        return ws_error_set(err, EPROTO, "it was kept by an agent of release %.*s, and this one is of %s",
                            RELEASE_CHARS, h->release, WS_VERSION);
    if (h->n > room - sizeof(*h) || h->m > room - sizeof(*h) - h->n)
        return damaged("it is cut off", err);
    return ws_hash(text_of(record), h->n + h->m) == h->hash ? 0 : damaged("its hash is wrong", err);
}

static bool copy_text(const json_t *o, const char *key, char *out, size_t cap)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text && (size_t)snprintf(out, cap, "%s", text) < cap;
}

/* Of the manifest's files, whose sizes say which have none. */
static bool copy_names(const json_t *list, const struct ws_manifest *m, struct ws_kept_slot *k)
{
    bool good = json_array_size(list) == m->n_files;
    k->files = good ? calloc(m->n_files + 1, sizeof(*k->files)) : NULL;
    k->n_files = k->files ? m->n_files : 0;
    for (size_t i = 0; i < k->n_files; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        k->files[i] = name ? strdup(name) : NULL;
        good = good && !k->files[i] == (m->files[i].size_bytes == 0);
    }
    return good && k->files;
}

static bool copy_nodes(const json_t *nodes, struct ws_kept_slot *k)
{
    k->nodes = json_is_array(nodes) ? json_dumps(nodes, JSON_COMPACT) : NULL;
    return json_is_null(nodes) || k->nodes;
}

static int read_texts(struct ws_region *record, struct ws_kept_slot *k, struct ws_error *err)
{
    const struct head *h = head_of(record);
    struct ws_slot *s = k->slot;
    json_t *o = json_loadb(text_of(record), h->n, 0, NULL);
    int rc = ws_manifest_from_json(text_of(record) + h->n, h->m, &s->manifest, err);
    if (rc == 0 && (ws_number_read(json_object_get(o, "id"), &s->id) < 0 ||
                    ws_number_read(json_object_get(o, "begun_ns"), &s->begun_ns) < 0 ||
                    !copy_text(o, "placement", s->placement_id, sizeof(s->placement_id)) ||
                    !copy_text(o, "base", s->base_id, sizeof(s->base_id)) ||
                    !copy_names(json_object_get(o, "files"), s->manifest, k) ||
                    !copy_nodes(json_object_get(o, "nodes"), k)))
        rc = damaged("it makes no sense", err);
    json_decref(o);
    return rc == 0 ? ws_manifest_to_json(s->manifest, &s->json, &s->json_bytes, err) : rc;
}

int ws_slot_record_read(struct ws_region *record, struct ws_kept_slot *out, struct ws_error *err)
{
    *out = (struct ws_kept_slot){0};
    int rc = check_head(record, err);
    if (rc == 0 && !(out->slot = calloc(1, sizeof(*out->slot))))
        rc = ws_error_set(err, ENOMEM, "no memory for a slot");
    if (rc == 0)
        rc = read_texts(record, out, err);
    if (rc == 0)
        out->slot->record = record;
    else
        ws_kept_slot_release(out);
    return rc;
}
