/* Derivations under libFuzzer: what a trainer may write into config.json and a header. The input is a byte that says recipe
 * and options, config.json, a NUL, and a safetensors file, whose length field is set to what follows it less a page's worth
 * of data that its first byte says. What is accepted is valid, says its source, and is made without an error but for
 * elements that are no numbers. */
#include "transports/quant/derive.h"
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DIGEST "0123456789abcdef"
#define MOST                                                                                                 \
    (1UL << 20) /* of a derived file: subnormal sizes of empty shapes aside they are as small as the input */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int what)
{
    if (!what)
        abort();
}

static void run(const struct ws_derive *d, const uint8_t *file)
{
    uint8_t *out = malloc(d->files[0].st->file_bytes + 1);
    struct ws_error err = {0};
    require(out != NULL);
    for (size_t j = 0; j < d->n_jobs; j++) {
        const struct ws_derive_job *job = &d->jobs[j];
        void *dst[WS_RECIPE_MAX_TARGETS] = {0};
        uint64_t begin, end;
        if (job->rows == 0)
            continue;
        for (unsigned k = 0; k < job->n_targets; k++) {
            const struct ws_tensor *t = &d->files[0].st->tensors[job->targets[k]];
            ws_derive_target_range(d, job, k, 0, job->rows, &begin, &end);
            require(begin == t->begin && end == t->end);
            dst[k] = out + begin;
        }
        ws_derive_source_range(job, 0, job->rows, &begin, &end);
        require(begin == job->source->begin && end == job->source->end);
        const int rc = ws_derive_run(d, job, 0, job->rows, file + begin, dst, &err);
        require(rc == 0 || (rc == -EBADMSG && job->quantised));
    }
    free(out);
}

static void check(struct ws_derive *d)
{
    struct ws_safetensors *st = NULL;
    struct ws_error err;
    const struct ws_derive_file *f = &d->files[0];
    require(ws_derive_set_source(d, "fedcba9876543210", &err) == 0);
    require(strstr(f->st->metadata, "\"wsync.source\":\"fedcba9876543210\"") != NULL);
    require(ws_safetensors_parse(f->header, f->st->data_begin, f->st->file_bytes, &st, &err) == 0);
    require(strcmp(st->metadata, f->st->metadata) == 0);
    ws_safetensors_free(st);
    require(d->config[d->config_bytes] == '\0' && strstr(d->config, "\"quantization_config\": {") != NULL);
    require(d->index && strstr(d->index, "\"weight_map\": {") != NULL);
}

static void derive(uint8_t how, const char *config, const struct ws_safetensors *st, const uint8_t *file)
{
    static const char *const ignored[] = {"re:.*gate.*"};
    size_t n = 0;
    while (ws_recipe_at(n))
        n++;
    const struct ws_derive_source_file one = {"model.safetensors", st};
    const struct ws_derive_source source = {&one, 1, config, strlen(config), true};
    const struct ws_select_options options = {ignored, how >> 6 & 1, how >> 7};
    struct ws_derive *d = NULL;
    struct ws_error err = {0};
    if (ws_derive_new(&source, ws_recipe_at((how & 63) % n), &options, DIGEST, &d, &err) < 0) {
        require(err.code > 0 && err.text[0] != '\0' && !d);
        return;
    }
    if (d->files[0].st->file_bytes < MOST)
        run(d, file);
    check(d);
    ws_derive_free(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size > 1 ? memchr(data + 1, '\0', size - 1) : NULL;
    struct ws_safetensors *st = NULL;
    struct ws_error err;
    if (!end)
        return 0;
    const size_t n = (size_t)(data + size - end - 1);
    uint8_t *file = malloc(n + 1);
    require(file != NULL);
    memcpy(file, end + 1, n);
    if (n >= 8) {
        uint64_t length;
        memcpy(&length, file, 8);
        if (le64toh(length) > n - 8) {
            const uint64_t rest = (uint64_t)file[0] << 4;
            length = htole64(n - 8 - (rest < n - 8 ? rest : 0));
            memcpy(file, &length, 8);
        }
    }
    if (ws_safetensors_parse(file, n, n, &st, &err) == 0)
        derive(data[0], (const char *)data + 1, st, file);
    ws_safetensors_free(st);
    free(file);
    return 0;
}
