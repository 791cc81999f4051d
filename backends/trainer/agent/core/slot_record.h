/* Slot record: what an agent has to know to serve a slot's version, in memory that is kept beyond its death as the slot's regions are
 * (memory/region.h, ws_region_store), so that the agent after it takes them over (kept/). It has
 *
 *     "wsync-kept-slot1"       16 bytes; the last one is the format
 *     release                  16 bytes: of the agent, as text with zeros after it
 *     served                   8 bytes: 1 while the version is served as it is, 2 once the trainer's framework has deleted it, too
 *                              (ranks/retired.c), else 0
 *     n, m                     8 bytes each
 *     hash                     8 bytes: XXH3-64 of the n + m bytes that follow
 *     n bytes                  {"id","placement","base","begun_ns","files":["file-0123456789abcdef", ..],"nodes"}. files: names in the
 *                              store, null for files of size 0. nodes: of a part of a model that spans nodes, their names; else null
 *     m bytes                  the manifest, as JSON
 *
 * `served` is set when the rest is there, and cleared before anybody may write the slot: a process that dies leaves memory as its last
 * instruction left it. Numbers are the machine's. */
#ifndef WS_TRAINER_AGENT_CORE_SLOT_RECORD_H
#define WS_TRAINER_AGENT_CORE_SLOT_RECORD_H
#include "transports/base/error.h"
#include "transports/format/manifest.h"
#include "transports/memory/region.h"
#include <stdbool.h>

struct ws_slot;
struct ws_placement;

/* Prefixes of names in the store: of the record, of a file's region. */
#define WS_SLOT_RECORD_PREFIX "slot-"
#define WS_SLOT_FILE_PREFIX   "file-"

/* For a slot with regions of that placement. NULL: nothing is kept here, or cannot be. */
struct ws_region *ws_slot_record_new(const struct ws_placement *l);
/* The slot is served / is not, from here on. One without a record has none. nodes: as in ws_slot_serve. */
void ws_slot_record_serve(struct ws_slot *s, const char *nodes);
void ws_slot_record_unserve(struct ws_slot *s);

bool ws_slot_record_is_served(const struct ws_slot *s);

/* The trainer's framework has deleted the version, if the slot serves one; it is served on. Until it is not served. */
void ws_slot_record_delete(struct ws_slot *s);
bool ws_slot_record_is_deleted(const struct ws_slot *s);

/* What a record says: the slot, without regions, which owns the record. */
struct ws_kept_slot {
    struct ws_slot *slot;
    char **
        files; /* names of its regions in the store, in the order of the manifest's files; NULL where the size is 0 */
    size_t n_files;
    char *nodes; /* as in ws_slot_serve */
};
/* Of a record that was taken over; where this fails it stays the caller's. -EAGAIN: it is not served, which is no error. -EPROTO: another
 * release wrote it; -EBADMSG: it is damaged. */
WS_MUST_USE int ws_slot_record_read(struct ws_region *record, struct ws_kept_slot *out, struct ws_error *err);
void ws_kept_slot_release(
    struct ws_kept_slot *k); /* frees what it has; the slot, too, where that is not NULL */

#endif
