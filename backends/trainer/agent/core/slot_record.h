/* Slot record: what an agent has to know to serve a slot's version, in memory that is kept beyond its death as the slot's regions are
 * (memory/region.h, ws_region_store), so that the agent after it takes them over (kept/). It has
 *
 *     "wsync-kept-slot1"       16 bytes; the last one is the format
 *     release                  16 bytes: of the agent, as text with zeros after it
 *     served                   8 bytes: 1 while the version is served as it is, else 0
 *     n, m                     8 bytes each
 *     hash                     8 bytes: XXH3-64 of the n + m bytes that follow
 *     n bytes                  {"id","placement","base","begun_ns","files":["file-0123456789abcdef", ..]}, which are names
 *                              in the store, null for files of size 0
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
/* The slot is served / is not, from here on. One without a record has none. */
void ws_slot_record_serve(struct ws_slot *s);
void ws_slot_record_unserve(struct ws_slot *s);

bool ws_slot_record_is_served(const struct ws_slot *s);

/* A record that was taken over: its slot, without regions, that owns the record then; *files: an array of their names, NULL where size is
 * 0, in the order of the manifest's files; the caller frees both, and the record where this fails. -EAGAIN: it is not served, which is no error.
 * -EPROTO: another release wrote it; -EBADMSG: it is damaged. */
WS_MUST_USE int ws_slot_record_read(struct ws_region *record, struct ws_slot **out, char ***files,
                                    struct ws_error *err);
void ws_slot_record_free_names(char **files, size_t n);

#endif
