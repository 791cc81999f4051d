/* What a node needs, under libFuzzer. The first byte selects what the rest is: the value of need=, as an operator writes it;
 * the value of only=, of which blocks a client asks a source's records; or what a mount has learned, as its file keeps it.
 * What is accepted selects some tensors of a model with experts and fails with a sentence, or asks for the blocks that it
 * asked for when it is written out anew, or is the same when it is read back. */
#include "fs/store/learned.h"
#include "fs/store/needs.h"
#include "transports/delta/filter.h"
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define N_BLOCKS 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static const struct ws_tensor tensors[] = {
    {.name = "lm_head.weight"},
    {.name = "model.layers.0.mlp.experts.0.down_proj.weight"},
    {.name = "model.layers.0.mlp.experts.1.down_proj.weight"},
    {.name = "model.layers.0.mlp.experts.18446744073709551615.down_proj.weight"},
    {.name = "model.layers.0.mlp.experts.down_proj"},
    {.name = "x"},
};
#define N_TENSORS (sizeof(tensors) / sizeof(tensors[0]))

static void check_need(const char *text)
{
    const struct ws_tensor *list[N_TENSORS];
    bool chosen[N_TENSORS];
    struct ws_need *need = NULL;
    struct ws_error err = {0};
    size_t n = 0;

    const int checked = ws_needs_check(text, &err);
    require(checked == 0 || (checked < 0 && err.code == -checked && err.text[0]));
    memset(&err, 0, sizeof(err));
    int rc = ws_need_parse(text, &need, &err);
    require((rc == 0) == (need != NULL) && (rc == 0 || (err.code == -rc && err.text[0])));
    if (rc < 0)
        return;
    require(strcmp(ws_need_text(need), text) == 0);
    for (size_t i = 0; i < N_TENSORS; i++)
        list[i] = &tensors[i];
    rc = ws_need_select(need, list, N_TENSORS, chosen, &err);
    for (size_t i = 0; i < N_TENSORS; i++)
        n += chosen[i];
    require(rc == 0 ? n > 0 : err.code == -rc && err.text[0] != '\0');
    ws_need_free(need);
}

static bool wants(void *arg, uint64_t block)
{
    return ws_delta_filter_has(arg, block);
}

static void check_filter(const char *text, size_t n)
{
    struct ws_delta_filter *f = NULL, *again = NULL;
    const int rc = ws_delta_filter_parse(text, n, &f);

    require((rc == 0) == (f != NULL) && (rc == 0 || rc == -EINVAL || rc == -ENOMEM));
    if (rc < 0)
        return;
    require(n <= WS_DELTA_FILTER_CHARS);
    (void)ws_delta_filter_has(f, UINT64_MAX);
    char *written = ws_delta_filter_text(wants, f, N_BLOCKS);
    require(written && strlen(written) <= WS_DELTA_FILTER_CHARS);
    if (ws_delta_filter_parse(written, strlen(written), &again) == 0)
        for (uint64_t b = 0; b < N_BLOCKS; b++)
            require(!ws_delta_filter_has(f, b) || ws_delta_filter_has(again, b));
    else
        for (uint64_t b = 0; b < N_BLOCKS; b++)
            require(!ws_delta_filter_has(f, b)); /* of none there is no text */
    free(written);
    ws_delta_filter_free(again);
    ws_delta_filter_free(f);
}

static char *print_learned(struct ws_store *s)
{
    char *text = NULL;
    size_t n;
    FILE *f = open_memstream(&text, &n);

    require(f && ws_store_learned_print(s, f) == 0 && fclose(f) == 0);
    return text;
}

static void check_learned(char *text)
{
    struct ws_store *first = calloc(1, sizeof(*first)), *second = calloc(1, sizeof(*second));
    struct ws_error err = {0};

    require(first && second);
    pthread_mutex_init(&first->lock, NULL);
    pthread_mutex_init(&second->lock, NULL);
    const int rc = ws_store_learned_read(first, text, &err);
    require(rc == 0 || (err.code == -rc && err.text[0]));
    char *written = print_learned(first), *copy = strdup(written);
    require(copy && ws_store_learned_read(second, copy, &err) == 0);
    /* They come in another order of models, and back in this one. */
    char *other = print_learned(second);
    require(strlen(other) == strlen(written));
    free(other);
    free(copy);
    free(written);
    ws_learned_free_all(first);
    ws_learned_free_all(second);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    /* Of its exact size, so that a read beyond it is detected. */
    char *text = malloc(size);
    require(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (data[0] % 3 == 0)
        check_need(text);
    else if (data[0] % 3 == 1)
        check_filter(text, size - 1);
    else
        check_learned(text);
    free(text);
    return 0;
}
