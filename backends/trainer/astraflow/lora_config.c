#include "backends/trainer/astraflow/lora_config.h"
#include "backends/engine/adapter_config.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>

static size_t find(const struct ws_manifest *m, const char *name)
{
    size_t i = 0;
    while (i < m->n_files && strcmp(m->files[i].name, name) != 0)
        i++;
    return i;
}

bool ws_lora_config_is_of(const struct ws_manifest *m)
{
    return find(m, WS_ADAPTER_CONFIG_NAME) < m->n_files && find(m, WS_ADAPTER_WEIGHTS_NAME) < m->n_files;
}

/* They load it into SGLang, so what that would serve wrong is refused. Their config has room for names of modules
 * only. */
static int convert(const char *text, size_t n, json_t **out, struct ws_error *err)
{
    const struct ws_adapter_server sglang = {.kind = "sglang"};
    json_t *said;
    int rc = ws_adapter_check(text, n, &sglang, NULL, err);
    if (rc < 0)
        return rc;
    said = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    json_t *modules = json_object_get(said, "target_modules");
    if (said && !json_is_array(modules))
        rc = ws_error_set(err, EPROTO,
                          "its target_modules is a pattern, and AstraFlow's receivers are told names only");
    else if (!said || !(*out = json_pack("{s:s,s:O,s:O,s:O}", "peft_type", "LORA", "r",
                                         json_object_get(said, "r"), "lora_alpha",
                                         json_object_get(said, "lora_alpha"), "target_modules", modules)))
        rc = ws_error_set(err, ENOMEM, "no memory for an adapter's config");
    json_decref(said);
    return rc;
}

int ws_lora_config_read(const struct ws_lease *lease, json_t **out, struct ws_error *err)
{
    const struct ws_manifest *m = lease->manifest;
    const size_t i = find(m, WS_ADAPTER_CONFIG_NAME);
    *out = NULL;
    if (!ws_lora_config_is_of(m))
        return 0;
    struct ws_region *region = lease->regions[i];
    int rc = convert(region ? (const char *)ws_region_data(region) : "", m->files[i].size_bytes, out, err);
    return rc < 0 ? ws_error_prefix(err, "the adapter %s/%" PRIu64, m->model, m->version) : 0;
}
