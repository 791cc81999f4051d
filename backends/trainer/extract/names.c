/* The extractors whose tensors are the file's but for names and for experts that are stacked: torch's FSDP
 * and DeepSpeed. How a rank holds them is in wsync_held. */
#include "backends/engine/adapter_config.h"
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
/* Segments of PEFT's layers: a tensor there is what an adapter is added to, or the adapter. The first N_HALVES are
 * an adapter's matrices, the first N_TRAINED have its name behind them. */
static const char *const adapters[] = {
    "lora_A",          "lora_B",          "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector",
    "modules_to_save", "original_module", "base_layer"};
#define N_HALVES    4
#define N_TRAINED   6
#define PEFT_PREFIX "base_model.model."

static size_t begins_with_one_of(const char *name, const char *const *all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(name, all[i], strlen(all[i])) == 0)
            return strlen(all[i]);
    return 0;
}

static int append(const char *whole, const char *segment, size_t take, char out[WS_MAX_TENSOR_NAME + 1],
                  size_t *n, struct ws_error *err)
{
    if (*n + take > WS_MAX_TENSOR_NAME)
        return ws_error_set(err, E2BIG, "a tensor's name has over %d bytes: %.100s...", WS_MAX_TENSOR_NAME,
                            whole);
    memcpy(out + *n, segment, take);
    *n += take;
    out[*n] = '\0';
    return 0;
}

/* Leaves wrappers' segments out. */
static int unwrap(const char *name, char out[WS_MAX_TENSOR_NAME + 1], struct ws_error *err)
{
    const char *whole = name;
    size_t n = 0, skip;
    int rc = 0;
    while (rc == 0 && *name) {
        if ((skip = begins_with_one_of(name, wrappers, sizeof(wrappers) / sizeof(wrappers[0]))) ||
            (n == 0 &&
             (skip = begins_with_one_of(name, outermost, sizeof(outermost) / sizeof(outermost[0]))))) {
            name += skip;
            continue;
        }
        const size_t segment = strcspn(name, "."), take = segment + (name[segment] == '.');
        rc = append(whole, name, take, out, &n, err);
        name += take;
    }
    if (rc == 0 && n == 0)
        rc = ws_error_set(err, EINVAL, "%s is the name of a wrapper, and of no tensor", whole);
    return rc;
}

/* The first of a name's segments that is among the first n of PEFT's; NULL: none is. *which: of them; *rest: what
 * follows it. */
static const char *find_adapter(const char *name, size_t n, size_t *which, const char **rest)
{
    for (const char *at = name; *at; at = *rest + (**rest == '.')) {
        const size_t length = strcspn(at, ".");
        *rest = at + length;
        for (*which = 0; *which < n; (*which)++)
            if (strlen(adapters[*which]) == length && strncmp(at, adapters[*which], length) == 0)
                return at;
    }
    return NULL;
}

static int refuse_adapters(const char *whole, const char *name, struct ws_error *err)
{
    const char *rest;
    size_t which;
    if (!find_adapter(name, sizeof(adapters) / sizeof(adapters[0]), &which, &rest))
        return 0;
    return ws_error_set(err, EOPNOTSUPP,
                        "%s is of an adapter (PEFT) that is not merged, and no tensor of the file: publish "
                        "what merge_and_unload() returns, or the adapter alone (wsync.peft)",
                        whole);
}

/* The name that PEFT saves an adapter's tensor under: without the adapter's own. *other: it is of the base model, or of
 * another adapter. */
static int name_in_adapter(const char *whole, const char *name, const char *adapter,
                           char out[WS_MAX_TENSOR_NAME + 1], bool *other, struct ws_error *err)
{
    const size_t k = strlen(adapter);
    const char *rest;
    size_t n = 0, which;
    *other = !find_adapter(name, N_TRAINED, &which, &rest) || *rest != '.' ||
             strncmp(rest + 1, adapter, k) != 0 || (rest[k + 1] && rest[k + 1] != '.');
    if (*other)
        return 0;
    const char *end = rest + k + 1;
    if (which >= N_HALVES || (*end && strcmp(end, ".weight") != 0))
        return ws_error_set(err, EOPNOTSUPP,
                            "%s is trained with the adapter %s and is no lora_A or lora_B, and engines load "
                            "nothing else of one: publish the merged model",
                            whole, adapter);
    int rc = append(whole, PEFT_PREFIX, strlen(PEFT_PREFIX), out, &n, err);
    if (rc == 0)
        rc = append(whole, name, (size_t)(rest - name), out, &n, err);
    return rc < 0 ? rc : append(whole, end, strlen(end), out, &n, err);
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

/* Does the file's name of a part stand there already, of which found is the held one? So it is where the caller gives
 * some tensors in the file's names: "lm_head" in "language_model.lm_head", which it would be renamed to. */
static bool is_renamed(const wsync_rename *r, const char *name, const char *found)
{
    const char *within = strstr(r->file, r->held);
    return within && found - name >= within - r->file &&
           strncmp(found - (within - r->file), r->file, strlen(r->file)) == 0;
}

/* Each rename once, where it is found first. */
static int rename_part(const wsync_extract_options *o, struct ws_fused_part *p, struct ws_error *err)
{
    for (size_t i = 0; i < o->n_renames; i++) {
        const wsync_rename *r = &o->renames[i];
        const char *found = strstr(p->name, r->held);
        char *name;
        if (!found || is_renamed(r, p->name, found))
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
    out->n_sections = h->n_sections;
    for (unsigned i = 0; i < h->n_sections; i++)
        out->sections[i] = h->sections[i];
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

static int describe_adapter(const char *adapter, const char *name, const wsync_held *h,
                            struct ws_extracted *out, struct ws_error *err)
{
    char saved[WS_MAX_TENSOR_NAME + 1];
    int rc = name_in_adapter(h->name, name, adapter, saved, &out->skip, err);
    if (rc < 0 || out->skip)
        return rc;
    out->file = WS_ADAPTER_WEIGHTS_NAME;
    (void)as_held(h, out);
    return ws_fused_plain(&out->fused, saved);
}

static int describe(const wsync_extract_options *o, const struct ws_hf_config *c, const wsync_held *h,
                    struct ws_extracted *out, struct ws_error *err)
{
    char name[WS_MAX_TENSOR_NAME + 1];
    int rc = unwrap(h->name, name, err);
    if (rc == 0 && o->adapter)
        return describe_adapter(o->adapter, name, h, out, err);
    if (rc == 0)
        rc = refuse_adapters(h->name, name, err);
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
const struct ws_extractor_ops ws_extract_fsdp = {.name = "fsdp", .adapters = true, .describe = describe};
const struct ws_extractor_ops ws_extract_deepspeed = {
    .name = "deepspeed", .adapters = true, .describe = describe};
