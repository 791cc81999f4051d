/* The public functions for what changed between two versions, and for writing it into memory. */
#include "transports/patch/patch.h"
#include "backends/trainer/api/last_error.h"
#include "backends/trainer/wsync.h"
#include <errno.h>
#include <stdlib.h>

struct wsync_changes {
    struct ws_changes *changes;
};
struct wsync_patch {
    struct ws_patch *patch;
};

int wsync_changes_open(wsync_changes **out, const char *target, const char *base)
{
    struct ws_error *err = ws_last_error();
    *out = calloc(1, sizeof(**out));
    int rc = *out ? ws_changes_open(&(*out)->changes, target, base, 0, err)
                  : ws_error_set(err, ENOMEM, "out of memory for changes");
    if (rc < 0) {
        free(*out);
        *out = NULL;
    }
    return rc;
}

void wsync_changes_free(wsync_changes *changes)
{
    if (!changes)
        return;
    ws_changes_free(changes->changes);
    free(changes);
}

uint64_t wsync_changes_count(const wsync_changes *changes, const char *tensor)
{
    const struct ws_tensor_changes *t = tensor ? ws_changes_find(changes->changes, tensor) : NULL;
    return tensor ? (t ? t->n : 0) : ws_changes_count(changes->changes);
}

uint64_t wsync_changes_elements(const wsync_changes *changes, const char *tensor)
{
    const struct ws_tensor_changes *t = tensor ? ws_changes_find(changes->changes, tensor) : NULL;
    return tensor ? (t ? t->elements : 0) : ws_changes_elements(changes->changes);
}

int wsync_changes_recorded(const wsync_changes *changes)
{
    return ws_changes_are_recorded(changes->changes);
}

int wsync_patch_new(wsync_patch **out)
{
    *out = calloc(1, sizeof(**out));
    if (*out && ((*out)->patch = ws_patch_new()))
        return 0;
    free(*out);
    *out = NULL;
    return ws_error_set(ws_last_error(), ENOMEM, "out of memory for a patch");
}

void wsync_patch_free(wsync_patch *patch)
{
    if (!patch)
        return;
    ws_patch_free(patch->patch);
    free(patch);
}

int wsync_patch_add(wsync_patch *patch, const wsync_patch_region *r)
{
    const struct ws_patch_region region = {
        .tensor = r->tensor,
        .memory = r->memory,
        .memory_elements = r->memory_elements,
        .element_bytes = r->element_bytes,
        .to = r->to,
        .from = r->from,
        .n_dims = r->n_dims,
        .shape = r->shape,
        .to_strides = r->to_strides,
        .from_strides = r->from_strides,
    };
    return ws_patch_add(patch->patch, &region, ws_last_error());
}

int wsync_patch_prepare(wsync_patch *patch, const wsync_changes *changes, unsigned threads)
{
    return ws_patch_prepare(patch->patch, changes->changes, threads, ws_last_error());
}

uint64_t wsync_patch_count(const wsync_patch *patch, uint64_t *bytes)
{
    uint64_t unused;
    return ws_patch_count(patch->patch, bytes ? bytes : &unused);
}

int wsync_patch_list(wsync_patch *patch, size_t i, const uint64_t **indexes, const void **before,
                     const void **after, uint64_t *n)
{
    const int rc = ws_patch_list(patch->patch, i, indexes, before, after, n);
    if (rc == -ERANGE)
        ws_error_set(ws_last_error(), ERANGE, "a prepared patch has no destination %zu", i);
    else if (rc < 0)
        ws_error_set(ws_last_error(), -rc, "out of memory for a list of places");
    return rc;
}

static int prepared(const wsync_patch *patch)
{
    return ws_patch_is_prepared(patch->patch)
               ? 0
               : ws_error_set(ws_last_error(), EINVAL,
                              "the patch is not prepared: call wsync_patch_prepare first");
}

int wsync_patch_check(wsync_patch *patch)
{
    const int rc = prepared(patch);
    return rc < 0 ? rc : ws_patch_check(patch->patch, ws_last_error());
}

int wsync_patch_put(wsync_patch *patch)
{
    const int rc = prepared(patch);
    if (rc == 0)
        ws_patch_put(patch->patch);
    return rc;
}

int wsync_patch_undo(wsync_patch *patch)
{
    const int rc = prepared(patch);
    if (rc == 0)
        ws_patch_undo(patch->patch);
    return rc;
}
