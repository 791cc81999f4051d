/* Patches of the reference engine: what wsync's package does in the workers of a real one, on its own copy of the weights. It
 * plays several workers, which have a share of the tensors each. Faults on command, one of:
 *
 *     prepare        the last worker refuses to prepare
 *     refuse-put     ... to put, before anything is written
 *     half-put       ... to put, after the others have
 *     lose-put       puts, and does not answer within a minute
 *     die-put        ends between two workers' puts
 *     half-undo      the last worker refuses to undo, after the others have
 *     die-undo       ends between two workers' undos
 *     drift          flips one bit after each put */
#ifndef WS_ENGINE_REFERENCE_REFERENCE_PATCH_H
#define WS_ENGINE_REFERENCE_REFERENCE_PATCH_H
#include "transports/base/error.h"
#include "transports/format/manifest.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define WS_REFERENCE_WORKERS   16 /* at most */
#define WS_REFERENCE_ABANDONED 16 /* plans that are remembered */

struct ws_reference;
/* A version by its manifest, as real workers note it: paths get another meaning when a trainer begins anew. */
struct ws_reference_version {
    uint64_t number;
    char lineage[WS_LINEAGE_CHARS + 1]; /* empty: the files were of no mount's version */
    char digest[33];
};
struct ws_reference_patches {
    size_t workers; /* 0: it has no such package */
    char *fault;    /* NULL: none */
    /* Guarded by load_lock: what is in memory, whoever had it loaded; and the plan, dropped by every load. */
    struct ws_reference_version held;
    char *plan, *target, *base; /* NULL: there is none */
    struct ws_reference_version of_target, of_base;
    bool put; /* or may be, in part */
    struct ws_patch *of[WS_REFERENCE_WORKERS];
    /* Dropped before they were prepared, the oldest overwritten: a prepare that comes late makes none of them. */
    char abandoned[WS_REFERENCE_ABANDONED][40];
    size_t n_abandoned;
};
WS_MUST_USE int ws_reference_patches_check(const char *fault, struct ws_error *err);
/* The workers' answers to one stage, an array; arguments: its object, with "stage". New reference. */
json_t *ws_reference_patch(struct ws_reference *r, const json_t *arguments);
/* SGLang's note of what was put or undone: is the plan there, and does it agree with the path? Then path and version are
 * recorded. */
bool ws_reference_patch_note(struct ws_reference *r, const char *plan, const char *path, const char *version);
/* Under load_lock: the memory is from the path now. */
void ws_reference_patches_loaded(struct ws_reference *r, const char *path);
/* Under load_lock. */
void ws_reference_patches_drop(struct ws_reference *r);

#endif
