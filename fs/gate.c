#include "fs/gate.h"
#include "transports/layout.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static size_t headers_of(struct ws_version *v, struct ws_safetensors **out, size_t max)
{
    struct ws_error err;
    const struct ws_manifest *m = ws_version_manifest(v, &err);
    size_t n = 0;
    for (size_t i = 0; m && i < m->n_files && n < max; i++) {
        const struct ws_safetensors *st = m->files[i].header_bytes ? ws_version_header(v, i, &err) : NULL;
        if (st)
            out[n++] = (struct ws_safetensors *)(uintptr_t)st;
    }
    return n;
}

int ws_gate(struct ws_model *model, struct ws_version *version, struct ws_error *err)
{
    struct ws_version *served = ws_model_current(model);
    if (!served)
        return 0;
    struct ws_safetensors **have = calloc(2 * WS_MAX_FILES, sizeof(struct ws_safetensors *));
    struct ws_safetensors **want = have ? have + WS_MAX_FILES : NULL;
    char *report = NULL;
    int rc = have ? 0 : ws_error_set(err, ENOMEM, "no memory for the comparison of layouts");
    if (rc == 0) {
        size_t n_have = headers_of(version, have, WS_MAX_FILES),
               n_want = headers_of(served, want, WS_MAX_FILES);
        if (n_want > 0) /* else the served one is not held any more: it was checked when it was loaded */
            rc = ws_layout_compare(have, n_have, want, n_want, &report);
        if (rc == -EPROTO)
            ws_error_set(err, EPROTO,
                         "the layout of %s/%" PRIu64 " differs from the served version %" PRIu64
                         ", no engine was told; add force-layout to switch all the same: %.700s",
                         ws_model_name(model), ws_version_number(version), ws_version_number(served),
                         report ? report : "");
        else if (rc < 0)
            ws_error_set(err, -rc, "the layouts could not be compared");
    }
    for (char *nl = err->text; rc == -EPROTO && (nl = strchr(nl, '\n'));)
        *nl = ';';
    free(report);
    free(have);
    ws_version_put(served);
    return rc;
}
