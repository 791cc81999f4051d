/* Pickle: the little of Python's format that AstraFlow's services speak: a dict is written, and what a reply
 * says is read into JSON. Nothing is ever built or called: what is no dict, list, text, number, bool or None
 * is refused. Format: CPython's Lib/pickletools.py. Pure functions. */
#ifndef WS_MOUNT_HELPERS_COMMANDS_PICKLE_H
#define WS_MOUNT_HELPERS_COMMANDS_PICKLE_H
#include <jansson.h>
#include <stddef.h>

#define PICKLE_MAX_BYTES (1UL << 20)

/* An object of texts and whole numbers as a pickled dict (protocol 2): malloc'ed; NULL: no memory, or there
 * is something else in it. */
char *pickle_write(const json_t *object, size_t *n_bytes);
/* New reference; NULL: it is no pickle, or one that holds more than that. */
json_t *pickle_read(const void *bytes, size_t n_bytes);

#endif
