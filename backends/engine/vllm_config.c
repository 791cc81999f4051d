/* What shapes this file:
 * - /server_info?config_format=json has the whole configuration. The first call of a server takes seconds, because it
 *   looks at its surroundings, too; one that does not answer in time is asked again.
 * - reload_weights is the target's alone: a draft model with weights of its own stays as it was started. Where the
 *   configuration does not come, metrics tell that it speculates.
 * - Whether an extension other than wsync's mends reloads on a CPU cannot be told, so it does not.
 * - One that does not say what it was started with is taken for one that frees INT8 scales, which few have. It is not taken for one
 *   on a CPU that leaves experts as they are: many models have experts, and few run on a CPU. */
#include "backends/engine/vllm_config.h"
#include "backends/engine/call.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define EXTENSION "wsync.vllm.Extension"
#define BACKEND   "wsync"

static const json_t *member(const json_t *config, const char *part, const char *key)
{
    return json_object_get(json_object_get(config, part), key);
}

static bool is_text(const json_t *value, const char *text)
{
    const char *is = json_string_value(value);
    return is && strcmp(is, text) == 0;
}

/* --- draft models and adapters --- */

static void find_draft(const json_t *config, struct ws_engine_facts *facts)
{
    const char *method = json_string_value(member(config, "speculative_config", "method"));
    if (!method || strncmp(method, "ngram", 5) == 0 || strcmp(method, "suffix") == 0)
        return; /* no model, or one that looks at the text alone */
    snprintf(facts->draft, sizeof(facts->draft), "unchanged");
    facts->loads_draft = is_text(member(config, "weight_transfer_config", "backend"), BACKEND);
}

static void find_adapters(const json_t *config, struct ws_engine_facts *facts)
{
    const json_int_t rank = json_integer_value(member(config, "lora_config", "max_lora_rank"));
    facts->max_adapter_rank = rank > 0 && rank < UINT_MAX ? (unsigned)rank : 0;
}

static void find_draft_by_metrics(const struct ws_engine_target *t, struct ws_engine_facts *facts)
{
    struct ws_http_reply reply;
    if (ws_call_page(t, "/metrics", &reply, NULL))
        return;
    if (strstr(reply.text, "vllm:spec_decode_"))
        snprintf(facts->draft, sizeof(facts->draft), "unknown");
    ws_http_reply_release(&reply);
}

/* --- reloads on a CPU --- */

static bool may_be(const json_t *value, const char *text)
{
    return !value || is_text(value, text);
}

static bool mends_reloads(const json_t *config)
{
    return is_text(member(config, "parallel_config", "worker_extension_cls"), EXTENSION) ||
           is_text(member(config, "weight_transfer_config", "backend"), BACKEND);
}

/* Which scheme a quantisation has, and whether there are experts, it does not say: the version's own files do. */
static void find_reload(const json_t *config, struct ws_engine_facts *facts)
{
    const json_t *device = member(config, "device_config", "device");
    const bool mends = mends_reloads(config);
    facts->patches = is_text(member(config, "parallel_config", "worker_extension_cls"), EXTENSION);
    facts->frees_int8_scales = !mends && may_be(device, "cpu") &&
                               may_be(member(config, "model_config", "quantization"), "compressed-tensors");
    facts->leaves_experts = !mends && is_text(device, "cpu");
}

void ws_vllm_config_read(const struct ws_engine_target *t, struct ws_engine_facts *facts)
{
    struct ws_engine_target patient = *t;
    struct ws_http_reply reply;
    patient.short_ms = t->timeout_ms;
    const int rc = ws_call_get(&patient, "/server_info?config_format=json", &reply, NULL);
    const bool answered = rc == 0;
    if (rc == -ETIMEDOUT)
        facts->known = false; /* whoever asked may have had little time: it is asked again */
    const json_t *config = answered ? json_object_get(reply.json, "vllm_config") : NULL;
    facts->frees_int8_scales = !json_is_object(config);
    if (json_is_object(config)) {
        find_reload(config, facts);
        find_draft(config, facts);
        find_adapters(config, facts);
        facts->stays_awake = json_is_false(member(config, "model_config", "enable_sleep_mode"));
    } else {
        find_draft_by_metrics(t, facts);
    }
    if (answered)
        ws_http_reply_release(&reply);
}
