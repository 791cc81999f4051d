#include "transports/delta/listing.h"
#include <errno.h>

json_t *ws_delta_entry_json(const struct ws_delta *d)
{
    const struct ws_delta_link *l = ws_delta_link(d);
    struct ws_delta_stats f;
    ws_delta_stats(d, &f);
    return json_pack("{s:I,s:s,s:s,s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I}", "base", (json_int_t)l->base.version,
                     "base_run", l->base.lineage, "base_digest", l->base_digest, "version",
                     (json_int_t)l->target.version, "run", l->target.lineage, "digest", l->target_digest,
                     "state", ws_delta_state_name(f.state), "bytes", (json_int_t)f.bytes, "changed",
                     (json_int_t)f.n_changed, "whole_blocks", (json_int_t)f.n_blocks_whole, "blocks",
                     (json_int_t)ws_delta_blocks(d));
}

static bool read_digest(const char *text, char out[33])
{
    if (!text || strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
        return false;
    memcpy(out, text, 33);
    return true;
}

static bool read_state(const char *name, enum ws_delta_state *out)
{
    for (int s = WS_DELTA_GROWING; s <= WS_DELTA_GIVEN_UP; s++) {
        if (strcmp(name, ws_delta_state_name((enum ws_delta_state)s)) == 0) {
            *out = (enum ws_delta_state)s;
            return true;
        }
    }
    return false;
}

int ws_delta_listing_read(const json_t *list, struct ws_delta_entry out[WS_MAX_DELTA_ENTRIES], size_t *n)
{
    const json_t *one;
    size_t i;
    *n = 0;
    json_array_foreach(list, i, one)
    {
        json_int_t base, version, bytes, changed, whole, blocks, parts = 0;
        const char *base_lineage, *base_digest, *lineage, *digest, *state;
        struct ws_delta_entry *o = &out[*n];
        if (*n == WS_MAX_DELTA_ENTRIES)
            break;
        *o = (struct ws_delta_entry){0};
        if (json_unpack((json_t *)one, "{s:I,s:s,s:s,s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s?I}", "base", &base,
                        "base_run", &base_lineage, "base_digest", &base_digest, "version", &version, "run",
                        &lineage, "digest", &digest, "state", &state, "bytes", &bytes, "changed", &changed,
                        "whole_blocks", &whole, "blocks", &blocks, "parts", &parts) != 0 ||
            parts < 0 || base < 0 || version < 0 || bytes < 0 || changed < 0 || whole < 0 || blocks < 0 ||
            !ws_lineage_is_safe(base_lineage) || !ws_lineage_is_safe(lineage) ||
            !read_digest(base_digest, o->link.base_digest) || !read_digest(digest, o->link.target_digest))
            return -EPROTO;
        if (!read_state(state, &o->stats.state))
            continue;
        o->link.base = ws_version_id_make((uint64_t)base, base_lineage);
        o->link.target = ws_version_id_make((uint64_t)version, lineage);
        o->stats.bytes = (uint64_t)bytes;
        o->stats.n_changed = (uint64_t)changed;
        o->stats.n_blocks_whole = (uint64_t)whole;
        o->n_blocks = (uint64_t)blocks;
        o->most_parts = parts < WS_MAX_STREAMS ? (unsigned)parts : 0;
        ++*n;
    }
    return 0;
}
