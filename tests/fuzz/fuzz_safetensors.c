/* Safetensors headers under libFuzzer. The input is a file. If its length field does not fit, it is set so
 * that the field's first byte says how many data bytes follow the header: most inputs would otherwise end at
 * the first check. What is accepted must keep the parser's promises, and survive another layout. */
#include "transports/format/safetensors.h"
#include <endian.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static int by_begin(const void *a, const void *b)
{
    const struct ws_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static void check_tensors(const struct ws_safetensors *st)
{
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct ws_tensor *t = &st->tensors[i];
        char file[WS_MAX_NAME + 1];
        uint64_t bytes;

        require(i == 0 || strcmp(st->tensors[i - 1].name, t->name) < 0);
        require(t->n_dims <= WS_MAX_DIMS);
        require(t->begin >= st->data_begin && t->end <= st->file_bytes);
        require(ws_dtype_bytes(t->dtype, t->shape, t->n_dims, &bytes) == 0);
        require(t->end - t->begin == bytes);
        require(ws_safetensors_find(st, t->name) == t);
        ws_name_to_file(t->name, file);
        require(ws_name_is_safe(file));
    }
}

/* No gap, no overlap, nothing behind the last. */
static void check_cover(const struct ws_safetensors *st)
{
    size_t bytes = (st->n_tensors + 1) * sizeof(struct ws_tensor);
    struct ws_tensor *order = malloc(bytes);
    uint64_t at = st->data_begin;

    require(order != NULL);
    memcpy(order, st->tensors, st->n_tensors * sizeof(struct ws_tensor));
    qsort(order, st->n_tensors, sizeof(struct ws_tensor), by_begin);
    for (size_t i = 0; i < st->n_tensors; i++) {
        require(order[i].begin == at);
        at = order[i].end;
    }
    require(at == st->file_bytes);
    free(order);
}

static void check_layout(const struct ws_safetensors *st)
{
    struct ws_safetensors *again = NULL;
    struct ws_error err;
    void *header = NULL;

    require(ws_safetensors_layout(st->tensors, st->n_tensors, st->metadata, &again, &header, &err) == 0);
    require(again->n_tensors == st->n_tensors);
    require(again->data_begin % WS_PAGE_BYTES == 0);
    require(!again->metadata == !st->metadata);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const struct ws_tensor *a = &st->tensors[i], *b = &again->tensors[i];
        require(strcmp(a->name, b->name) == 0 && a->dtype == b->dtype && a->n_dims == b->n_dims);
        require(memcmp(a->shape, b->shape, sizeof(a->shape)) == 0);
    }
    check_cover(again);
    ws_safetensors_free(again);
    free(header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ws_safetensors *st = NULL;
    struct ws_error err = {0};
    uint8_t *file = malloc(size ? size : 1);
    uint64_t length = 0;

    require(file != NULL);
    if (size > 0)
        memcpy(file, data, size);
    if (size >= 8) {
        memcpy(&length, file, 8);
        if (le64toh(length) > size - 8 && file[0] <= size - 8) {
            length = htole64(size - 8 - file[0]);
            memcpy(file, &length, 8);
        }
    }
    if (ws_safetensors_parse(file, size, size, &st, &err) == 0) {
        check_tensors(st);
        check_cover(st);
        check_layout(st);
        ws_safetensors_free(st);
    } else {
        require(err.code > 0 && err.text[0] != '\0');
        require(st == NULL);
    }
    free(file);
    return 0;
}
