#include "backends/engine/sglang_sleep.h"
#include "backends/engine/sglang_info.h"
#include <errno.h>
#include <string.h>

/* In the order in which it takes them back. */
static const char *const parts[] = {"cuda_graph", "weights", "kv_cache"};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))
enum { WEIGHTS = 1U << 1, ALL = (1U << N_PARTS) - 1 };

static int read_parts(const json_t *list, unsigned *out)
{
    const json_t *one;
    size_t i;
    *out = 0;
    json_array_foreach(list, i, one)
    {
        const char *word = json_string_value(one);
        size_t k = 0;
        while (k < N_PARTS && !(word && strcmp(word, parts[k]) == 0))
            k++;
        if (k == N_PARTS)
            return -EPROTO;
        *out |= 1U << k;
    }
    return json_is_array(list) ? 0 : -EPROTO;
}

/* Of all schedulers, which have to agree: some of them may have been told by now, and others not yet. */
static int read_released(const json_t *info, unsigned *out)
{
    const json_t *all = json_object_get(info, "internal_states"), *one;
    unsigned first = 0, now;
    size_t i;
    json_array_foreach(all, i, one)
    {
        if (read_parts(json_object_get(json_object_get(one, "wsync"), "released"), &now) < 0 ||
            (i && now != first))
            return -EPROTO;
        first = now;
    }
    *out = first;
    return json_array_size(all) ? 0 : -EPROTO;
}

bool ws_sglang_tells_sleep(const json_t *info)
{
    unsigned released;
    return read_released(info, &released) == 0;
}

int ws_sglang_asleep(const struct ws_engine_target *t, struct ws_engine_serving *out, struct ws_error *err)
{
    struct ws_http_reply reply;
    unsigned released = 0;
    int rc = ws_sglang_info(t, &reply, err);
    if (rc)
        return rc;
    out->sleep_unknown = read_released(reply.json, &released) < 0;
    ws_http_reply_release(&reply);
    out->sleeping = released != 0;
    if (out->sleeping)
        out->reports_paused = out->paused = true;
    return 0;
}

static int ask_released(const struct ws_engine_target *target, unsigned *out, struct ws_error *err)
{
    struct ws_engine_target t = *target;
    struct ws_http_reply reply;
    t.short_ms = t.timeout_ms; /* it answers once its memory is there */
    int rc = ws_sglang_info(&t, &reply, err);
    if (rc)
        return rc;
    rc = read_released(reply.json, out);
    ws_http_reply_release(&reply);
    return rc ? ws_error_set(err, EAGAIN,
                             "%s does not say which parts of its memory are released: start it with the "
                             "Python package wsync beside it, or wake it and try again",
                             t.url)
              : 0;
}

/* Answers 200 and null. */
static int take_back(const struct ws_engine_target *t, unsigned which, struct ws_error *err)
{
    struct ws_http_reply reply;
    json_t *tags = json_array();
    for (size_t i = 0; i < N_PARTS; i++)
        if (which & 1U << i)
            json_array_append_new(tags, json_string(parts[i]));
    int rc = ws_call_explained(t, "/resume_memory_occupation", json_pack("{s:o}", "tags", tags),
                               t->timeout_ms, &reply, err);
    if (rc)
        return rc;
    if (reply.status != 200)
        rc = ws_error_set(err, EAGAIN, "%s sleeps and could not be woken: %ld %.600s; wake it and try again",
                          t->url, reply.status, reply.text);
    ws_http_reply_release(&reply);
    return rc;
}

static int wake(const struct ws_engine_target *t, unsigned which, struct ws_error *err)
{
    unsigned released;
    int rc = ask_released(t, &released, err);
    if (rc || !(released & which))
        return rc;
    rc = take_back(t, released & which, err);
    if (!rc)
        rc = ws_call_after_request(ask_released(t, &released, err), err);
    return rc || !(released & which)
               ? rc
               : ws_error_set(err, EREMOTEIO, "%s said that it took its memory back, and has it not", t->url);
}

int ws_sglang_wake_weights(const struct ws_engine_target *t, struct ws_error *err)
{
    return wake(t, WEIGHTS, err);
}

int ws_sglang_wake_rest(const struct ws_engine_target *t, struct ws_error *err)
{
    return wake(t, ALL & ~(unsigned)WEIGHTS, err);
}
