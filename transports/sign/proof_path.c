#include "transports/sign/proof_path.h"
#include "transports/base/text.h"
#include "transports/format/manifest.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void ws_proof_query(char out[WS_PROOF_QUERY_CHARS], const char *lineage, const struct ws_version_id *base)
{
    int n = snprintf(out, WS_PROOF_QUERY_CHARS, "run=%s", lineage);

    if (base)
        snprintf(out + n, WS_PROOF_QUERY_CHARS - (size_t)n, "&base=%" PRIu64 "&base_run=%s", base->version,
                 base->lineage);
}

/* The value of a key, of less than `cap` bytes. -ENOENT, -EINVAL. */
static int find(const char *query, const char *key, char *out, size_t cap)
{
    const size_t k = strlen(key);

    for (const char *p = query; p && *p;) {
        const size_t n = strcspn(p, "&");
        if (n > k && strncmp(p, key, k) == 0 && p[k] == '=') {
            if (n - k - 1 >= cap)
                return -EINVAL;
            memcpy(out, p + k + 1, n - k - 1);
            out[n - k - 1] = '\0';
            return 0;
        }
        p += n + (p[n] == '&');
    }
    return -ENOENT;
}

int ws_proof_base(const char *query, bool *has_base, struct ws_version_id *base)
{
    char number[32];
    int rc = find(query, "base", number, sizeof(number));

    *base = (struct ws_version_id){0};
    *has_base = rc == 0;
    if (rc == -ENOENT)
        return 0;
    if (rc < 0 || ws_text_u64(number, &base->version) < 0)
        return -EINVAL;
    rc = find(query, "base_run", base->lineage, sizeof(base->lineage));
    return rc == -EINVAL || (rc == 0 && !ws_lineage_is_safe(base->lineage)) ? -EINVAL : 0;
}
