/* Shards: the files of weights in a folder, told by their names. Pure functions over sorted lists of names. */
#ifndef WS_TRANSPORTS_FORMAT_SHARDS_H
#define WS_TRANSPORTS_FORMAT_SHARDS_H
#include "transports/base/error.h"
#include "transports/format/folder_index.h"
#include <stdbool.h>
#include <stddef.h>

#define WS_SHARD_SUFFIX ".safetensors"

/* Is it *.safetensors? */
bool ws_shard_is(const char *name);
/* Sets wanted[i] (false before) for each of the names (sorted by strcmp) that is a file of weights: those that
 * the index names, as the engines do it; without one (NULL) every *.safetensors that is not hidden. Where a
 * wanted name says how many there are (NAME-00002-of-00005.safetensors) all of them must be wanted, too; they
 * are counted from 1, by a few writers from 0. -ENOENT: one is missing, which is named, or there is none. */
WS_MUST_USE int ws_shards_select(const char *const *names, size_t n, const struct ws_folder_index *index,
                                 bool *wanted, struct ws_error *err);
/* The same of a folder that holds some of a checkpoint's files, as each node's does where several write one: those
 * that are not there are elsewhere. Each must be called NAME-00002-of-00005.safetensors: other names are what
 * its writer gives before it knows the count. -ENOENT: one is not, or there is none. */
WS_MUST_USE int ws_shards_select_part(const char *const *names, size_t n, const struct ws_folder_index *index,
                                      bool *wanted, struct ws_error *err);

#endif
