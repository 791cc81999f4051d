/* A quantised checkpoint out of another one: the layout of its files, its config.json and index, and the work, one
 * job a source tensor. The files keep their names, and a tensor's targets lie in the file that it came from.
 *
 * Each safetensors file says in its __metadata__ what it is of: "wsync.recipe", "wsync.source" (the caller's digest of
 * the source) and "wsync.derive", this code's version. The same source and options make the same bytes on any machine.
 *
 *     rc = ws_derive_new(&source, recipe, &options, digest, &d, &err);
 *     for each job: for some rows of it, a multiple of job->step_rows:
 *         rc = ws_derive_run(d, job, row, n_rows, src, dst, &err);
 *
 * A derivation does not change but by ws_derive_set_source; apart from that any number of threads may run jobs. */
#ifndef WS_TRANSPORTS_QUANT_DERIVE_H
#define WS_TRANSPORTS_QUANT_DERIVE_H
#include "transports/base/error.h"
#include "transports/format/safetensors.h"
#include "transports/quant/recipe.h"
#include "transports/quant/select.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WS_DERIVE_VERSION 1 /* goes up with each change of what the same source becomes */

struct ws_derive_source_file {
    const char *name;
    const struct ws_safetensors *st; /* borrowed until ws_derive_free */
};
struct ws_derive_source {
    const struct ws_derive_source_file *files; /* all *.safetensors of the version */
    size_t n_files;
    const char *config;  /* config.json's text; borrowed during ws_derive_new */
    size_t config_bytes; /* 0: there is none */
    bool has_index;      /* there is a model.safetensors.index.json, and so there will be one */
};

struct ws_derive_file {
    const char *name;          /* the source's */
    struct ws_safetensors *st; /* of the derived file: its tensors, file_bytes, data_begin */
    void *header;              /* the file's first data_begin bytes */
    size_t first_job;          /* of this file; one job for each source tensor, in their order */
};

/* What becomes of one source tensor. */
struct ws_derive_job {
    size_t file;
    const struct ws_tensor *source;
    bool quantised; /* else its bytes are copied */
    unsigned n_targets;
    size_t targets[WS_RECIPE_MAX_TARGETS]; /* places in files[file].st->tensors; codes first */
    uint64_t rows;                         /* 0: no bytes, no work */
    uint64_t row_bytes;                    /* of the source */
    uint64_t step_rows; /* work begins at a multiple of these, and ends at one or at the last row */
};

struct ws_derive {
    const struct ws_recipe *recipe;
    struct ws_derive_file *files;
    size_t n_files;
    struct ws_derive_job *jobs;
    size_t n_jobs, n_quantised;
    size_t digest_chars;
    uint64_t source_bytes, bytes; /* of all tensors, before and after */
    char *config; /* the new config.json: the source's with a quantization_config at the end */
    size_t config_bytes;
    char *index; /* the new model.safetensors.index.json; NULL: has_index was false */
    size_t index_bytes;
};

/* source_digest: any text that names the source's bytes, up to 64 printable ASCII characters without quotes.
 * -ENOENT: there is no config.json; -EINVAL: it is an adapter; -EINVAL, -EBADMSG as ws_select, or a target's name is
 * another tensor's; -E2BIG: over a limit of safetensors.h; -ENOMEM. The caller frees it. */
WS_MUST_USE int ws_derive_new(const struct ws_derive_source *source, const struct ws_recipe *recipe,
                              const struct ws_select_options *options, const char *source_digest,
                              struct ws_derive **out, struct ws_error *err);
/* Puts another digest of the same length into the headers: for a caller that knows it at the end only. No other thread
 * may read the headers meanwhile. -EINVAL: it has another length. */
WS_MUST_USE int ws_derive_set_source(struct ws_derive *d, const char *source_digest, struct ws_error *err);
void ws_derive_free(struct ws_derive *d); /* NULL is fine */

/* The rows that hold bytes [begin, end) of the job's source file, widened to whole steps. Those bytes may reach beyond
 * the tensor; *n_rows is 0 where they have none of it. */
void ws_derive_rows(const struct ws_derive_job *job, uint64_t begin, uint64_t end, uint64_t *row,
                    uint64_t *n_rows);
/* Where those rows lie in the source file, and where what they make lies in the derived file; bytes from the file's
 * begin. Rows may make nothing of a target: *begin is *end then. */
void ws_derive_source_range(const struct ws_derive_job *job, uint64_t row, uint64_t n_rows, uint64_t *begin,
                            uint64_t *end);
void ws_derive_target_range(const struct ws_derive *d, const struct ws_derive_job *job, unsigned target,
                            uint64_t row, uint64_t n_rows, uint64_t *begin, uint64_t *end);
/* Does these rows. src: the bytes of ws_derive_source_range; dst[k]: those of ws_derive_target_range for target k.
 * -EBADMSG: a weight is NaN or infinite; the sentence names the tensor and the element. */
WS_MUST_USE int ws_derive_run(const struct ws_derive *d, const struct ws_derive_job *job, uint64_t row,
                              uint64_t n_rows, const void *src, void *const dst[WS_RECIPE_MAX_TARGETS],
                              struct ws_error *err);

#endif
