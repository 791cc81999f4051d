/* Sync infos and update requests under libFuzzer. The first byte selects which of the two it is, and the
 * reader's strategy (or that the text must name it); the rest is the JSON. What is accepted keeps every
 * promise of the header, and comes back the same from JSON. */
#include "backends/trainer/skyrl/strategy.h"
#include "backends/trainer/skyrl/update_request.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define N_STRATEGIES 6

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void require_failure(int rc, const struct ws_error *err)
{
    require(rc < 0 && err->code == -rc && err->text[0]);
}

static void check_info(const wsync_sync_info *info, const char *expected)
{
    const struct ws_strategy *s = ws_strategy_by_id(info->strategy);
    char source[WS_MAX_URL + 1], *first, *second;
    wsync_sync_info *back;
    struct ws_error err;

    require(s && (!expected || strcmp(expected, s->way->name) == 0));
    if (s->info == WS_INFO_SOURCE) {
        require(info->source.model && info->source.n_urls > 0 && info->source.n_urls <= WS_MAX_SOURCES);
        for (size_t i = 0; i < info->source.n_urls; i++)
            require(ws_sync_info_source(info, i, source, sizeof(source), &err) == 0 && strchr(source, ':'));
    } else if (s->info == WS_INFO_BROADCAST) {
        require(info->broadcast.master_addr && info->broadcast.master_port > 0);
        require(info->broadcast.rank_offset < info->broadcast.world_size);
    } else {
        require(info->cuda_ipc.model_dtype_str != NULL);
    }
    require(ws_sync_info_encode(info, &first, &err) == 0);
    require(ws_sync_info_decode(first, strlen(first), NULL, &back, &err) == 0);
    require(ws_sync_info_encode(back, &second, &err) == 0);
    require(strcmp(first, second) == 0);
    wsync_sync_info_free(back);
    free(first);
    free(second);
}

static void check_request(const wsync_update_request *r, const char *expected)
{
    const struct ws_strategy *s = ws_strategy_by_id(r->strategy);
    wsync_update_request *back;
    struct ws_error err;
    char *first, *second;
    uint64_t bytes;

    require(s && (!expected || strcmp(expected, s->way->name) == 0));
    require((r->n > 0 || s->info == WS_INFO_SOURCE) && r->n <= WS_MAX_TENSORS);
    require((s->way->handles && r->packed) == (r->n_handles > 0));
    for (size_t i = 0; i < r->n; i++) {
        const wsync_update_tensor *t = &r->tensors[i];
        require(t->name && *t->name && strlen(t->name) <= WS_MAX_TENSOR_NAME);
        require(ws_dtype_bytes((enum ws_dtype)t->dtype, t->shape, t->n_dims, &bytes) == 0);
        require((s->way->handles && !r->packed) == (t->n_handles > 0));
    }
    require(ws_update_request_encode(r, &first, &err) == 0);
    require(ws_update_request_decode(first, strlen(first), NULL, &back, &err) == 0);
    require(back->n == r->n && !back->packed == !r->packed && back->n_handles == r->n_handles);
    require(ws_update_request_encode(back, &second, &err) == 0);
    require(strcmp(first, second) == 0);
    wsync_update_request_free(back);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_error err = {0};
    wsync_sync_info *info = NULL;
    wsync_update_request *request = NULL;

    if (size == 0)
        return 0;
    const struct ws_strategy *s = ws_strategy_by_id((wsync_strategy_id)(data[0] / 2 % (N_STRATEGIES + 1)));
    const char *expected = s ? s->way->name : NULL;
    char *text = malloc(size);
    require(text != NULL);
    memcpy(text, data + 1, size - 1);
    char *exact =
        realloc(text, size > 1 ? size - 1 : 1); /* of its exact size, so that a read beyond it is detected */
    require(exact != NULL);
    if (data[0] % 2 == 0) {
        int rc = ws_sync_info_decode(exact, size - 1, expected, &info, &err);
        if (rc == 0)
            check_info(info, expected);
        else
            require_failure(rc, &err);
        require((rc == 0) == (info != NULL));
        wsync_sync_info_free(info);
    } else {
        int rc = ws_update_request_decode(exact, size - 1, expected, &request, &err);
        if (rc == 0)
            check_request(request, expected);
        else
            require_failure(rc, &err);
        require((rc == 0) == (request != NULL));
        wsync_update_request_free(request);
    }
    free(exact);
    return 0;
}
