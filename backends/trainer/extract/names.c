/* The extractors whose tensors are the file's but for names and for experts that are stacked: torch's FSDP
 * and DeepSpeed. How a rank holds them is in wsync_held. */
#include "backends/trainer/extract/extract.h"
#include "transports/base/limits.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What wrappers put into a module's name, wherever they stand; and what only the outermost ones do: DDP and
 * DeepSpeed's engine, and PEFT's model. */
static const char *const wrappers[] = {"_fsdp_wrapped_module.", "_orig_mod.", "_checkpoint_wrapped_module.",
                                       "_forward_module."};
static const char *const outermost[] = {"module.", "base_model.model."};
/* Segments of PEFT's layers: a tensor there is what an adapter is added to, or the adapter. */
static const char *const adapters[] = {"base_layer",       "lora_A",           "lora_B",
                                       "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector",
                                       "modules_to_save",  "original_module"};

static size_t begins_with_one_of(const char *name, const char *const *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(name, all[i], strlen(all[i])) == 0)
            return strlen(all[i]);
    return 0;
}

static bool is_adapter(const char *segment, size_t n)
{
    for (size_t i = 0; i < sizeof(adapters) / sizeof(adapters[0]); i++)
        if (strlen(adapters[i]) == n && strncmp(segment, adapters[i], n) == 0)
            return true;
    return false;
}

/* Wrappers' segments are left out; those of an adapter cannot be. */
static int unwrap(const char *name, char out[WS_MAX_TENSOR_NAME + 1], struct ws_error *err)
{
    const char *whole = name;
    size_t n = 0, skip;
    while (*name) {
        const size_t segment = strcspn(name, ".");
        if ((skip = begins_with_one_of(name, wrappers, sizeof(wrappers) / sizeof(wrappers[0]))) ||
            (n == 0 &&
             (skip = begins_with_one_of(name, outermost, sizeof(outermost) / sizeof(outermost[0]))))) {
            name += skip;
            continue;
        }
        if (is_adapter(name, segment))
            return ws_error_set(
                err, EOPNOTSUPP,
                "%s is of an adapter (PEFT) that is not merged, and no tensor of the file: publish "
                "what merge_and_unload() returns",
                whole);
        const size_t take = segment + (name[segment] == '.');
        if (n + take > WS_MAX_TENSOR_NAME)
            return ws_error_set(err, E2BIG, "a tensor's name has over %d bytes: %.100s...",
                                WS_MAX_TENSOR_NAME, whole);
        memcpy(out + n, name, take);
        n += take;
        name += take;
    }
    out[n] = '\0';
    return n ? 0 : ws_error_set(err, EINVAL, "%s is the name of a wrapper, and of no tensor", whole);
}

/* Does the name end with the fusion's, after a dot or whole? *prefix is what stands before it. */
static bool ends_with(const char *name, const char *end, size_t *prefix)
{
    size_t n = strlen(name), k = strlen(end);
    if (k > n || strcmp(name + n - k, end) != 0 || (k < n && name[n - k - 1] != '.'))
        return false;
    *prefix = n - k;
    return true;
}

/* Each rename once, where it is found first. */
static int rename_part(const wsync_extract_options *o, struct ws_fused_part *p, struct ws_error *err)
{
    for (size_t i = 0; i < o->n_renames; i++) {
        const wsync_rename *r = &o->renames[i];
        const char *found = strstr(p->name, r->held);
        char *name;
        if (!found)
            continue;
        if (asprintf(&name, "%.*s%s%s", (int)(found - p->name), p->name, r->file, found + strlen(r->held)) <
            0)
            return ws_error_set(err, ENOMEM, "no memory for the name of %s", p->name);
        free(p->name);
        p->name = name;
        if (strlen(name) > WS_MAX_TENSOR_NAME)
            return ws_error_set(err, E2BIG, "a tensor's name has over %d bytes: %.100s...",
                                WS_MAX_TENSOR_NAME, name);
    }
    return 0;
}

static int split(const wsync_extract_options *o, const char *name, struct ws_fused *f, struct ws_error *err)
{
    size_t prefix;
    for (size_t i = 0; i < o->n_fusions; i++)
        if (ends_with(name, o->fusions[i].held, &prefix))
            return ws_fused_stack(f, &o->fusions[i], name, prefix, err);
    return ws_fused_plain(f, name);
}

static int as_held(const wsync_held *h, struct ws_extracted *out)
{
    out->fused.n_dims = h->n_dims;
    memcpy(out->fused.shape, h->shape, sizeof(out->fused.shape));
    out->n_placements = h->n_placements;
    memcpy(out->placements, h->placements, sizeof(out->placements));
    return 0;
}

static int describe_plain(const wsync_extract_options *o, const struct ws_hf_config *c, const wsync_held *h,
                          struct ws_extracted *out, struct ws_error *err)
{
    (void)o;
    (void)c;
    (void)err;
    (void)as_held(h, out);
    return ws_fused_plain(&out->fused, h->name);
}

static int describe(const wsync_extract_options *o, const struct ws_hf_config *c, const wsync_held *h,
                    struct ws_extracted *out, struct ws_error *err)
{
    char name[WS_MAX_TENSOR_NAME + 1];
    int rc = unwrap(h->name, name, err);
    if (rc < 0)
        return rc;
    (void)as_held(h, out);
    if (c->tied && strcmp(name, "lm_head.weight") == 0) {
        out->skip = true;
        return 0;
    }
    rc = split(o, name, &out->fused, err);
    for (size_t i = 0; rc == 0 && i < out->fused.n; i++)
        rc = rename_part(o, &out->fused.parts[i], err);
    return rc;
}

const struct ws_extractor_ops ws_extract_plain = {.name = "tensors", .describe = describe_plain};
const struct ws_extractor_ops ws_extract_fsdp = {.name = "fsdp", .describe = describe};
const struct ws_extractor_ops ws_extract_deepspeed = {.name = "deepspeed", .describe = describe};
