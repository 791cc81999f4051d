/* View records: how a view's version differs from the one before, found out while it was made, when its blocks were in the
 * cache. The delta between the two takes them, and compares only what has none. */
#ifndef WS_TRAINER_AGENT_CORE_VIEW_RECORDS_H
#define WS_TRAINER_AGENT_CORE_VIEW_RECORDS_H
#include "transports/delta/delta.h"

struct ws_view_records;
/* For n_blocks, those of all files of the version. base_digest: of the manifest of the version before. NULL: no
 * memory. */
struct ws_view_records *ws_view_records_new(const char base_digest[33], size_t n_blocks);
void ws_view_records_free(struct ws_view_records *r); /* NULL is fine */
/* The record of a block, counted over all files; it owns the record from here on. Any threads, of different blocks. Returns
 * the bytes of all records so far. */
uint64_t ws_view_records_put(struct ws_view_records *r, size_t number, struct ws_delta_record *record);
/* Gives them to the delta that leads from that base to the version; to another one, none. Returns how many. r may be
 * NULL. */
size_t ws_view_records_give(struct ws_view_records *r, struct ws_delta *d);

#endif
